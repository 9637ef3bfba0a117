//! Applies verdicts under their leases, with their attempts and follow-ups, and renews leases.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use redrive_core::store::{SettleResult, Settlement};
use redrive_core::{JobId, Lease, NewJob, Start, State};
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::lifecycle::enqueue::{self, HorizonCheck};
use crate::lifecycle::held_claims::{HeldJob, claim_number};
use crate::lifecycle::job_tree::{self, JobTree};
use crate::lifecycle::settle_columns::{FollowUpColumns, SettlementColumns, key};
use crate::limits::slots::give_slots;
use crate::open::Inner;
use crate::planned_function::PlannedFunction;
use crate::pool::Executor;
use crate::pool::Parameter;
use crate::row;
use crate::sql;

static SETTLE: Statement = sql::SETTLE.statement("settle");
pub(crate) static SETTLE_SUCCESS: PlannedFunction = PlannedFunction::new(
    sql::SETTLE,
    "settle_success",
    "bigint, uuid[], bigint[], integer[], integer[], text[], bigint[]",
    &["id uuid, epoch bigint"],
);

/// The leases of more claims than this are settled without the function. Its stored plan compares each lease with each claim.
const CLAIMS_IN_FUNCTION_MAX: usize = 8;

/// Settles attempts. Also reports whether a slot became free, as far as this node knows.
pub(crate) async fn settle(inner: &Inner, settlements: &[Settlement]) -> Result<(Vec<SettleResult>, bool)> {
    let simple = if settlements.iter().all(Settlement::is_plain) {
        settle_successes(inner, settlements).await?
    } else {
        None
    };
    let Some(settled) = simple else { return settle_all(inner, settlements).await };
    let slot_given = !settled.vacated.is_empty() && give_slots(inner, &settled.vacated).await;
    let slot_freed = slot_given || frees_slots(inner, settled.lanes);
    if settled.unsettled.is_empty() {
        return Ok((vec![SettleResult::Applied(State::Succeeded); settlements.len()], slot_freed));
    }
    // Others were taken away from this process, or their claim is no longer whole.
    let is_unsettled = |settlement: &Settlement| settled.unsettled.contains(&settlement.lease);
    let others: Vec<Settlement> = settlements.iter().filter(|each| is_unsettled(each)).cloned().collect();
    let (others, other_slot_freed) = settle_all(inner, &others).await?;
    let mut others = others.into_iter();
    let result = |settlement: &Settlement| match is_unsettled(settlement) {
        true => others.next().unwrap_or(SettleResult::LeaseLost),
        false => SettleResult::Applied(State::Succeeded),
    };
    Ok((settlements.iter().map(result).collect(), slot_freed || other_slot_freed))
}

async fn settle_all(inner: &Inner, settlements: &[Settlement]) -> Result<(Vec<SettleResult>, bool)> {
    let call = SettleCall::new(inner, settlements).await?;
    let (mut results, mut slot_freed) = (Vec::with_capacity(settlements.len()), false);
    while results.len() < settlements.len() {
        let settled = call.settle_next(&settlements[results.len()..]).await?;
        let (next, freed) = settled.finish(inner).await;
        results.extend(next);
        slot_freed |= freed;
    }
    Ok((results, slot_freed))
}

/// Settles in a transaction of the caller, who commits it and then calls [`job_tree::after_commit`].
pub(crate) async fn settle_in(
    inner: &Inner,
    client: &Client,
    settlements: &[Settlement],
) -> Result<SettleOutcome> {
    let call = SettleCall { transaction: Some(client), ..SettleCall::new(inner, settlements).await? };
    let mut all =
        SettleOutcome { results: Vec::new(), tree: JobTree::new(inner.manual_now()), slot_freed: false };
    while all.results.len() < settlements.len() {
        let mut settled = call.settle_next(&settlements[all.results.len()..]).await?;
        settled.tree.cancel_descendants_in(client).await?;
        all.results.extend(settled.results);
        all.slot_freed |= settled.slot_freed;
        all.tree.requested |= settled.tree.requested;
        all.tree.vacated.extend(settled.tree.vacated);
    }
    Ok(all)
}

