//! Leases due jobs from queues with limits, or with partition keys.
//!
//! A claim reads candidates, locks their queues and partitions, counts the running jobs there, decides about one candidate after
//! the other, and takes those that are still ready. The order matters. The locks come before the rows, so that two claims cannot wait for
//! each other. The counting statement starts after the locks are held, so that its counts stay true whatever other nodes claim. Each round
//! is a transaction of its own, because its locks must be taken in order.

use std::collections::{BTreeMap, BTreeSet, HashSet};

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
use crate::lifecycle::claim::PartialClaim;
use crate::limits::locks;
use crate::open::Inner;
use crate::pool::{Executor, Parameter};
use crate::row::{self, JobRow};
use crate::sql;

static LANES_WITH_LIMITS: Statement = sql::LIMITS.statement("lanes_with_limits");
static COUNT_USAGE: Statement = sql::LIMITS.statement("count_usage");
static APPLY_CLAIM: Statement = sql::LIMITS.statement("apply_claim");
static NEXT_DUE: Statement = sql::LIMITS.statement("next_due");

static CLAIM_CANDIDATES: Statement = sql::LIMITS.statement("claim_candidates");

/// The maximum number of rounds of one claim. Jobs that are still due after that wait for the next claim.
const ROUNDS_MAX: usize = 16;

/// The row of a due job that a claim decides about.
#[derive(Debug)]
struct CandidateRow {
    id: Uuid,
    lane: i32,
    due: i64,
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

/// Claims from the limited lanes of a request those due jobs that come before the jobs of the other lanes.
pub(crate) async fn claim(inner: &Inner, request: &ClaimRequest) -> Result<PartialClaim> {
    let mut scope = read_scope(inner, request).await?;
    inner.known_limits().update(request, &scope);
    let no_candidates = (BTreeMap::new(), Vec::new());
    let (mut capacity, _) = count(&*inner.pool, inner.manual_now(), &scope, &no_candidates).await?;
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
            Err(_) if !claimed.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    let next_due = match next_due(inner, &scope, &capacity).await {
        Err(_) if !claimed.is_empty() => Some(capacity.now),
        next_due => next_due?,
    };
    Ok(PartialClaim { rows: claimed, now: capacity.now, next_due })
}

/// The lanes of a claim, and the limits of their queues.
struct ClaimScope {
    lanes: BTreeMap<i32, ScopedLane>,
    limits: LimitsByQueue,
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

    fn queue(&self, lane: i32) -> Option<&Queue> {
        self.lanes.get(&lane).map(|lane| &lane.queue)
    }

    fn queues(&self) -> Vec<&str> {
        let queues: BTreeSet<&str> = self.lanes.values().map(|lane| lane.queue.as_str()).collect();
        queues.into_iter().collect()
    }
}

async fn read_scope(inner: &Inner, request: &ClaimRequest) -> Result<ClaimScope> {
    let queues: Vec<&str> = request.queues.iter().map(Queue::as_str).collect();
    let kinds: Vec<&str> = request.kinds.iter().map(Kind::as_str).collect();
    let sql = &LANES_WITH_LIMITS;
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
    let now = inner.manual_now();
    let claiming = inner.pool.transaction(async |client| {
        let due = read_candidates(client, now, scope, capacity, left).await?;
        let partitions = limited_partitions(scope, &due);
        lock(client, scope, &due, &partitions).await?;
        let (mut capacity, ready) = count(client, now, scope, &(partitions, due.iter().collect())).await?;
        // Limits that changed meanwhile may need other locks.
        if capacity.limits != scope.limits {
            return Ok((vec![], capacity, Decisions { again: true, ..Decisions::default() }));
        }
        let left_ready = due.iter().filter(|job| ready.contains(&job.id));
        let mut decisions = decide(&mut capacity, scope, left_ready);
        decisions.again |= ready.len() < due.len();
        let rows = apply(client, request, &capacity, &decisions).await?;
        Ok((rows, capacity, decisions))
    });
    let (rows, capacity, decisions) = claiming.await?;
    let lanes = inner.lanes_of(&rows).await?;
    let rows = row::read_all(&rows, lanes)?;
    Ok(RoundResult { rows, capacity, again: decisions.again })
}

/// Reads the due jobs of limited lanes that come first among the due jobs of all lanes, except those of queues without a free slot.
async fn read_candidates(
    client: &Client,
    now: Option<i64>,
    scope: &ClaimScope,
    capacity: &Capacity,
    left: usize,
) -> Result<Vec<CandidateRow>> {
    let open = scope.lanes.iter().filter(|(_, lane)| capacity.free_queue_slots(&lane.queue) > 0);
    let (lanes, limited): (Vec<i32>, Vec<bool>) = open.map(|(number, lane)| (*number, lane.limited)).unzip();
    let parameters: [Parameter<'_>; 4] = [
        (&now, Type::INT8),
        (&lanes, Type::INT4_ARRAY),
        (&limited, Type::BOOL_ARRAY),
        (&(left as i64), Type::INT8),
    ];
    let rows = client.run(&CLAIM_CANDIDATES, &parameters).await?;
    let candidate = |row: &Row| {
        Ok(CandidateRow {
            id: row.try_get("id")?,
            lane: row.try_get("lane")?,
            due: row.try_get("due")?,
            partition: row.try_get("partition")?,
            strict: row.try_get("strict")?,
        })
    };
    rows.iter().map(candidate).collect()
}

/// The partitions of the candidates that have limits or a strict order.
fn limited_partitions<'a>(scope: &ClaimScope, due: &'a [CandidateRow]) -> BTreeMap<&'a str, Limits> {
    let per_key = |job: &CandidateRow| {
        let queue = scope.queue(job.lane);
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
    let queues = due.iter().filter_map(|job| scope.queue(job.lane)).map(Queue::as_str);
    let queues = queues.filter(|queue| scope.limits.contains_key(*queue));
    let scopes: Vec<&str> = queues.chain(partitions.keys().copied()).collect();
    if !scopes.is_empty() {
        locks::lock(client, scopes, &[]).await?;
    }
    Ok(())
}

