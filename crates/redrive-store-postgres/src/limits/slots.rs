//! Gives slots of partitions to waiting jobs, after a job has vacated one, or on a resume.

use std::collections::{BTreeSet, HashMap};

use redrive_core::capacity::LimitsByQueue;
use redrive_core::queue_limits::Limits;
use redrive_core::{Order, Partition, Start, Timestamp};
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::error::Result;
use crate::limits::locks;
use crate::open::Inner;
use crate::pool::Executor;
use crate::sql;

static GIVE_SLOTS: Statement = sql::LIMITS.statement("give_slots");
static READ_PARTITIONS: Statement = sql::LIMITS.statement("read_partitions");

/// The maximum number of jobs of a partition that get a slot at once if its limits were removed. A sweep finds the others.
const NEXT_MAX: usize = 1_000;
/// How often this node tries to give slots. After that, a sweep does it.
const GIVE_SLOTS_TRIES: u32 = 3;

/// A slot of a partition that a settled or cancelled job freed.
#[derive(Debug)]
pub(crate) struct VacatedSlot {
    pub(crate) partition: String,
    pub(crate) id: Uuid,
    pub(crate) strict: bool,
    /// Whether the job has ended.
    pub(crate) ended: bool,
    /// Whether the job was running.
    pub(crate) ran: bool,
    /// Whether the job could be claimed before, and whether it can be claimed now.
    pub(crate) was_claimable: bool,
    pub(crate) is_claimable: bool,
    /// The start times of follow-ups that were added to the partition, without those in strict order.
    pub(crate) added: Vec<Start>,
}

/// A job that waited for something when a resume read it.
#[derive(Debug)]
pub(crate) struct WaitingJob {
    pub(crate) id: Uuid,
    pub(crate) partition: Option<String>,
    pub(crate) strict: bool,
    /// Whether it waits for a slot.
    pub(crate) waits_for_slot: bool,
    /// Whether it is due, if it waits for a slot.
    pub(crate) due: bool,
    /// Whether the resume made it claimable.
    pub(crate) became_claimable: bool,
}

/// A partition at one moment.
#[derive(Debug)]
struct PartitionState {
    /// How many jobs may run at once.
    slots: Option<u32>,
    now: Timestamp,
    running: u64,
    claimable: u64,
    /// The first job in strict order that has not ended, and whether it waits for a slot.
    first: Option<(SlotWaiter, bool)>,
    /// The other jobs that wait for a slot, in order.
    waiting: Vec<SlotWaiter>,
}

/// A job that waits for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlotWaiter {
    id: Uuid,
    due: bool,
}

