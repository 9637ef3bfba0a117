//! Applies verdicts under their leases, each with its log entry and what follows it.

use std::collections::{HashMap, HashSet};

use redrive_core::store::{Enqueued, Settled, Settlement};
use redrive_core::time::ceil_ms;
use redrive_core::{Await, Lease, NewJob, Order, Reason, Start, State, StoreError};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::columns::Columns;
use crate::enqueue::{self, Limit, Query};
use crate::error::{Sorted, nothing};
use crate::lanes::Lanes;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::row;
use crate::turns::{self, Left};

/// Says too whether there is room for others by it, as far as this node knows.
pub(crate) async fn settle(
    inner: &Inner,
    settlements: &[Settlement],
) -> Result<(Vec<Settled>, bool), StoreError> {
    let (rows, added) = if settlements.iter().all(Settlement::is_plain) {
        (plain(inner, settlements).await?, HashSet::new())
    } else {
        full(inner, settlements).await?
    };
    let Outcome { results, left, mut made_room } = outcome(inner, settlements, &rows, &added)?;
    if !left.is_empty() {
        made_room |= turns::pass_on(inner, &left).await;
    }
    Ok((results, made_room))
}

/// What settlements came to, and what is left to do about it once they are committed.
pub(crate) struct Outcome {
    pub(crate) results: Vec<Settled>,
    /// The places that were left in partitions.
    pub(crate) left: Vec<Left>,
    /// Whether there is room for others by it, as far as this node knows.
    pub(crate) made_room: bool,
}

fn outcome(
    inner: &Inner,
    settlements: &[Settlement],
    rows: &[Row],
    added: &HashSet<Uuid>,
) -> Result<Outcome, StoreError> {
    let mut applied = applied(rows)?;
    let mut left = Vec::new();
    let made_room = frees_slots(inner, &applied);
    let mut results = Vec::with_capacity(settlements.len());
    for settlement in settlements {
        // The first of several settlements under one lease is the one that was made.
        let one = applied.remove(&key(settlement.lease));
        results.push(one.as_ref().map_or(Settled::LeaseLost, |one| Settled::Applied(one.state)));
        left.extend(one.and_then(|one| one.left(settlement, added)));
    }
    Ok(Outcome { results, left, made_room })
}

/// Settles in a transaction that someone else commits, and who then does what is left.
pub(crate) async fn settle_in(
    inner: &Inner,
    client: &Client,
    settlements: &[Settlement],
) -> Result<Outcome, StoreError> {
    let follow_ups: Vec<NewJob> = settlements.iter().flat_map(|each| each.follow_ups.clone()).collect();
    enqueue::check(&follow_ups)?;
    let lanes = inner.lanes.with(&inner.pool, &follow_ups).await?;
    inner.expect(&follow_ups);
    let limit = Limit::new(inner.manual_now(), &follow_ups);
    let (rows, added) = one_by_one(client, &lanes, &limit, &Given::new(settlements)).await?;
    outcome(inner, settlements, &rows, &added)
}

/// Whether a queue with a quota has room again.
fn frees_slots(inner: &Inner, applied: &HashMap<(Uuid, i64), Applied>) -> bool {
    let (met, lanes) = (inner.met(), inner.lanes.snapshot());
    let mut queues = applied.values().filter_map(|one| lanes.get(one.lane)).map(|lane| &lane.queue);
    met.has_queues() && queues.any(|queue| met.in_queue(queue))
}

async fn plain(inner: &Inner, settlements: &[Settlement]) -> Result<Vec<Row>, StoreError> {
    let mut leases: Vec<Lease> = settlements.iter().map(|settlement| settlement.lease).collect();
    leases.sort_unstable();
    leases.dedup();
    let (ids, epochs): (Vec<Uuid>, Vec<i64>) = leases.into_iter().map(key).unzip();
    let now = inner.manual_now();
    let sql = include_str!("../sql/settle_plain.sql");
    inner.pool.query(sql, &[(&now, Type::INT8), (&ids, Type::UUID_ARRAY), (&epochs, Type::INT8_ARRAY)]).await
}