/// The partitions with limits or a strict order, and the candidates of a claim.
type CandidateScopes<'a> = (BTreeMap<&'a str, Limits>, Vec<&'a CandidateRow>);

/// Counts the running jobs and the recent starts in the queues of a claim and in these partitions. Locks the candidates, and returns the ids
/// of those that are still ready.
async fn count(
    on: &(impl Executor + Sync),
    now: Option<i64>,
    scope: &ClaimScope,
    (partitions, due): &CandidateScopes<'_>,
) -> Result<(Capacity, HashSet<Uuid>)> {
    let interval = |limits: &Limits| limits.rate.map(|rate| ceil_ms(rate.per()));
    let (queues, queue_intervals): (Vec<&str>, Vec<Option<i64>>) =
        scope.limits.iter().map(|(queue, limits)| (queue.as_str(), interval(&limits.queue_wide()))).unzip();
    let (scopes, intervals): (Vec<&str>, Vec<Option<i64>>) =
        partitions.iter().map(|(scope, limits)| (*scope, interval(limits))).unzip();
    let lanes: Vec<i32> = due.iter().map(|job| job.lane).collect();
    let times: Vec<i64> = due.iter().map(|job| job.due).collect();
    let ids: Vec<Uuid> = due.iter().map(|job| job.id).collect();
    let parameters: [Parameter<'_>; 9] = [
        (&now, Type::INT8),
        (&scope.queues(), Type::TEXT_ARRAY),
        (&queues, Type::TEXT_ARRAY),
        (&queue_intervals, Type::INT8_ARRAY),
        (&scopes, Type::TEXT_ARRAY),
        (&intervals, Type::INT8_ARRAY),
        (&lanes, Type::INT4_ARRAY),
        (&times, Type::INT8_ARRAY),
        (&ids, Type::UUID_ARRAY),
    ];
    let (mut capacity, mut ready) = (Capacity::default(), HashSet::new());
    for row in on.run(&COUNT_USAGE, &parameters).await? {
        add_usage(&mut capacity, &mut ready, &row)?;
    }
    Ok((capacity, ready))
}

/// Adds a row of the statement `count_usage`.
fn add_usage(capacity: &mut Capacity, ready: &mut HashSet<Uuid>, row: &Row) -> Result<()> {
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
        5 => drop(ready.insert(row.try_get("id")?)),
        _ => {
            if let Some(id) = row.try_get::<_, Option<Uuid>>("id")? {
                capacity.first.insert(scope()?, JobId(id));
            }
        }
    }
    Ok(())
}

/// The decisions about candidates, as columns of the statement `apply_claim`.
#[derive(Default)]
struct Decisions {
    lanes: Vec<i32>,
    due: Vec<i64>,
    ids: Vec<Uuid>,
    codes: Vec<i16>,
    until: Vec<Option<i64>>,
    again: bool,
}

/// The codes of decisions in the statement `apply_claim`.
const LEASE: i16 = 0;
const WAIT_FOR_SLOT: i16 = 1;
const DELAY: i16 = 2;

impl Decisions {
    fn push(&mut self, job: &CandidateRow, code: i16, until: Option<Timestamp>) {
        self.lanes.push(job.lane);
        self.due.push(job.due);
        self.ids.push(job.id);
        self.codes.push(code);
        self.until.push(until.map(Timestamp::as_ms));
    }
}

/// Decides about candidates in their order.
fn decide<'a>(
    capacity: &mut Capacity,
    scope: &ClaimScope,
    due: impl Iterator<Item = &'a CandidateRow>,
) -> Decisions {
    let mut decisions = Decisions::default();
    for job in due {
        let Some(queue) = scope.queue(job.lane) else { continue };
        let admission = capacity.admit(queue, job.candidate());
        decisions.again |= admission != Admission::Take;
        match admission {
            Admission::Take => decisions.push(job, LEASE, None),
            Admission::Skip => {}
            Admission::WaitForSlot => decisions.push(job, WAIT_FOR_SLOT, None),
            Admission::Delay(at) => decisions.push(job, DELAY, Some(at)),
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
    if decisions.ids.is_empty() {
        return Ok(vec![]);
    }
    let started = capacity.starts.iter().filter(|(_, starts)| starts.added > 0);
    let (scopes, starts): (Vec<&str>, Vec<i64>) =
        started.map(|(scope, starts)| (scope.as_str(), starts.added as i64)).unzip();
    client
        .run(
            &APPLY_CLAIM,
            &[
                (&capacity.now.as_ms(), Type::INT8),
                (&decisions.lanes, Type::INT4_ARRAY),
                (&decisions.due, Type::INT8_ARRAY),
                (&decisions.ids, Type::UUID_ARRAY),
                (&decisions.codes, Type::INT2_ARRAY),
                (&decisions.until, Type::INT8_ARRAY),
                (&scopes, Type::TEXT_ARRAY),
                (&request.worker.as_str(), Type::TEXT),
                (&ceil_ms(request.lease), Type::INT8),
                (&starts, Type::INT8_ARRAY),
            ],
        )
        .await
}

/// When the next job is due whose queue has a free slot, or when a rate limit allows the next start.
async fn next_due(inner: &Inner, scope: &ClaimScope, capacity: &Capacity) -> Result<Option<Timestamp>> {
    let limited = scope.lanes.iter().filter(|(_, lane)| lane.limited);
    let lanes: Vec<i32> = limited.map(|(number, _)| *number).collect();
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
