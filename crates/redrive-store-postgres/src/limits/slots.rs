//! Gives slots of partitions to waiting jobs, after a job has vacated one, or on a resume.

use std::collections::{BTreeSet, HashMap};

use redrive_core::capacity::LimitsByQueue;
use redrive_core::queue_limits::Limits;
use redrive_core::{Order, Partition};
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::limits::locks;
use crate::open::Inner;
use crate::planned_function::PlannedFunction;
use crate::pool::{Executor, Parameter};
use crate::sql;

static GIVE_SLOTS: Statement = sql::LIMITS.statement("give_slots");
static READ_PARTITIONS: Statement = sql::LIMITS.statement("read_partitions");
pub(crate) static FIND_SLOT_WAITERS: PlannedFunction =
    PlannedFunction::new(sql::LIMITS, "find_slot_waiters", "", &["found boolean"]);
pub(crate) static FIND_PARTITIONS_TO_SERVE: PlannedFunction =
    PlannedFunction::new(sql::LIMITS, "find_partitions_to_serve", "text[]", &["scope text"]);

/// The maximum number of jobs of a partition that get a slot at once if its limits were removed. A sweep finds the others.
const NEXT_MAX: i64 = 1_000;
/// How often this node tries to give slots. After that, a sweep does it.
const GIVE_SLOTS_TRIES: u32 = 3;

/// A job that waits for a slot.
#[derive(Debug)]
pub(crate) struct SlotRequest {
    pub(crate) id: Uuid,
    pub(crate) partition: Option<String>,
    pub(crate) strict: bool,
    pub(crate) due: bool,
}

/// A partition at one moment.
#[derive(Debug)]
struct PartitionState {
    /// How many jobs may run at once.
    slots: Option<u32>,
    running: u64,
    /// Due jobs without strict order that can be claimed. They get slots before the jobs that wait.
    claimable: u64,
    /// The first job in strict order that has not ended, and whether it waits for a slot.
    first: Option<(Uuid, bool)>,
    /// The other jobs that wait for a slot, in order.
    waiting: Vec<SlotWaiter>,
}

/// A job without strict order that waits for a slot.
#[derive(Debug, Clone, Copy)]
struct SlotWaiter {
    id: Uuid,
    due: bool,
}

/// Gives the free slots of these partitions to waiting jobs, after other jobs have left theirs. Returns whether a job got one. If this
/// fails, a sweep gives the slots later.
pub(crate) async fn give_slots(inner: &Inner, partitions: &BTreeSet<String>) -> bool {
    let mut tries = 1;
    loop {
        match try_give_slots(inner, partitions).await {
            Ok(resumed) => return resumed,
            Err(error) if error.is_busy() && tries < GIVE_SLOTS_TRIES => tries += 1,
            Err(error) => {
                tracing::warn!(
                    error = error.explain(),
                    "could not give a free slot to a waiting job; the next sweep does it"
                );
                return false;
            }
        }
    }
}

async fn try_give_slots(inner: &Inner, partitions: &BTreeSet<String>) -> Result<bool> {
    let now = inner.manual_now();
    let partitions = find_partitions_to_serve(inner, partitions).await?;
    if partitions.is_empty() {
        return Ok(false);
    }
    let giving = inner.pool.transaction(async |client| {
        let limits = lock(inner, client, &partitions).await?;
        let states = read_partitions(client, now, &partitions, &limits).await?;
        make_due(client, states.values().flat_map(PartitionState::next_for_slots).collect()).await
    });
    Ok(!announce(inner, &giving.await?)?.is_empty())
}