/// The results of settlements, and what is left to do after the commit.
pub(crate) struct SettleOutcome {
    pub(crate) results: Vec<SettleResult>,
    /// The jobs that ended early, and the partitions of all settled jobs.
    pub(crate) tree: JobTree,
    /// Whether a slot became free, as far as this node knows.
    pub(crate) slot_freed: bool,
}

impl SettleOutcome {
    fn read(inner: &Inner, settlements: &[Settlement], rows: &[Row], mut tree: JobTree) -> Result<Self> {
        let mut applied = read_settled(rows)?;
        let slot_freed = frees_slots(inner, applied.values().map(|row| row.lane).collect());
        let mut results = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            // Of several settlements under one lease, the first one was applied.
            let row = applied.remove(&key(settlement.lease));
            results
                .push(row.as_ref().map_or(SettleResult::LeaseLost, |row| SettleResult::Applied(row.state)));
            tree.vacated.extend(row.and_then(|row| row.partition));
        }
        Ok(Self { results, tree, slot_freed })
    }

    /// Ends the descendants of the jobs that ended early, and gives the vacated slots to other jobs.
    async fn finish(self, inner: &Inner) -> (Vec<SettleResult>, bool) {
        let slot_given = job_tree::finish(inner, self.tree).await;
        (self.results, self.slot_freed || slot_given)
    }
}

/// The settlements of one call.
struct SettleCall<'a> {
    inner: &'a Inner,
    /// The transaction of the caller, if it has one.
    transaction: Option<&'a Client>,
    lanes: Arc<Lanes>,
    horizon: HorizonCheck,
    /// Whether a follow-up has a unique key. The holder of the key must be read first, in a separate statement.
    has_unique: bool,
    /// Whether a follow-up has a parent, which may be one of the jobs that end. The follow-up is added after the
    /// descendants of its parent have ended.
    has_children: bool,
}

impl<'a> SettleCall<'a> {
    async fn new(inner: &'a Inner, settlements: &[Settlement]) -> Result<Self> {
        let follow_ups: Vec<NewJob> =
            settlements.iter().flat_map(|settlement| settlement.follow_ups.clone()).collect();
        enqueue::check(&follow_ups)?;
        let lanes = inner.use_lanes(&follow_ups).await?;
        inner.lower_positions(&follow_ups);
        Ok(Self {
            inner,
            transaction: None,
            lanes,
            horizon: HorizonCheck::new(inner.manual_now(), &follow_ups),
            has_unique: follow_ups.iter().any(|job| job.unique.is_some()),
            has_children: follow_ups.iter().any(|job| job.parent.is_some()),
        })
    }

    /// Settles the longest prefix that can be settled together. If a job ends live children, this may change the results of the
    /// settlements after it, so these come later.
    async fn settle_next(&self, rest: &[Settlement]) -> Result<SettleOutcome> {
        let mut count = if self.has_children { 1 } else { rest.len() };
        loop {
            let settlements = &rest[..count];
            let mut tree = JobTree::new(self.horizon.now);
            match self.apply(&SettlementColumns::new(settlements), &mut tree).await? {
                ApplyResult::Done(rows) => return SettleOutcome::read(self.inner, settlements, &rows, tree),
                ApplyResult::EndsChildren(jobs) => {
                    let first = settlements.iter().position(|each| jobs.contains(&each.lease.id.0));
                    count = first.unwrap_or_default().max(1);
                }
            }
        }
    }

    /// Applies settlements with their follow-ups.
    async fn apply(&self, columns: &SettlementColumns<'_>, tree: &mut JobTree) -> Result<ApplyResult> {
        if let Some(client) = self.transaction {
            return self.apply_in_transaction(client, columns, tree).await;
        }
        if self.has_unique || self.has_children {
            let steps = async |client: &Client| self.apply_in_transaction(client, columns, tree).await;
            return self.inner.pool.transaction(steps).await;
        }
        self.run(&*self.inner.pool, columns, &FollowUpColumns::new(columns, &self.lanes)?, tree).await
    }