/// Brings back too which follow-ups with partitions were added.
async fn full(inner: &Inner, settlements: &[Settlement]) -> Result<(Vec<Row>, HashSet<Uuid>), StoreError> {
    let follow_ups: Vec<NewJob> = settlements.iter().flat_map(|each| each.follow_ups.clone()).collect();
    enqueue::check(&follow_ups)?;
    let lanes = inner.lanes.with(&inner.pool, &follow_ups).await?;
    inner.expect(&follow_ups);
    let limit = Limit::new(inner.manual_now(), &follow_ups);
    let given = Given::new(settlements);
    if follow_ups.iter().all(|job| job.unique.is_none()) {
        let rows = apply(&*inner.pool, &limit, &given, &FollowUps::new(&given, &lanes)?).await?;
        let added: Option<Vec<Uuid>> = rows.first().ok_or_else(nothing)?.try_get("followed").sorted()?;
        return Ok((rows, added.into_iter().flatten().collect()));
    }
    // What holds a unique key has to be looked at first, which takes statements of their own.
    inner.pool.transaction(async |client| one_by_one(client, &lanes, &limit, &given).await).await
}

/// Settles, and then enqueues what follows, in statements of their own inside a transaction.
async fn one_by_one(
    client: &Client,
    lanes: &Lanes,
    limit: &Limit,
    given: &Given<'_>,
) -> Result<(Vec<Row>, HashSet<Uuid>), StoreError> {
    let rows = apply(client, limit, given, &FollowUps::default()).await?;
    let applied = applied(&rows)?;
    let held = |settlement: &&&Settlement| applied.contains_key(&key(settlement.lease));
    let next = given.firsts.iter().filter(held).flat_map(|settlement| settlement.follow_ups.clone());
    let next: Vec<NewJob> = next.collect();
    let enqueued = enqueue::add_all(&mut &*client, lanes, limit.now, &next).await?;
    let added = enqueued.into_iter().filter_map(|each| match each {
        Enqueued::Created(id) => Some(id.0),
        Enqueued::Existing(_) | Enqueued::Conflict(_) | Enqueued::Replaced(_) => None,
    });
    Ok((rows, added.collect()))
}

/// Runs `settle.sql`.
async fn apply(
    to: &(impl Query + Sync),
    limit: &Limit,
    given: &Given<'_>,
    follow_ups: &FollowUps<'_>,
) -> Result<Vec<Row>, StoreError> {
    let mut parameters: Vec<Parameter<'_>> = limit.parameters().to_vec();
    parameters.extend(given.parameters());
    parameters.extend(follow_ups.parameters());
    let rows = to.typed(include_str!("../sql/settle.sql"), &parameters).await?;
    if rows.first().ok_or_else(nothing)?.try_get("late").sorted()? {
        return Err(Start::too_far().into());
    }
    Ok(rows)
}

/// What a settlement came to.
struct Applied {
    state: State,
    lane: i32,
    partition: Option<String>,
    strict: bool,
    /// Whether it can be claimed again at once.
    due: bool,
}

/// What settlements came to, by their leases.
fn applied(rows: &[Row]) -> Result<HashMap<(Uuid, i64), Applied>, StoreError> {
    let mut applied = HashMap::with_capacity(rows.len());
    for row in rows {
        let Some(id) = row.try_get::<_, Option<Uuid>>("id").sorted()? else { continue };
        let (epoch, code): (i64, i16) = (row.try_get("epoch").sorted()?, row.try_get("state").sorted()?);
        let state = row::state(code);
        let one = Applied {
            state: state.ok_or_else(|| StoreError::Corrupt(format!("job {id}: {code} is no state")))?,
            lane: row.try_get("lane").sorted()?,
            partition: row.try_get("partition").sorted()?,
            strict: row.try_get("strict").sorted()?,
            due: row.try_get("due").sorted()?,
        };
        applied.insert((id, epoch), one);
    }
    Ok(applied)
}