/// Gives free slots to these jobs, in this order, as long as there are any. Returns the jobs that got one.
pub(crate) async fn take_slots(inner: &Inner, requests: &[SlotRequest]) -> Result<BTreeSet<Uuid>> {
    let now = inner.manual_now();
    let partitions: BTreeSet<String> =
        requests.iter().filter_map(|request| request.partition.clone()).collect();
    let taking = inner.pool.transaction(async |client| {
        let limits = lock(inner, client, &partitions).await?;
        let mut states = read_partitions(client, now, &partitions, &limits).await?;
        make_due(client, choose(requests, &mut states)).await
    });
    announce(inner, &taking.await?)
}

/// Locks partitions, and returns the limits of their queues.
async fn lock(inner: &Inner, client: &Client, partitions: &BTreeSet<String>) -> Result<LimitsByQueue> {
    let queues: BTreeSet<&str> =
        partitions.iter().map(|partition| Partition::queue_of_scope(partition)).collect();
    let queues: Vec<&str> = queues.into_iter().collect();
    locks::lock(inner, client, partitions.iter().map(String::as_str), &queues).await
}

/// Makes jobs claimable at their old due times. Returns their rows.
async fn make_due(client: &Client, ids: Vec<Uuid>) -> Result<Vec<Row>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    client.run(&GIVE_SLOTS, &[(&ids, Type::UUID_ARRAY)]).await
}

/// Lowers the positions of reads to the due times of these jobs, and returns the ids. Claims under limits have no positions.
fn announce(inner: &Inner, rows: &[Row]) -> Result<BTreeSet<Uuid>> {
    let (mut ids, mut early) = (BTreeSet::new(), HashMap::new());
    for row in rows {
        ids.insert(row.try_get("id")?);
        let due: i64 = row.try_get("due")?;
        early
            .entry(row.try_get("lane")?)
            .and_modify(|first: &mut i64| *first = due.min(*first))
            .or_insert(due);
    }
    inner.claim_positions().lower_oldest_due(&early);
    Ok(ids)
}

/// Leaves out the partitions in which nothing is to do, which are most. That needs no lock, and costs far less than reading their numbers.
async fn find_partitions_to_serve(inner: &Inner, partitions: &BTreeSet<String>) -> Result<BTreeSet<String>> {
    let rows = inner.pool.query(inner.sql(&FIND_SLOT_WAITERS), &[]).await?;
    if !rows.first().ok_or_else(Error::no_row)?.try_get::<_, bool>("found")? {
        return Ok(BTreeSet::new());
    }
    let scopes: Vec<&str> = partitions.iter().map(String::as_str).collect();
    let rows = inner.pool.query(inner.sql(&FIND_PARTITIONS_TO_SERVE), &[(&scopes, Type::TEXT_ARRAY)]).await?;
    rows.iter().map(|row| Ok(row.try_get("scope")?)).collect()
}

async fn read_partitions(
    client: &Client,
    now: Option<i64>,
    partitions: &BTreeSet<String>,
    limits: &LimitsByQueue,
) -> Result<HashMap<String, PartitionState>> {
    let slots_of = |partition: &str| {
        limits.get(Partition::queue_of_scope(partition)).and_then(|limits| limits.per_key.concurrency)
    };
    let scopes: Vec<&str> = partitions.iter().map(String::as_str).collect();
    // More running or claimable jobs than slots need not be counted.
    let most: Vec<i64> = scopes.iter().map(|scope| slots_of(scope).map_or(0, i64::from)).collect();
    let next: Vec<i64> =
        scopes.iter().map(|scope| slots_of(scope).map_or(NEXT_MAX, i64::from).min(NEXT_MAX)).collect();
    let parameters: [Parameter<'_>; 4] = [
        (&now, Type::INT8),
        (&scopes, Type::TEXT_ARRAY),
        (&most, Type::INT8_ARRAY),
        (&next, Type::INT8_ARRAY),
    ];
    let rows = client.run(&READ_PARTITIONS, &parameters).await?;
    let state = |row: &Row| {
        let partition: String = row.try_get("scope")?;
        let slots = slots_of(&partition);
        Ok((partition, PartitionState::read(row, slots)?))
    };
    rows.iter().map(state).collect()
}