    /// Settles and then enqueues the follow-ups, in separate statements of a transaction.
    async fn apply_in_transaction(
        &self,
        client: &Client,
        columns: &SettlementColumns<'_>,
        tree: &mut JobTree,
    ) -> Result<ApplyResult> {
        let rows = match self.run(client, columns, &FollowUpColumns::default(), tree).await? {
            ApplyResult::Done(rows) => rows,
            ends_children @ ApplyResult::EndsChildren(_) => return Ok(ends_children),
        };
        if self.has_children {
            tree.cancel_descendants_in(client).await?;
        }
        let applied = read_settled(&rows)?;
        let held = |settlement: &&&Settlement| applied.contains_key(&key(settlement.lease));
        let next = columns.firsts.iter().filter(held).flat_map(|settlement| settlement.follow_ups.clone());
        let next: Vec<NewJob> = next.collect();
        enqueue::add_all(&mut &*client, &self.lanes, self.horizon.now, &next).await?;
        Ok(ApplyResult::Done(rows))
    }

    /// Runs the statement `settle`.
    async fn run(
        &self,
        on: &(impl Executor + Sync),
        columns: &SettlementColumns<'_>,
        follow_ups: &FollowUpColumns<'_>,
        tree: &mut JobTree,
    ) -> Result<ApplyResult> {
        let leases: Vec<Lease> = columns.firsts.iter().map(|settlement| settlement.lease).collect();
        let released = self.start(&leases);
        let applied = self.run_releasing(on, columns, follow_ups, tree, &released).await;
        if self.transaction.is_none() {
            match &applied {
                Ok(ApplyResult::Done(_)) => self.inner.held_claims().settled(&leases, &released),
                Ok(ApplyResult::EndsChildren(_)) | Err(_) => {
                    self.inner.held_claims().not_settled(&leases, released);
                }
            }
        }
        applied
    }

    /// Marks leases as being settled. Returns the claims whose last jobs these are. A transaction of the caller may be rolled back, so
    /// it releases none.
    fn start(&self, leases: &[Lease]) -> Vec<i64> {
        if self.transaction.is_some() {
            return Vec::new();
        }
        let mut held = self.inner.held_claims();
        held.start(leases);
        held.finished_with(leases)
    }

    async fn run_releasing(
        &self,
        on: &(impl Executor + Sync),
        columns: &SettlementColumns<'_>,
        follow_ups: &FollowUpColumns<'_>,
        tree: &mut JobTree,
        released: &[i64],
    ) -> Result<ApplyResult> {
        let in_order = columns.firsts.len() > 1;
        let mut parameters: Vec<Parameter<'_>> = self.horizon.parameters().to_vec();
        parameters.extend(columns.parameters());
        parameters.extend(follow_ups.parameters());
        parameters.extend([
            (&tree.number as _, Type::INT8),
            (&in_order as _, Type::BOOL),
            (&released as _, Type::INT8_ARRAY),
        ]);
        let rows = on.run(&SETTLE, &parameters).await?;
        let first = rows.first().ok_or_else(Error::no_row)?;
        if first.try_get("late")? {
            return Err(Start::too_far().into());
        }
        if let Some(jobs) = first.try_get("ends_children")? {
            return Ok(ApplyResult::EndsChildren(jobs));
        }
        tree.marked = first.try_get("marked")?;
        Ok(ApplyResult::Done(rows))
    }
}

/// The result of settling several jobs together.
enum ApplyResult {
    /// The rows of the statement `settle`.
    Done(Vec<Row>),
    /// Nothing was settled, because these jobs end live children.
    EndsChildren(Vec<Uuid>),
}

/// Whether a job of a queue with limits was settled. `settled` are the lanes of the jobs.
fn frees_slots(inner: &Inner, settled: BTreeSet<i32>) -> bool {
    let (limits, lanes) = (inner.known_limits(), inner.lanes.snapshot());
    let mut queues = settled.into_iter().filter_map(|lane| lanes.get(lane)).map(|lane| &lane.queue);
    limits.cover_any_queue() && queues.any(|queue| limits.cover_queue(queue))
}

/// Jobs that were ended with success, by leases that this process holds.
struct SettledSuccesses {
    lanes: BTreeSet<i32>,
    /// The partitions whose slots became free.
    vacated: BTreeSet<String>,
    /// The leases that were not settled.
    unsettled: BTreeSet<Lease>,
}

impl SettledSuccesses {
    fn new(leases: &[Lease], jobs: Vec<HeldJob>, unsettled: BTreeSet<Lease>) -> Self {
        let mut settled = Self { lanes: BTreeSet::new(), vacated: BTreeSet::new(), unsettled };
        for (lease, job) in leases.iter().zip(jobs) {
            if !settled.unsettled.contains(lease) {
                settled.lanes.insert(job.lane);
                settled.vacated.extend(job.partition);
            }
        }
        settled
    }
}