impl Applied {
    /// The place that the job has left in its partition, if it has one.
    fn left(self, settlement: &Settlement, added: &HashSet<Uuid>) -> Option<Left> {
        let partition = self.partition?;
        let beside = |job: &&NewJob| {
            let any = job.partition.as_ref().filter(|of| of.order == Order::Any);
            added.contains(&job.id.0) && any.map(|of| of.scope(&job.queue)).as_ref() == Some(&partition)
        };
        let added = settlement.follow_ups.iter().filter(beside).map(|job| job.start).collect();
        Some(Left {
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

fn key(lease: Lease) -> (Uuid, i64) {
    (lease.id.0, lease.epoch as i64)
}

/// Settlements as columns, in the order of `settle.sql`.
#[derive(Default)]
struct Given<'a> {
    /// The first settlement of each lease, as they were given.
    firsts: Vec<&'a Settlement>,
    ids: Vec<Uuid>,
    epochs: Vec<i64>,
    states: Vec<i16>,
    states_if_cancelling: Vec<i16>,
    waits: Vec<Option<i64>>,
    refunds: Vec<i32>,
    budget_pauses: Vec<i64>,
    errors: Vec<Option<&'a str>>,
    statuses: Vec<Option<i32>>,
    reasons: Vec<Option<&'static str>>,
    outputs: Vec<Option<&'a [u8]>>,
    awaits: Awaits<'a>,
    entries: Entries<'a>,
}

/// What settled jobs wait for as columns.
#[derive(Default)]
struct Awaits<'a> {
    codes: Vec<Option<i16>>,
    names: Vec<Option<&'a str>>,
    branches: Vec<Option<i32>>,
    failures: Vec<Option<i64>>,
}

impl<'a> Awaits<'a> {
    fn push(&mut self, awaits: Option<&'a Await>) {
        let (code, name, branch, failures) = match awaits {
            None => (None, None, None, None),
            Some(Await::Signal(name)) => (Some(row::SIGNAL), Some(name.as_str()), None, None),
            Some(Await::Children { branch, failures_max }) => {
                (Some(row::CHILDREN), None, Some(*branch as i32), Some(i64::from(*failures_max)))
            }
            Some(Await::Unhold) => (Some(row::UNHOLD), None, None, None),
            Some(Await::Turn) => (Some(row::TURN), None, None, None),
        };
        self.codes.push(code);
        self.names.push(name);
        self.branches.push(branch);
        self.failures.push(failures);
    }
}

/// Log entries as columns.
#[derive(Default)]
struct Entries<'a> {
    jobs: Vec<Uuid>,
    epochs: Vec<i64>,
    runs: Vec<i32>,
    attempts: Vec<i32>,
    started_at: Vec<i64>,
    durations: Vec<i64>,
    outcomes: Vec<&'a str>,
    errors: Vec<Option<&'a str>>,
    details: Vec<Option<&'a str>>,
}

/// Jobs that follow settlements as columns, each with the lease that it follows.
#[derive(Default)]
struct FollowUps<'a> {
    follows: Vec<Uuid>,
    epochs: Vec<i64>,
    jobs: Columns<'a>,
}

impl<'a> FollowUps<'a> {
    fn new(given: &Given<'a>, lanes: &Lanes) -> Result<Self, StoreError> {
        let jobs = given.firsts.iter().flat_map(|settlement| &settlement.follow_ups);
        let mut follow_ups = Self { jobs: Columns::new(jobs, lanes)?, ..Self::default() };
        for settlement in &given.firsts {
            let (id, epoch) = key(settlement.lease);
            follow_ups.follows.extend(settlement.follow_ups.iter().map(|_| id));
            follow_ups.epochs.extend(settlement.follow_ups.iter().map(|_| epoch));
        }
        Ok(follow_ups)
    }