impl PartitionState {
    fn read(row: &Row, slots: Option<u32>) -> Result<Self> {
        let number = |name: &str| row.try_get::<_, i64>(name).map(i64::unsigned_abs);
        let first: Option<Uuid> = row.try_get("first")?;
        let first_waits = row.try_get("first_waits")?;
        let ids: Option<Vec<Uuid>> = row.try_get("ids")?;
        let due: Option<Vec<bool>> = row.try_get("due")?;
        let waiting = ids.into_iter().flatten().zip(due.into_iter().flatten());
        Ok(Self {
            slots,
            running: number("running")?,
            claimable: number("claimable")?,
            first: first.map(|id| (id, first_waits)),
            waiting: waiting.map(|(id, due)| SlotWaiter { id, due }).collect(),
        })
    }

    fn may_resume(&self, order: Order) -> bool {
        Limits { concurrency: self.slots, rate: None }.may_resume(order, self.running, self.claimable)
    }

    /// The waiting jobs that get the free slots: the first job in strict order, then the others in their order.
    fn next_for_slots(&self) -> Vec<Uuid> {
        let strict = self.first.filter(|(_, waits)| *waits && self.may_resume(Order::Strict));
        let mut resumed: Vec<Uuid> = strict.into_iter().map(|(id, _)| id).collect();
        let mut state = Self { waiting: Vec::new(), ..*self };
        for waiter in &self.waiting {
            if !state.may_resume(Order::Any) {
                break;
            }
            resumed.push(waiter.id);
            state.claimable += u64::from(waiter.due);
        }
        resumed
    }
}

/// Chooses those of the jobs that get a slot.
fn choose(requests: &[SlotRequest], states: &mut HashMap<String, PartitionState>) -> Vec<Uuid> {
    let mut resumed = Vec::new();
    for request in requests {
        // A job whose partition key was removed needs no slot.
        let Some(state) = request.partition.as_ref().and_then(|partition| states.get_mut(partition)) else {
            resumed.push(request.id);
            continue;
        };
        let gets_slot = match request.strict {
            true => {
                state.first.is_some_and(|(first, _)| first == request.id) && state.may_resume(Order::Strict)
            }
            false => state.may_resume(Order::Any),
        };
        if gets_slot {
            resumed.push(request.id);
            state.claimable += u64::from(request.due && !request.strict);
        }
    }
    resumed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn state(slots: Option<u32>, running: u64, claimable: u64, waiting: &[u128]) -> PartitionState {
        let waiting = waiting.iter().map(|n| SlotWaiter { id: id(*n), due: true }).collect();
        PartitionState { slots, running, claimable, first: None, waiting }
    }

    fn check(state: &PartitionState, expected: &[u128]) {
        let expected: Vec<Uuid> = expected.iter().map(|n| id(*n)).collect();
        assert_eq!(state.next_for_slots(), expected);
    }

    #[test]
    fn waiting_jobs_get_the_free_slots_in_their_order() {
        check(&state(Some(2), 1, 0, &[7, 8]), &[7]);
        check(&state(Some(2), 0, 0, &[7, 8, 9]), &[7, 8]);
        check(&state(Some(2), 2, 0, &[7]), &[]);
        check(&state(None, 5, 5, &[7, 8]), &[7, 8]);
    }

    #[test]
    fn claimable_jobs_get_slots_before_waiting_ones() {
        check(&state(Some(1), 0, 1, &[7]), &[]);
        check(&state(Some(2), 0, 1, &[7, 8]), &[7]);
    }

    #[test]
    fn the_first_job_in_strict_order_gets_a_slot_only_if_it_waits_for_one() {
        let first = |waits| PartitionState { first: Some((id(5), waits)), ..state(Some(2), 0, 0, &[7, 8]) };
        check(&first(true), &[5, 7, 8]);
        check(&first(false), &[7, 8]);
    }
}
