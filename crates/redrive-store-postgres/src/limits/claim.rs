//! Leases due jobs from queues with limits, or with partition keys.
//!
//! A claim selects candidates, locks their queues and partitions, counts the running jobs there, decides about one candidate after
//! the other, and writes the decisions. The order matters: the counting statement starts after the locks are held, so that its counts
//! stay true whatever other nodes claim. Each round is a transaction of its own, because its locks must be taken in order.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use redrive_core::capacity::{Admission, Candidate, Capacity, LimitsByQueue, RecentStarts};
use redrive_core::queue_limits::Limits;
use redrive_core::store::ClaimRequest;
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, Kind, Queue, QueueLimits, Timestamp};
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::limits::locks;
use crate::open::Inner;
use crate::pool::Executor;
use crate::row::{self, JobRow};
use crate::sql;

static LANES_WITH_LIMITS: Statement = sql::LIMITS.statement("lanes_with_limits");
static COUNT_USAGE: Statement = sql::LIMITS.statement("count_usage");
static APPLY_CLAIM: Statement = sql::LIMITS.statement("apply_claim");
static NEXT_DUE: Statement = sql::LIMITS.statement("next_due");

static CLAIM_CANDIDATES: Statement = sql::LIFECYCLE.statement("claim_candidates");

/// The maximum number of rounds of one claim. Jobs that are still due after that wait for the next claim.
const ROUNDS_MAX: usize = 16;
/// The minimum number of candidates in a round, because jobs that must wait for a slot often follow each other.
const CANDIDATES_MIN: usize = 16;

/// The row of a due job that a claim decides about.
#[derive(Debug)]
struct CandidateRow {
    id: Uuid,
    lane: i32,
    state: i16,
    next_run_at: i64,
    partition: Option<String>,
    strict: bool,
}

impl CandidateRow {
    fn candidate(&self) -> Candidate<'_> {
        Candidate { id: JobId(self.id), partition: self.partition.as_deref(), strict: self.strict }
    }
}

/// The limits that this node knows of. They only save a statement that would lease nothing: the statement itself checks the limits
/// in the database.
#[derive(Debug, Default)]
pub(crate) struct KnownLimits {
    claims: HashSet<(Vec<Queue>, Vec<Kind>)>,
    queues: HashSet<Queue>,
}

impl KnownLimits {
    /// Whether the last claim from the same queues and kinds had limits.
    pub(crate) fn apply_to_claim(&self, request: &ClaimRequest) -> bool {
        !self.claims.is_empty() && self.claims.contains(&claim_key(request))
    }