    fn parameters(&self) -> impl Iterator<Item = Parameter<'_>> {
        let leases: [Parameter<'_>; 2] =
            [(&self.follows, Type::UUID_ARRAY), (&self.epochs, Type::INT8_ARRAY)];
        leases.into_iter().chain(self.jobs.parameters())
    }
}

impl<'a> Given<'a> {
    /// Ordered by id, so that writers of the same rows wait for each other in the same order.
    fn new(settlements: &'a [Settlement]) -> Self {
        let mut seen = HashSet::with_capacity(settlements.len());
        let firsts: Vec<&Settlement> =
            settlements.iter().filter(|settlement| seen.insert(settlement.lease)).collect();
        let mut ordered = firsts.clone();
        ordered.sort_by_key(|settlement| settlement.lease);
        let mut given = Self { firsts, ..Self::default() };
        for settlement in ordered {
            given.push(settlement);
        }
        given
    }

    fn push(&mut self, settlement: &'a Settlement) {
        let effect = settlement.verdict.effect();
        let (id, epoch) = key(settlement.lease);
        self.ids.push(id);
        self.epochs.push(epoch);
        self.states.push(effect.state.code().into());
        self.states_if_cancelling.push(effect.state_if_cancelling.code().into());
        self.waits.push(effect.wait.map(ceil_ms));
        self.refunds.push(effect.refund as i32);
        self.budget_pauses.push(ceil_ms(effect.budget_pause));
        self.errors.push(settlement.error.as_deref());
        self.statuses.push(settlement.status.map(i32::from));
        self.reasons.push(settlement.verdict.reason().map(Reason::name));
        self.outputs.push(settlement.verdict.output());
        self.awaits.push(settlement.verdict.awaits());
        if let Some(entry) = &settlement.entry {
            let entries = &mut self.entries;
            entries.jobs.push(id);
            entries.epochs.push(epoch);
            entries.runs.push(entry.run as i32);
            entries.attempts.push(entry.attempt as i32);
            entries.started_at.push(entry.started_at.as_ms());
            entries.durations.push(ceil_ms(entry.duration));
            entries.outcomes.push(&entry.outcome);
            entries.errors.push(entry.error.as_deref());
            entries.details.push(entry.detail.as_deref());
        }
    }

    fn parameters(&self) -> [Parameter<'_>; 24] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.epochs, Type::INT8_ARRAY),
            (&self.states, Type::INT2_ARRAY),
            (&self.states_if_cancelling, Type::INT2_ARRAY),
            (&self.waits, Type::INT8_ARRAY),
            (&self.refunds, Type::INT4_ARRAY),
            (&self.budget_pauses, Type::INT8_ARRAY),
            (&self.errors, Type::TEXT_ARRAY),
            (&self.statuses, Type::INT4_ARRAY),
            (&self.reasons, Type::TEXT_ARRAY),
            (&self.outputs, Type::BYTEA_ARRAY),
            (&self.awaits.codes, Type::INT2_ARRAY),
            (&self.awaits.names, Type::TEXT_ARRAY),
            (&self.awaits.branches, Type::INT4_ARRAY),
            (&self.awaits.failures, Type::INT8_ARRAY),
            (&self.entries.jobs, Type::UUID_ARRAY),
            (&self.entries.epochs, Type::INT8_ARRAY),
            (&self.entries.runs, Type::INT4_ARRAY),
            (&self.entries.attempts, Type::INT4_ARRAY),
            (&self.entries.started_at, Type::INT8_ARRAY),
            (&self.entries.durations, Type::INT8_ARRAY),
            (&self.entries.outcomes, Type::TEXT_ARRAY),
            (&self.entries.errors, Type::TEXT_ARRAY),
            (&self.entries.details, Type::TEXT_ARRAY),
        ]
    }
}
