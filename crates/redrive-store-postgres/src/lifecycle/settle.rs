//! Applies verdicts under their leases, with their attempts and follow-ups, and renews leases.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redrive_core::store::{EnqueueResult, ExtendResult, SettleResult, Settlement};
use redrive_core::time::ceil_ms;
use redrive_core::{Lease, NewJob, Order, Start, State};
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::lifecycle::enqueue::{self, HorizonCheck};
use crate::lifecycle::job_tree::{self, JobTree};
use crate::lifecycle::settle_columns::{FollowUpColumns, SettlementColumns, key};
use crate::limits::slots::VacatedSlot;
use crate::open::Inner;
use crate::pool::Executor;
use crate::pool::Parameter;
use crate::row;
use crate::sql;

static EXTEND: Statement = sql::LIFECYCLE.statement("extend");
static SETTLE: Statement = sql::LIFECYCLE.statement("settle");
static SETTLE_SUCCESS: Statement = sql::LIFECYCLE.statement("settle_success");

/// Settles attempts. Also reports whether a slot became free, as far as this node knows.
pub(crate) async fn settle(inner: &Inner, settlements: &[Settlement]) -> Result<(Vec<SettleResult>, bool)> {
    if settlements.iter().all(Settlement::is_plain) {
        let rows = settle_successes(inner, settlements).await?;
        let settled = SettleOutcome::read(inner, settlements, &rows, &HashSet::new(), JobTree::new(None))?;
        return Ok(settled.finish(inner).await);
    }
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
        settled.tree.cancel_descendants(client).await?;
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
    /// The jobs that ended early, and the slots that all settled jobs vacated.
    pub(crate) tree: JobTree,
    /// Whether a slot became free, as far as this node knows.
    pub(crate) slot_freed: bool,
}

impl SettleOutcome {
    fn read(
        inner: &Inner,
        settlements: &[Settlement],
        rows: &[Row],
        added: &HashSet<Uuid>,
        mut tree: JobTree,
    ) -> Result<Self> {
        let mut applied = read_settled(rows)?;
        let slot_freed = frees_slots(inner, &applied);
        let (mut results, mut vacated) = (Vec::with_capacity(settlements.len()), Vec::new());
        for settlement in settlements {
            // Of several settlements under one lease, the first one was applied.
            let row = applied.remove(&key(settlement.lease));
            results
                .push(row.as_ref().map_or(SettleResult::LeaseLost, |row| SettleResult::Applied(row.state)));
            vacated.extend(row.and_then(|row| row.vacated(settlement, added)));
        }
        vacated.append(&mut tree.vacated);
        tree.vacated = vacated;
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
        let lanes = inner.lanes.ensure(&inner.pool, &follow_ups).await?;
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
                ApplyResult::Done { rows, added } => {
                    return SettleOutcome::read(self.inner, settlements, &rows, &added, tree);
                }
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
            ApplyResult::Done { rows, .. } => rows,
            ends_children @ ApplyResult::EndsChildren(_) => return Ok(ends_children),
        };
        if self.has_children {
            tree.cancel_descendants(client).await?;
        }
        let applied = read_settled(&rows)?;
        let held = |settlement: &&&Settlement| applied.contains_key(&key(settlement.lease));
        let next = columns.firsts.iter().filter(held).flat_map(|settlement| settlement.follow_ups.clone());
        let next: Vec<NewJob> = next.collect();
        let enqueued = enqueue::add_all(&mut &*client, &self.lanes, self.horizon.now, &next).await?;
        let added = enqueued.into_iter().filter_map(|each| match each {
            EnqueueResult::Created(id) => Some(id.0),
            EnqueueResult::Existing(_) | EnqueueResult::Conflict(_) | EnqueueResult::Replaced(_) => None,
        });
        Ok(ApplyResult::Done { rows, added: added.collect() })
    }

    /// Runs the statement `settle`.
    async fn run(
        &self,
        on: &(impl Executor + Sync),
        columns: &SettlementColumns<'_>,
        follow_ups: &FollowUpColumns<'_>,
        tree: &mut JobTree,
    ) -> Result<ApplyResult> {
        let in_order = columns.firsts.len() > 1;
        let mut parameters: Vec<Parameter<'_>> = self.horizon.parameters().to_vec();
        parameters.extend(columns.parameters());
        parameters.extend(follow_ups.parameters());
        parameters.extend([(&tree.number as _, Type::INT8), (&in_order as _, Type::BOOL)]);
        let rows = on.run(&SETTLE, &parameters).await?;
        let first = rows.first().ok_or_else(Error::no_row)?;
        if first.try_get("late")? {
            return Err(Start::too_far().into());
        }
        if let Some(jobs) = first.try_get("ends_children")? {
            return Ok(ApplyResult::EndsChildren(jobs));
        }
        tree.marked = first.try_get("marked")?;
        let added: Option<Vec<Uuid>> = first.try_get("followed")?;
        Ok(ApplyResult::Done { rows, added: added.into_iter().flatten().collect() })
    }
}

