//! Leases due jobs from queues with limits, or with partition keys.
//!
//! A claim reads candidates, locks their queues and partitions, counts the running jobs there, decides about one candidate after
//! the other, and applies the decisions. The order matters. The locks come before the rows, so that two claims cannot wait for
//! each other. The counting statement starts after the locks are held, so that its counts stay true whatever other nodes claim. If somebody
//! else took a candidate meanwhile, nothing is applied, and the claim decides again without it: its slot is free for the next one. Each
//! round is a transaction of its own, because its locks must be taken in order. It reads the contents of the leased jobs after its
//! commit, without locks.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use redrive_core::capacity::{Admission, Candidate, Capacity, LimitsByQueue};
use redrive_core::store::ClaimRequest;
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, Kind, Queue, QueueLimits, Timestamp};
use tokio::time::sleep;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lifecycle::claim::{FEW_JOBS, PartialClaim};
use crate::limits::usage::{CountExtent, LimitedPartition, count, count_queues, limited_partitions};
use crate::limits::{locks, slots};
use crate::open::Inner;
use crate::planned_function::PlannedFunction;
use crate::pool::{Executor, Parameter};
use crate::row::position::RowPosition;
use crate::row::{ArrivingJobs, JobRow};
use crate::sql;

pub(crate) static LANES_WITH_LIMITS: PlannedFunction = PlannedFunction::new(
    sql::LIMITS,
    "lanes_with_limits",
    "text[], text[]",
    &["lane integer, queue text, partitioned boolean, limits bytea"],
);
pub(crate) static CLAIM_CANDIDATES: PlannedFunction = PlannedFunction::new(
    sql::LIMITS,
    "claim_candidates",
    "bigint, integer[], boolean[], bigint",
    &["row_position tid, id uuid, lane integer, partition text, strict boolean"],
);
pub(crate) static NEXT_DUE: PlannedFunction =
    PlannedFunction::new(sql::LIMITS, "next_due", "integer[]", &["queue text, due bigint"]);
pub(crate) static APPLY_CLAIM: PlannedFunction = PlannedFunction::new(
    sql::LIMITS,
    "apply_claim",
    "bigint, uuid[], tid[], uuid[], uuid[], bigint[], text[], text, bigint",
    &["claims bigint[], with_progress uuid[], found uuid[]"],
);
pub(crate) static READ_LEASED: PlannedFunction =
    PlannedFunction::new(sql::LIMITS, "read_leased", "bigint[], uuid[]", &[sql::TYPED_JOB_COLUMNS]);

/// The maximum number of rounds of one claim. Jobs that are still due after that wait for the next claim.
const ROUNDS_MAX: usize = 16;
/// How often a claim tries to read the jobs that it has leased, and the pause after the first failure. Each further pause is twice as long.
const READ_LEASED_TRIES: u32 = 5;
const READ_LEASED_PAUSE: Duration = Duration::from_millis(100);

/// The row of a due job that a claim decides about.
#[derive(Debug)]
pub(crate) struct CandidateRow {
    position: RowPosition,
    id: Uuid,
    pub(crate) lane: i32,
    pub(crate) partition: Option<String>,
    pub(crate) strict: bool,
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
        for ScopedLane { queue, .. } in scope.lanes.values() {
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

/// A claim from limited lanes, and whether the request has other lanes.
pub(crate) struct LimitedClaim {
    pub(crate) claim: PartialClaim,
    pub(crate) has_other_lanes: bool,
}

/// Claims from the limited lanes of a request those due jobs that come before the jobs of the other lanes.
pub(crate) async fn claim(inner: &Inner, request: &ClaimRequest) -> Result<LimitedClaim> {
    let mut scope = read_scope(inner, request).await?;
    inner.known_limits().update(request, &scope);
    let mut capacity = count_queues(inner, request, &scope).await?;
    let mut claimed = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let left = request.limit - claimed.len();
        if left == 0 || !scope.is_limited() {
            break;
        }
        match claim_round(inner, request, &scope, &capacity, left).await {
            Ok(round) => {
                claimed.extend(round.rows);
                scope.limits = round.capacity.limits.clone();
                capacity = round.capacity;
                if !round.again {
                    break;
                }
            }
            // The caller gets the jobs that earlier rounds leased.
            Err(error) if !claimed.is_empty() => {
                tracing::warn!(
                    error = error.explain(),
                    "a claim could not take all due jobs; jobs that it leased and could not read run when their leases have ended"
                );
                break;
            }
            Err(error) => return Err(error),
        }
    }
    let next_due = match next_due(inner, &scope, &capacity).await {
        Err(_) if !claimed.is_empty() => Some(capacity.now),
        next_due => next_due?,
    };
    let claim = PartialClaim { rows: claimed, now: capacity.now, next_due };
    Ok(LimitedClaim { claim, has_other_lanes: !scope.is_all_limited() })
}

/// The lanes of a claim, and the limits of their queues.
pub(crate) struct ClaimScope {
    lanes: BTreeMap<i32, ScopedLane>,
    pub(crate) limits: LimitsByQueue,
}

struct ScopedLane {
    queue: Queue,
    /// Whether its queue has limits, or its jobs have partition keys.
    limited: bool,
}

impl ClaimScope {
    fn is_limited(&self) -> bool {
        self.lanes.values().any(|lane| lane.limited)
    }