/// Gives vacated slots to waiting jobs, in this order. Returns whether a job got one. If this fails, a sweep gives the
/// slots later, because they are free already.
pub(crate) async fn give_slots(inner: &Inner, vacated: &[VacatedSlot]) -> bool {
    let mut most: HashMap<&str, usize> = HashMap::new();
    for slot in vacated {
        *most.entry(&slot.partition).or_default() += 1 + slot.added.len();
    }
    let mut tries = 1;
    loop {
        let giving = resume(inner, &most, |states| {
            let of = |scope: &str| vacated.iter().filter(|slot| slot.partition == *scope).collect::<Vec<_>>();
            states.iter().flat_map(|(scope, state)| state.give_slots(&of(scope))).collect()
        });
        match giving.await {
            Ok(resumed) => return !resumed.is_empty(),
            // A deadlock with a claim, which may hold locks of rows that it does not lease.
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

/// Gives free slots to those of these jobs that wait for one, in this order. Returns the jobs that got a slot.
pub(crate) async fn take_slots<'a>(
    inner: &Inner,
    waiting_jobs: impl Iterator<Item = &'a WaitingJob>,
) -> Result<BTreeSet<Uuid>> {
    let waiting_jobs: Vec<&WaitingJob> = waiting_jobs.collect();
    let waiters = waiting_jobs.iter().filter(|job| job.waits_for_slot);
    let most = waiters.filter_map(|job| Some((job.partition.as_deref()?, waiting_jobs.len()))).collect();
    resume(inner, &most, |states| choose_next(&waiting_jobs, states)).await
}

/// Reads partitions under their locks, lets `decide` choose the jobs that get a slot, and makes them due. `partitions` says how many
/// jobs beyond the slots of each partition are worth counting.
async fn resume(
    inner: &Inner,
    partitions: &HashMap<&str, usize>,
    decide: impl FnOnce(&HashMap<String, PartitionState>) -> Vec<Uuid>,
) -> Result<BTreeSet<Uuid>> {
    if partitions.is_empty() {
        return make_due(&*inner.pool, decide(&HashMap::new())).await;
    }
    let now = inner.manual_now();
    let resuming = inner.pool.transaction(async |client| {
        let queues: BTreeSet<&str> =
            partitions.keys().map(|partition| Partition::queue_of_scope(partition)).collect();
        let queues: Vec<&str> = queues.into_iter().collect();
        let limits = locks::lock(client, partitions.keys().copied(), &queues).await?;
        let states = read_partitions(client, now, partitions, &limits).await?;
        make_due(client, decide(&states)).await
    });
    resuming.await
}

async fn make_due(on: &(impl Executor + Sync), ids: Vec<Uuid>) -> Result<BTreeSet<Uuid>> {
    if ids.is_empty() {
        return Ok(BTreeSet::new());
    }
    let rows = on.run(&GIVE_SLOTS, &[(&ids, Type::UUID_ARRAY)]).await?;
    rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
}

async fn read_partitions(
    client: &Client,
    now: Option<i64>,
    partitions: &HashMap<&str, usize>,
    limits: &LimitsByQueue,
) -> Result<HashMap<String, PartitionState>> {
    let slots_of = |partition: &str| {
        limits.get(Partition::queue_of_scope(partition)).and_then(|limits| limits.per_key.concurrency)
    };
    let (mut scopes, mut most, mut next) = (Vec::new(), Vec::new(), Vec::new());
    for (partition, more) in partitions {
        let slots = slots_of(partition).map(|slots| slots as usize);
        scopes.push(*partition);
        most.push(slots.map_or(0, |slots| slots + more + 1) as i64);
        next.push(slots.unwrap_or(NEXT_MAX).min(NEXT_MAX) as i64);
    }
    let sql = &READ_PARTITIONS;
    let rows = client
        .run(
            sql,
            &[
                (&now, Type::INT8),
                (&scopes, Type::TEXT_ARRAY),
                (&most, Type::INT8_ARRAY),
                (&next, Type::INT8_ARRAY),
            ],
        )
        .await?;
    let state = |row: &Row| {
        let partition: String = row.try_get("scope")?;
        let slots = slots_of(&partition);
        Ok((partition, PartitionState::read(row, slots)?))
    };
    rows.iter().map(state).collect()
}

impl PartitionState {
    fn read(row: &Row, slots: Option<u32>) -> Result<Self> {
        let number = |name: &str| row.try_get::<_, i64>(name);
        let first: Option<Uuid> = row.try_get("first")?;
        let first_due = row.try_get("first_due")?;
        let first_waits = row.try_get("first_waits")?;
        let ids: Option<Vec<Uuid>> = row.try_get("ids")?;
        let due: Option<Vec<bool>> = row.try_get("due")?;
        let waiting = ids.into_iter().flatten().zip(due.into_iter().flatten());
        Ok(Self {
            slots,
            now: Timestamp::from_ms(number("now")?),
            running: number("running")?.unsigned_abs(),
            claimable: number("claimable")?.unsigned_abs(),
            first: first.map(|id| (SlotWaiter { id, due: first_due }, first_waits)),
            waiting: waiting.map(|(id, due)| SlotWaiter { id, due }).collect(),
        })
    }

    fn may_resume(&self, order: Order, running: u64, claimable: u64) -> bool {
        Limits { concurrency: self.slots, rate: None }.may_resume(order, running, claimable)
    }

    /// Chooses the jobs that get the vacated slots. All slots are vacated and all follow-ups added by now. The counts are corrected,
    /// so that the result is as if the jobs had been settled one after the other.
    fn give_slots(&self, vacated: &[&VacatedSlot]) -> Vec<Uuid> {
        let added = |slot: &VacatedSlot| {
            let due =
                slot.added.iter().filter(|start| start.resolve(self.now).is_ok_and(|at| at <= self.now));
            due.count() as u64
        };
        let sum = |count: &dyn Fn(&VacatedSlot) -> u64| vacated.iter().map(|slot| count(slot)).sum::<u64>();
        let mut running = self.running + sum(&|slot| slot.ran.into());
        let mut claimable = (self.claimable + sum(&|slot| (slot.was_claimable && !slot.strict).into()))
            .saturating_sub(sum(&|slot| u64::from(slot.is_claimable && !slot.strict) + added(slot)));
        let mut first = self.first.filter(|(_, waits)| *waits).map(|(first, _)| first);
        let mut waiting = self.waiting.iter().copied().peekable();
        let mut resumed = Vec::new();
        for (index, slot) in vacated.iter().enumerate() {
            running = running.saturating_sub(slot.ran.into());
            if !slot.strict {
                claimable =
                    (claimable + u64::from(slot.is_claimable)).saturating_sub(slot.was_claimable.into());
            }
            let comes_first = |id: Uuid| {
                vacated[index + 1..].iter().all(|later| !(later.strict && later.ended) || later.id > id)
            };
            let strict = first
                .take_if(|first| comes_first(first.id) && self.may_resume(Order::Strict, running, claimable));
            resumed.extend(strict.map(|next| next.id));
            while let Some(next) = waiting.next_if(|_| self.may_resume(Order::Any, running, claimable)) {
                resumed.push(next.id);
                claimable += u64::from(next.due);
            }
            claimable += added(slot);
        }
        resumed
    }
}

/// Chooses those of the waiting jobs that get a slot. All jobs that the resume made claimable are counted by now. The counts are
/// corrected, so that the result is as if the jobs had been resumed one after the other.
fn choose_next(waiting_jobs: &[&WaitingJob], states: &HashMap<String, PartitionState>) -> Vec<Uuid> {
    let mut claimable: HashMap<&str, u64> = HashMap::new();
    for (scope, state) in states {
        let added = waiting_jobs
            .iter()
            .filter(|job| job.became_claimable && !job.strict && job.partition.as_ref() == Some(scope));
        claimable.insert(scope, state.claimable.saturating_sub(added.count() as u64));
    }
    let mut resumed = Vec::new();
    for job in waiting_jobs {
        let scope = job.partition.as_deref().unwrap_or_default();
        let claimable = claimable.entry(scope).or_default();
        let gets_slot = match states.get(scope) {
            None => true,
            Some(state) => {
                let comes_first = !job.strict || state.first.is_some_and(|(first, _)| first.id == job.id);
                let order = if job.strict { Order::Strict } else { Order::Any };
                comes_first && state.may_resume(order, state.running, *claimable)
            }
        };
        let resumes = job.waits_for_slot && gets_slot;
        if resumes {
            resumed.push(job.id);
        }
        *claimable += u64::from(!job.strict && (job.became_claimable || (resumes && job.due)));
    }
    resumed
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_000);

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn state(slots: Option<u32>, running: u64, claimable: u64, waiting: &[u128]) -> PartitionState {
        let waiting = waiting.iter().map(|n| SlotWaiter { id: id(*n), due: true }).collect();
        PartitionState { slots, now: NOW, running, claimable, first: None, waiting }
    }

    fn done(n: u128) -> VacatedSlot {
        let partition = "q\u{1f}k".to_owned();
        let (ran, was_claimable, is_claimable) = (true, false, false);
        let (strict, ended) = (false, true);
        VacatedSlot { partition, id: id(n), strict, ended, ran, was_claimable, is_claimable, added: vec![] }
    }

    fn check(state: &PartitionState, vacated: &[VacatedSlot], expected: &[u128]) {
        let expected: Vec<Uuid> = expected.iter().map(|n| id(*n)).collect();
        assert_eq!(state.give_slots(&vacated.iter().collect::<Vec<_>>()), expected);
    }

    #[test]
    fn each_job_that_ends_lets_one_waiting_job_resume() {
        check(&state(Some(2), 1, 0, &[7, 8]), &[done(1)], &[7]);
        check(&state(Some(2), 0, 0, &[7, 8, 9]), &[done(1), done(2)], &[7, 8]);
        check(&state(Some(2), 2, 0, &[7]), &[done(1)], &[]);
        check(&state(None, 5, 5, &[7, 8]), &[done(1)], &[7, 8]);
    }

    #[test]
    fn claimable_jobs_get_slots_before_waiting_ones() {
        let again = || VacatedSlot { ended: false, is_claimable: true, ..done(1) };
        check(&state(Some(1), 0, 1, &[7]), &[again()], &[]);
        check(
            &state(Some(1), 0, 0, &[7]),
            &[VacatedSlot { was_claimable: true, ran: false, ..done(1) }],
            &[7],
        );
        // A follow-up comes after the jobs that waited.
        check(&state(Some(1), 0, 1, &[7]), &[VacatedSlot { added: vec![Start::Now], ..done(1) }], &[7]);
        check(
            &state(Some(2), 0, 1, &[7, 8]),
            &[VacatedSlot { added: vec![Start::Now], ..done(1) }, done(2)],
            &[7],
        );
    }

    #[test]
    fn strict_order_waits_until_the_earlier_jobs_have_ended() {
        let mut state = state(Some(2), 0, 0, &[7, 8]);
        state.first = Some((SlotWaiter { id: id(5), due: true }, true));
        check(&state, &[done(1)], &[5, 7, 8]);
        check(&state, &[done(1), VacatedSlot { strict: true, ..done(2) }], &[7, 5, 8]);
    }

    #[test]
    fn waiting_jobs_get_slots_in_their_order() {
        let job = |n, waits_for_slot| WaitingJob {
            id: id(n),
            partition: Some("q\u{1f}k".to_owned()),
            strict: false,
            waits_for_slot,
            due: waits_for_slot,
            became_claimable: !waits_for_slot,
        };
        let states = HashMap::from([("q\u{1f}k".to_owned(), state(Some(2), 0, 1, &[]))]);
        let all = [job(1, true), job(2, false), job(3, true)];
        let all: Vec<&WaitingJob> = all.iter().collect();
        assert_eq!(choose_next(&all, &states), [id(1)]);
        assert_eq!(choose_next(&all[1..], &states), [id(3)]);
    }
}