    /// Whether any queue is known to have limits.
    pub(crate) fn cover_any_queue(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Whether this queue is known to have limits.
    pub(crate) fn cover_queue(&self, queue: &Queue) -> bool {
        self.queues.contains(queue)
    }

    fn update(&mut self, request: &ClaimRequest, scope: &ClaimScope) {
        if scope.is_limited() {
            self.claims.insert(claim_key(request));
        } else {
            self.claims.remove(&claim_key(request));
        }
        for queue in scope.lanes.values() {
            if scope.limits.contains_key(queue.as_str()) {
                self.queues.insert(queue.clone());
            } else {
                self.queues.remove(queue);
            }
        }
    }
}

fn claim_key(request: &ClaimRequest) -> (Vec<Queue>, Vec<Kind>) {
    (request.queues.clone(), request.kinds.clone())
}

/// The result of a claim under limits.
pub(crate) struct LimitedClaim {
    pub(crate) rows: Vec<JobRow>,
    pub(crate) now: Timestamp,
    pub(crate) next_due: Option<Timestamp>,
}

pub(crate) async fn claim(inner: &Inner, request: &ClaimRequest) -> Result<LimitedClaim> {
    let mut scope = read_scope(inner, request).await?;
    inner.known_limits().update(request, &scope);
    let mut capacity = count(&*inner.pool, inner.manual_now(), &scope, &BTreeMap::new()).await?;
    let mut claimed = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let left = request.limit - claimed.len();
        let lanes = lanes_with_slots(&scope, &capacity, left);
        if left == 0 || lanes.is_empty() {
            break;
        }
        match claim_round(inner, request, &scope, &lanes, left).await {
            Ok(round) => {
                claimed.extend(round.rows);
                scope.limits = round.capacity.limits.clone();
                capacity = round.capacity;
                if !round.again {
                    break;
                }
            }
            // The caller gets the jobs that earlier rounds leased.
            Err(_) if !claimed.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    let next_due = match next_due(inner, &scope, &capacity).await {
        Err(_) if !claimed.is_empty() => Some(capacity.now),
        next_due => next_due?,
    };
    Ok(LimitedClaim { rows: claimed, now: capacity.now, next_due })
}

/// The lanes of a claim with their queues, and the limits of these queues.
struct ClaimScope {
    lanes: BTreeMap<i32, Queue>,
    partitioned: bool,
    limits: LimitsByQueue,
}

impl ClaimScope {
    fn is_limited(&self) -> bool {
        self.partitioned || !self.limits.is_empty()
    }

    fn queues(&self) -> Vec<&str> {
        let queues: BTreeSet<&str> = self.lanes.values().map(Queue::as_str).collect();
        queues.into_iter().collect()
    }
}

async fn read_scope(inner: &Inner, request: &ClaimRequest) -> Result<ClaimScope> {
    let queues: Vec<&str> = request.queues.iter().map(Queue::as_str).collect();
    let kinds: Vec<&str> = request.kinds.iter().map(Kind::as_str).collect();
    let sql = &LANES_WITH_LIMITS;
    let rows = inner.pool.query(sql, &[(&queues, Type::TEXT_ARRAY), (&kinds, Type::TEXT_ARRAY)]).await?;
    let mut scope = ClaimScope { lanes: BTreeMap::new(), partitioned: false, limits: LimitsByQueue::new() };
    for row in &rows {
        let queue = Queue::new(row.try_get::<_, &str>("queue")?)?;
        if let Some(limits) = row.try_get::<_, Option<&[u8]>>("limits")? {
            scope.limits.insert(queue.to_string(), QueueLimits::read(limits));
        }
        scope.partitioned |= row.try_get::<_, bool>("partitioned")?;
        scope.lanes.insert(row.try_get("lane")?, queue);
    }
    Ok(scope)
}

/// The lanes whose queue has free slots, with the number of candidates that each may give. A queue with few free slots gives few
/// candidates, so that few rows are locked.
fn lanes_with_slots(scope: &ClaimScope, capacity: &Capacity, left: usize) -> BTreeMap<i32, usize> {
    let most = left.max(CANDIDATES_MIN);
    let free = |queue: &Queue| usize::try_from(capacity.free_queue_slots(queue)).unwrap_or(usize::MAX);
    let lanes = scope.lanes.iter().map(|(lane, queue)| (*lane, free(queue)));
    let open = lanes.filter(|(_, free)| *free > 0);
    open.map(|(lane, free)| (lane, free.saturating_mul(2).max(CANDIDATES_MIN).min(most))).collect()
}

/// The result of one round of a claim.
struct RoundResult {
    rows: Vec<JobRow>,
    capacity: Capacity,
    /// Whether another round may find more jobs, because this one skipped some.
    again: bool,
}

async fn claim_round(
    inner: &Inner,
    request: &ClaimRequest,
    scope: &ClaimScope,
    lanes: &BTreeMap<i32, usize>,
    left: usize,
) -> Result<RoundResult> {
    let now = inner.manual_now();
    let claiming = inner.pool.transaction(async |client| {
        let due = select_candidates(client, now, lanes, left).await?;
        let partitions = limited_partitions(scope, &due);
        lock(client, scope, &due, &partitions).await?;
        let mut capacity = count(client, now, scope, &partitions).await?;
        // Limits that changed meanwhile may need other locks.
        if capacity.limits != scope.limits {
            return Ok((vec![], capacity, Decisions { again: true, ..Decisions::default() }));
        }
        let decisions = decide(&mut capacity, scope, lanes, due, left);
        Ok((apply(client, request, &capacity, &decisions).await?, capacity, decisions))
    });
    let (rows, capacity, decisions) = claiming.await.inspect_err(|_| inner.claim_positions().forget())?;
    inner.claim_positions().lower_lanes(&decisions.skipped);
    let lanes = inner.lanes_of(&rows).await?;
    Ok(RoundResult { rows: row::read_all(&rows, &lanes)?, capacity, again: decisions.again })
}

async fn select_candidates(
    client: &Client,
    now: Option<i64>,
    lanes: &BTreeMap<i32, usize>,
    left: usize,
) -> Result<Vec<CandidateRow>> {
    let numbers: Vec<i32> = lanes.keys().copied().collect();
    let most: Vec<i64> = lanes.values().map(|most| *most as i64).collect();
    let limit = left.max(CANDIDATES_MIN) as i64;
    let rows = client
        .run(
            &CLAIM_CANDIDATES,
            &[
                (&now, Type::INT8),
                (&numbers, Type::INT4_ARRAY),
                (&most, Type::INT8_ARRAY),
                (&limit, Type::INT8),
            ],
        )
        .await?;
    let candidate = |row: &Row| {
        Ok(CandidateRow {
            id: row.try_get("id")?,
            lane: row.try_get("lane")?,
            state: row.try_get("state")?,
            next_run_at: row.try_get("next_run_at")?,
            partition: row.try_get("partition")?,
            strict: row.try_get("strict")?,
        })
    };
    rows.iter().map(candidate).collect()
}

/// The partitions of the candidates that have limits or a strict order.
fn limited_partitions<'a>(scope: &ClaimScope, due: &'a [CandidateRow]) -> BTreeMap<&'a str, Limits> {
    let per_key = |job: &CandidateRow| {
        let queue = scope.lanes.get(&job.lane);
        queue
            .and_then(|queue| scope.limits.get(queue.as_str()))
            .map(|limits| limits.per_key)
            .unwrap_or_default()
    };
    let limited = due.iter().filter(|job| job.strict || per_key(job) != Limits::default());
    limited.filter_map(|job| Some((job.partition.as_deref()?, per_key(job)))).collect()
}