/// Ends jobs with success, by leases that this process holds. Returns None, and changes nothing, if it does not hold one of them, or if
/// one of the jobs was settled before.
async fn settle_successes(inner: &Inner, settlements: &[Settlement]) -> Result<Option<SettledSuccesses>> {
    let mut leases: Vec<Lease> = settlements.iter().map(|settlement| settlement.lease).collect();
    leases.sort_unstable();
    leases.dedup();
    let (jobs, released) = {
        let mut held = inner.held_claims();
        let Some(jobs) = held.start_simple(&leases) else { return Ok(None) };
        (jobs, held.finished_with(&leases))
    };
    match write_successes(inner, &leases, &jobs, &released).await {
        Ok(left) => {
            let done: Vec<Lease> = leases.iter().filter(|lease| !left.contains(lease)).copied().collect();
            let mut held = inner.held_claims();
            held.settled(&done, &released);
            held.not_settled(&Vec::from_iter(left.iter().copied()), Vec::new());
            Ok(Some(SettledSuccesses::new(&leases, jobs, left)))
        }
        Err(error) => {
            inner.held_claims().not_settled(&leases, released);
            // If a job was settled before, the answer to an earlier settlement was lost.
            if error.is_duplicate() { Ok(None) } else { Err(error) }
        }
    }
}

/// Runs the statement `settle_success`. Returns the leases that it did not settle.
async fn write_successes(
    inner: &Inner,
    leases: &[Lease],
    jobs: &[HeldJob],
    released: &[i64],
) -> Result<BTreeSet<Lease>> {
    let (ids, epochs): (Vec<Uuid>, Vec<i64>) = leases.iter().copied().map(key).unzip();
    let lanes: Vec<i32> = jobs.iter().map(|job| job.lane).collect();
    let attempts: Vec<i32> = jobs.iter().map(|job| job.attempt).collect();
    let partitions: Vec<Option<&str>> = jobs.iter().map(|job| job.partition.as_deref()).collect();
    let parameters: [Parameter<'_>; 7] = [
        (&inner.manual_now(), Type::INT8),
        (&ids, Type::UUID_ARRAY),
        (&epochs, Type::INT8_ARRAY),
        (&lanes, Type::INT4_ARRAY),
        (&attempts, Type::INT4_ARRAY),
        (&partitions, Type::TEXT_ARRAY),
        (&released, Type::INT8_ARRAY),
    ];
    let claims: BTreeSet<i64> = leases.iter().map(|lease| claim_number(lease.epoch)).collect();
    let sql = match claims.len() <= CLAIMS_IN_FUNCTION_MAX {
        true => inner.sql(&SETTLE_SUCCESS),
        false => SETTLE_SUCCESS.statement(),
    };
    let rows = inner.pool.query(sql, &parameters).await?;
    let lease = |row: &Row| {
        let (id, epoch): (Uuid, i64) = (row.try_get(0)?, row.try_get(1)?);
        Ok(Lease { id: JobId(id), epoch: epoch.unsigned_abs() })
    };
    rows.iter().map(lease).collect()
}

/// The row of a settled job.
struct SettledRow {
    state: State,
    lane: i32,
    partition: Option<String>,
}

/// The rows of settled jobs, by lease.
fn read_settled(rows: &[Row]) -> Result<HashMap<(Uuid, i64), SettledRow>> {
    let mut applied = HashMap::with_capacity(rows.len());
    for row in rows {
        let Some(id) = row.try_get::<_, Option<Uuid>>("id")? else { continue };
        let (epoch, code): (i64, i16) = (row.try_get("epoch")?, row.try_get("state")?);
        let state = row::state(code);
        let settled = SettledRow {
            state: state.ok_or_else(|| Error::corrupt(format!("job {id}: state {code} does not exist")))?,
            lane: row.try_get("lane")?,
            partition: row.try_get("partition")?,
        };
        applied.insert((id, epoch), settled);
    }
    Ok(applied)
}

/// Whether a settled job can be claimed again, now or later.
pub(crate) fn is_claimable(settled: &SettleResult) -> bool {
    matches!(settled, SettleResult::Applied(state) if state.is_claimable())
}