/// The result of settling several jobs together.
enum ApplyResult {
    /// The rows of the statement `settle`, and the follow-ups with partition keys that were added.
    Done { rows: Vec<Row>, added: HashSet<Uuid> },
    /// Nothing was settled, because these jobs end live children.
    EndsChildren(Vec<Uuid>),
}

/// Whether a job of a queue with limits was settled.
fn frees_slots(inner: &Inner, applied: &HashMap<(Uuid, i64), SettledRow>) -> bool {
    let (limits, lanes) = (inner.known_limits(), inner.lanes.snapshot());
    let mut queues = applied.values().filter_map(|row| lanes.get(row.lane)).map(|lane| &lane.queue);
    limits.cover_any_queue() && queues.any(|queue| limits.cover_queue(queue))
}

async fn settle_successes(inner: &Inner, settlements: &[Settlement]) -> Result<Vec<Row>> {
    let mut leases: Vec<Lease> = settlements.iter().map(|settlement| settlement.lease).collect();
    leases.sort_unstable();
    leases.dedup();
    let (ids, epochs): (Vec<Uuid>, Vec<i64>) = leases.into_iter().map(key).unzip();
    let now = inner.manual_now();
    let sql = &SETTLE_SUCCESS;
    inner.pool.query(sql, &[(&now, Type::INT8), (&ids, Type::UUID_ARRAY), (&epochs, Type::INT8_ARRAY)]).await
}

/// The row of a settled job.
struct SettledRow {
    state: State,
    lane: i32,
    partition: Option<String>,
    strict: bool,
    /// Whether it can be claimed again now.
    due: bool,
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
            strict: row.try_get("strict")?,
            due: row.try_get("due")?,
        };
        applied.insert((id, epoch), settled);
    }
    Ok(applied)
}

impl SettledRow {
    /// The slot that the job vacated in its partition, if it has a partition key.
    fn vacated(self, settlement: &Settlement, added: &HashSet<Uuid>) -> Option<VacatedSlot> {
        let partition = self.partition?;
        let in_partition = |job: &&NewJob| {
            let any = job.partition.as_ref().filter(|of| of.order == Order::Any);
            added.contains(&job.id.0) && any.map(|of| of.scope(&job.queue)).as_ref() == Some(&partition)
        };
        let added = settlement.follow_ups.iter().filter(in_partition).map(|job| job.start).collect();
        Some(VacatedSlot {
            id: settlement.lease.id.0,
            strict: self.strict,
            ended: self.state.is_final(),
            ran: true,
            was_claimable: false,
            is_claimable: self.due,
            added,
            partition,
        })
    }
}

/// Whether a settled job can be claimed again, now or later.
pub(crate) fn is_claimable(settled: &SettleResult) -> bool {
    matches!(settled, SettleResult::Applied(state) if state.is_claimable())
}

/// Renews leases, and reports requested cancels.
pub(crate) async fn extend(inner: &Inner, leases: &[Lease], lease: Duration) -> Result<Vec<ExtendResult>> {
    // Locks rows in the order of ids, as settlements do.
    let mut ordered: Vec<Lease> = leases.to_vec();
    ordered.sort_unstable();
    let ids: Vec<Uuid> = ordered.iter().map(|lease| lease.id.0).collect();
    let epochs: Vec<i64> = ordered.iter().map(|lease| lease.epoch as i64).collect();
    let (now, ms) = (inner.manual_now(), ceil_ms(lease));
    let rows = inner
        .heartbeats
        .query(
            &EXTEND,
            &[(&now, Type::INT8), (&ids, Type::UUID_ARRAY), (&epochs, Type::INT8_ARRAY), (&ms, Type::INT8)],
        )
        .await?;
    let mut held: HashMap<(Uuid, i64), bool> = HashMap::with_capacity(rows.len());
    for row in &rows {
        let key = (row.try_get(0)?, row.try_get(1)?);
        held.insert(key, row.try_get(2)?);
    }
    let result = |lease: &Lease| match held.get(&(lease.id.0, lease.epoch as i64)) {
        Some(true) => ExtendResult::CancelRequested,
        Some(false) => ExtendResult::Renewed,
        None => ExtendResult::LeaseLost,
    };
    Ok(leases.iter().map(result).collect())
}