async fn lock(
    client: &Client,
    scope: &ClaimScope,
    due: &[CandidateRow],
    partitions: &BTreeMap<&str, Limits>,
) -> Result<()> {
    let queues = due.iter().filter_map(|job| scope.lanes.get(&job.lane)).map(Queue::as_str);
    let queues = queues.filter(|queue| scope.limits.contains_key(*queue));
    let scopes: Vec<&str> = queues.chain(partitions.keys().copied()).collect();
    if !scopes.is_empty() {
        locks::lock(client, scopes, &[]).await?;
    }
    Ok(())
}

/// Counts the running jobs and the recent starts in the queues of a claim and in these partitions.
async fn count(
    on: &(impl Executor + Sync),
    now: Option<i64>,
    scope: &ClaimScope,
    partitions: &BTreeMap<&str, Limits>,
) -> Result<Capacity> {
    let interval = |limits: &Limits| limits.rate.map(|rate| ceil_ms(rate.per()));
    let (queues, queue_intervals): (Vec<&str>, Vec<Option<i64>>) =
        scope.limits.iter().map(|(queue, limits)| (queue.as_str(), interval(&limits.queue_wide()))).unzip();
    let (scopes, intervals): (Vec<&str>, Vec<Option<i64>>) =
        partitions.iter().map(|(scope, limits)| (*scope, interval(limits))).unzip();
    let rows = on
        .run(
            &COUNT_USAGE,
            &[
                (&now, Type::INT8),
                (&scope.queues(), Type::TEXT_ARRAY),
                (&queues, Type::TEXT_ARRAY),
                (&queue_intervals, Type::INT8_ARRAY),
                (&scopes, Type::TEXT_ARRAY),
                (&intervals, Type::INT8_ARRAY),
            ],
        )
        .await?;
    let mut capacity = Capacity::default();
    for row in &rows {
        add_usage(&mut capacity, row)?;
    }
    Ok(capacity)
}

/// Adds a row of the statement `count_usage`.
fn add_usage(capacity: &mut Capacity, row: &Row) -> Result<()> {
    let number = || Ok::<_, Error>(row.try_get::<_, Option<i64>>("number")?.unwrap_or_default());
    let scope = || row.try_get::<_, String>("scope");
    match row.try_get::<_, i32>("what")? {
        0 => capacity.now = Timestamp::from_ms(number()?),
        1 => drop(capacity.limits.insert(scope()?, QueueLimits::read(row.try_get("value")?))),
        2 => drop(capacity.running.insert(scope()?, u64::try_from(number()?).unwrap_or_default())),
        3 => {
            let at = Timestamp::from_ms(row.try_get("at")?);
            let starts: &mut RecentStarts = capacity.starts.entry(scope()?).or_default();
            starts.before.push((at, number()?.unsigned_abs()));
        }
        _ => {
            if let Some(id) = row.try_get::<_, Option<Uuid>>("id")? {
                capacity.first.insert(scope()?, JobId(id));
            }
        }
    }
    Ok(())
}

/// The decisions about candidates.
#[derive(Default)]
struct Decisions {
    leased: Vec<CandidateRow>,
    waiting: Vec<CandidateRow>,
    delayed: Vec<(Uuid, Timestamp)>,
    /// Lanes with the earliest due time of the candidates that stay as they are.
    skipped: HashMap<i32, i64>,
    again: bool,
}