    fn is_all_limited(&self) -> bool {
        self.is_limited() && self.lanes.values().all(|lane| lane.limited)
    }

    pub(crate) fn queue(&self, lane: i32) -> Option<&Queue> {
        self.lanes.get(&lane).map(|lane| &lane.queue)
    }

    pub(crate) fn queues(&self) -> Vec<&str> {
        let queues: BTreeSet<&str> = self.lanes.values().map(|lane| lane.queue.as_str()).collect();
        queues.into_iter().collect()
    }
}

async fn read_scope(inner: &Inner, request: &ClaimRequest) -> Result<ClaimScope> {
    let queues: Vec<&str> = request.queues.iter().map(Queue::as_str).collect();
    let kinds: Vec<&str> = request.kinds.iter().map(Kind::as_str).collect();
    let sql = inner.sql(&LANES_WITH_LIMITS);
    let rows = inner.pool.query(sql, &[(&queues, Type::TEXT_ARRAY), (&kinds, Type::TEXT_ARRAY)]).await?;
    let mut scope = ClaimScope { lanes: BTreeMap::new(), limits: LimitsByQueue::new() };
    for row in &rows {
        let queue = Queue::new(row.try_get::<_, &str>("queue")?)?;
        let limits: Option<&[u8]> = row.try_get("limits")?;
        let limited = row.try_get("partitioned")? || limits.is_some();
        if let Some(limits) = limits {
            scope.limits.insert(queue.to_string(), QueueLimits::read(limits));
        }
        scope.lanes.insert(row.try_get("lane")?, ScopedLane { queue, limited });
    }
    Ok(scope)
}

/// The result of one round of a claim.
struct RoundResult {
    rows: Vec<JobRow>,
    capacity: Capacity,
    /// Whether another round may find more jobs, because this one did not lease some of its candidates.
    again: bool,
}

async fn claim_round(
    inner: &Inner,
    request: &ClaimRequest,
    scope: &ClaimScope,
    capacity: &Capacity,
    left: usize,
) -> Result<RoundResult> {
    // Concurrent rounds of this node would read the same candidates, and wait for the same locks.
    let mut round = inner.limited_round.lock().await;
    let extent =
        if round.full_counts.try_start(Instant::now()) { CountExtent::Full } else { CountExtent::Running };
    let mut counting = Duration::ZERO;
    let claiming = inner.pool.transaction(async |client| {
        let due = read_candidates(inner, client, scope, capacity, left).await?;
        let partitions = limited_partitions(scope, &due);
        // The client sends the second statement without waiting for the locks. The server runs it only after it has taken them.
        let ((locked, locked_at), counted) = tokio::join!(
            biased;
            async { (lock(inner, client, scope, &due, &partitions).await, Instant::now()) },
            count(inner, client, scope, &partitions, extent),
        );
        counting = locked_at.elapsed();
        locked?;
        let counted = counted?;
        // Limits that changed meanwhile may need other locks.
        if counted.limits != scope.limits {
            return Ok((MadeClaims::default(), counted, Decisions { again: true, ..Decisions::default() }));
        }
        decide_and_apply(inner, client, request, scope, counted, due).await
    });
    let claiming = claiming.await;
    if extent == CountExtent::Full {
        round.full_counts.record(Instant::now(), counting);
    }
    drop(round);
    let (made, capacity, mut decisions) = claiming?;
    let rows = read_leased(inner, &made).await;
    // A slot of these partitions may have become free meanwhile. The settlement that freed it did not see the new waiters yet.
    if !decisions.waiting_in.is_empty() && slots::give_slots(inner, &decisions.waiting_in).await {
        inner.wake();
        decisions.again = true;
    }
    Ok(RoundResult { rows: rows?, capacity, again: decisions.again })
}

/// Decides about the candidates that are still ready and that nobody else has locked. Returns the claims that it made.
async fn decide_and_apply(
    inner: &Inner,
    client: &Client,
    request: &ClaimRequest,
    scope: &ClaimScope,
    counted: Capacity,
    mut due: Vec<CandidateRow>,
) -> Result<(MadeClaims, Capacity, Decisions)> {
    let mut were_all_found = true;
    loop {
        let mut capacity = counted.clone();
        let mut decisions = decide(&mut capacity, scope, &due);
        match apply(inner, client, request, &capacity, &decisions).await? {
            Application::Done(claims) => {
                // More jobs may be due behind those that were not found. If no job was found, the next claim looks for them.
                decisions.again |= !were_all_found && !decisions.ids.is_empty();
                return Ok((claims, capacity, decisions));
            }
            Application::NotFound(missing) => {
                due.retain(|job| !missing.contains(&job.id));
                were_all_found = false;
            }
        }
    }
}

/// Reads the jobs of claims that this node has made. Other claims need not wait for this, so it comes after the commit. If it fails, the
/// jobs stay leased until their leases end, so it tries again.
async fn read_leased(inner: &Inner, made: &MadeClaims) -> Result<Vec<JobRow>> {
    if made.claims.is_empty() {
        return Ok(Vec::new());
    }
    let (mut tries, mut pause) = (1, READ_LEASED_PAUSE);
    loop {
        match try_read_leased(inner, made).await {
            Err(_) if tries < READ_LEASED_TRIES => {
                sleep(pause).await;
                (tries, pause) = (tries + 1, pause * 2);
            }
            read => return read,
        }
    }
}

async fn try_read_leased(inner: &Inner, made: &MadeClaims) -> Result<Vec<JobRow>> {
    let parameters: [Parameter<'_>; 2] =
        [(&made.claims, Type::INT8_ARRAY), (&made.with_progress, Type::UUID_ARRAY)];
    let sql = match made.jobs <= FEW_JOBS {
        true => inner.sql(&READ_LEASED),
        false => READ_LEASED.statement(),
    };
    let mut arriving = ArrivingJobs::new(inner.lanes.snapshot());
    let mut each = |row| arriving.read(row);
    inner.pool.query_each(sql, &parameters, &mut each).await?;
    arriving.finish(inner).await
}

/// Reads the due jobs of limited lanes that come first among the due jobs of all lanes, except those of queues without a free slot.
async fn read_candidates(
    inner: &Inner,
    client: &Client,
    scope: &ClaimScope,
    capacity: &Capacity,
    left: usize,
) -> Result<Vec<CandidateRow>> {
    let open = scope.lanes.iter().filter(|(_, lane)| capacity.free_queue_slots(&lane.queue) > 0);
    let (lanes, limited): (Vec<i32>, Vec<bool>) = open.map(|(number, lane)| (*number, lane.limited)).unzip();
    let parameters: [Parameter<'_>; 4] = [
        (&inner.manual_now(), Type::INT8),
        (&lanes, Type::INT4_ARRAY),
        (&limited, Type::BOOL_ARRAY),
        (&(left as i64), Type::INT8),
    ];
    let rows = client.run(inner.sql(&CLAIM_CANDIDATES), &parameters).await?;
    let candidate = |row: &Row| {
        Ok(CandidateRow {
            position: row.try_get("row_position")?,
            id: row.try_get("id")?,
            lane: row.try_get("lane")?,
            partition: row.try_get("partition")?,
            strict: row.try_get("strict")?,
        })
    };
    rows.iter().map(candidate).collect()
}

async fn lock(
    inner: &Inner,
    client: &Client,
    scope: &ClaimScope,
    due: &[CandidateRow],
    partitions: &BTreeMap<&str, LimitedPartition>,
) -> Result<()> {
    let queues = due.iter().filter_map(|job| scope.queue(job.lane)).map(Queue::as_str);
    let queues = queues.filter(|queue| scope.limits.contains_key(*queue));
    let scopes: Vec<&str> = queues.chain(partitions.keys().copied()).collect();
    if !scopes.is_empty() {
        locks::lock(inner, client, scopes, &[]).await?;
    }
    Ok(())
}

/// The decisions about candidates, as parameters of the statement `apply_claim`.
#[derive(Default)]
struct Decisions {
    ids: Vec<Uuid>,
    positions: Vec<RowPosition>,
    /// Those of the jobs that start to wait for a slot, and their partitions.
    waiting: Vec<Uuid>,
    waiting_in: BTreeSet<String>,
    /// Those of the jobs that are delayed, and until when.
    delayed: Vec<Uuid>,
    until: Vec<i64>,
    again: bool,
}

impl Decisions {
    fn add(&mut self, job: &CandidateRow, admission: Admission) {
        self.again |= admission != Admission::Take;
        match admission {
            Admission::Skip => return,
            Admission::Take => {}
            Admission::WaitForSlot => {
                self.waiting.push(job.id);
                self.waiting_in.extend(job.partition.clone());
            }
            Admission::Delay(at) => {
                self.delayed.push(job.id);
                self.until.push(at.as_ms());
            }
        }
        self.ids.push(job.id);
        self.positions.push(job.position);
    }
}

/// Decides about candidates in their order.
fn decide(capacity: &mut Capacity, scope: &ClaimScope, due: &[CandidateRow]) -> Decisions {
    let mut decisions = Decisions::default();
    for job in due {
        let Some(queue) = scope.queue(job.lane) else { continue };
        decisions.add(job, capacity.admit(queue, job.candidate()));
    }
    decisions
}

/// The result of applying decisions.
enum Application {
    /// All were applied. These claims have the leased jobs.
    Done(MadeClaims),
    /// None was applied, because these jobs are no longer ready, or somebody else has locked them.
    NotFound(HashSet<Uuid>),
}

/// The claims that a round has made.
#[derive(Default)]
struct MadeClaims {
    claims: Vec<i64>,
    /// The number of their jobs.
    jobs: usize,
    /// Those of their jobs that have a row in `progress`.
    with_progress: Vec<Uuid>,
}

/// Writes the decisions. Jobs that are found stay locked until the end of the transaction.
async fn apply(
    inner: &Inner,
    client: &Client,
    request: &ClaimRequest,
    capacity: &Capacity,
    decisions: &Decisions,
) -> Result<Application> {
    if decisions.ids.is_empty() {
        return Ok(Application::Done(MadeClaims::default()));
    }
    let started = capacity.starts.iter().filter(|(_, starts)| starts.added > 0);
    let scopes: Vec<&str> = started.map(|(scope, _)| scope.as_str()).collect();
    let parameters: [Parameter<'_>; 9] = [
        (&capacity.now.as_ms(), Type::INT8),
        (&decisions.ids, Type::UUID_ARRAY),
        (&decisions.positions, Type::TID_ARRAY),
        (&decisions.waiting, Type::UUID_ARRAY),
        (&decisions.delayed, Type::UUID_ARRAY),
        (&decisions.until, Type::INT8_ARRAY),
        (&scopes, Type::TEXT_ARRAY),
        (&request.worker.as_str(), Type::TEXT),
        (&ceil_ms(request.lease), Type::INT8),
    ];
    let rows = client.run(inner.sql(&APPLY_CLAIM), &parameters).await?;
    let row = rows.first().ok_or_else(Error::no_row)?;
    let Some(found) = row.try_get::<_, Option<Vec<Uuid>>>("found")? else {
        let (claims, with_progress) = (row.try_get("claims")?, row.try_get("with_progress")?);
        let jobs = decisions.ids.len() - decisions.waiting.len() - decisions.delayed.len();
        return Ok(Application::Done(MadeClaims { claims, jobs, with_progress }));
    };
    let found: HashSet<Uuid> = found.into_iter().collect();
    Ok(Application::NotFound(decisions.ids.iter().copied().filter(|id| !found.contains(id)).collect()))
}

/// When the next job is due whose queue has a free slot, or when a rate limit allows the next start.
async fn next_due(inner: &Inner, scope: &ClaimScope, capacity: &Capacity) -> Result<Option<Timestamp>> {
    let limited = scope.lanes.iter().filter(|(_, lane)| lane.limited);
    let lanes: Vec<i32> = limited.map(|(number, _)| *number).collect();
    let rows = inner.pool.query(inner.sql(&NEXT_DUE), &[(&lanes, Type::INT4_ARRAY)]).await?;
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