impl Decisions {
    fn skip(&mut self, job: &CandidateRow) {
        let at = self.skipped.entry(job.lane).or_insert(job.next_run_at);
        *at = job.next_run_at.min(*at);
    }
}

/// Decides about candidates in their order. A lane that gave as many candidates as it may give can have more due jobs. Once one of its
/// candidates was not leased, no later candidate of the queue may overtake those jobs.
fn decide(
    capacity: &mut Capacity,
    scope: &ClaimScope,
    lanes: &BTreeMap<i32, usize>,
    due: Vec<CandidateRow>,
    left: usize,
) -> Decisions {
    let mut decisions = Decisions::default();
    let mut decided: HashMap<i32, (usize, bool)> = HashMap::new();
    let mut stopped: HashSet<&Queue> = HashSet::new();
    for job in due {
        let Some(queue) = scope.lanes.get(&job.lane) else { continue };
        if decisions.leased.len() == left || stopped.contains(queue) {
            decisions.again |= decisions.leased.len() < left;
            decisions.skip(&job);
            continue;
        }
        let admission = capacity.admit(queue, job.candidate());
        let (count, missed) = decided.entry(job.lane).or_default();
        *count += 1;
        *missed |= admission != Admission::Take;
        if *missed && lanes.get(&job.lane) == Some(count) {
            stopped.insert(queue);
        }
        decisions.again |= admission != Admission::Take;
        match admission {
            Admission::Take => decisions.leased.push(job),
            Admission::Skip => decisions.skip(&job),
            Admission::WaitForSlot => decisions.waiting.push(job),
            Admission::Delay(at) => decisions.delayed.push((job.id, at)),
        }
    }
    decisions
}

/// Writes the decisions, and returns the leased jobs.
async fn apply(
    client: &Client,
    request: &ClaimRequest,
    capacity: &Capacity,
    decisions: &Decisions,
) -> Result<Vec<Row>> {
    let Decisions { leased, waiting, delayed, .. } = decisions;
    if leased.is_empty() && waiting.is_empty() && delayed.is_empty() {
        return Ok(vec![]);
    }
    let ids = |jobs: &[CandidateRow]| jobs.iter().map(|job| job.id).collect::<Vec<Uuid>>();
    let (delayed, until): (Vec<Uuid>, Vec<i64>) = delayed.iter().map(|(id, at)| (*id, at.as_ms())).unzip();
    let started = capacity.starts.iter().filter(|(_, starts)| starts.added > 0);
    let (scopes, starts): (Vec<&str>, Vec<i64>) =
        started.map(|(scope, starts)| (scope.as_str(), starts.added as i64)).unzip();
    let changed = || leased.iter().chain(waiting);
    let lanes: Vec<i32> = changed().map(|job| job.lane).collect();
    let states: Vec<i16> = changed().map(|job| job.state).collect();
    let is_leased: Vec<bool> = (0..lanes.len()).map(|index| index < leased.len()).collect();
    client
        .run(
            &APPLY_CLAIM,
            &[
                (&capacity.now.as_ms(), Type::INT8),
                (&ids(leased), Type::UUID_ARRAY),
                (&request.worker.as_str(), Type::TEXT),
                (&ceil_ms(request.lease), Type::INT8),
                (&ids(waiting), Type::UUID_ARRAY),
                (&delayed, Type::UUID_ARRAY),
                (&until, Type::INT8_ARRAY),
                (&scopes, Type::TEXT_ARRAY),
                (&starts, Type::INT8_ARRAY),
                (&lanes, Type::INT4_ARRAY),
                (&states, Type::INT2_ARRAY),
                (&is_leased, Type::BOOL_ARRAY),
            ],
        )
        .await
}

/// When the next job is due whose queue has a free slot, or when a rate limit allows the next start.
async fn next_due(inner: &Inner, scope: &ClaimScope, capacity: &Capacity) -> Result<Option<Timestamp>> {
    let lanes: Vec<i32> = scope.lanes.keys().copied().collect();
    let rows = inner.pool.query(&NEXT_DUE, &[(&lanes, Type::INT4_ARRAY)]).await?;
    let mut next = None;
    for row in &rows {
        let queue = Queue::new(row.try_get::<_, &str>("queue")?)?;
        let first = Timestamp::from_ms(row.try_get("due")?);
        let first = match capacity.free_queue_slots(&queue) {
            0 => capacity.queue_free_at(&queue).map(|free| first.max(free)),
            _ => Some(first),
        };
        next = [next, first].into_iter().flatten().min();
    }
    Ok(next)
}
