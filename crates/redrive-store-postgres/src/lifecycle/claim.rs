//! Leases due jobs, in the order of priority, due time and id across all matching lanes.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use redrive_core::Timestamp;
use redrive_core::limits::PAYLOAD_BYTES_MAX;
use redrive_core::store::{ClaimRequest, ClaimedJobs, WakeToken};
use redrive_core::time::ceil_ms;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::limits;
use crate::limits::claim::LimitedClaim;
use crate::open::Inner;
use crate::planned_function::PlannedFunction;
use crate::pool::{Parameter, Pool};
use crate::row::{ArrivingJobs, JobRow};
use crate::sql;

const PARAMETERS: &str = "bigint, text[], text[], bigint, integer[], bigint[], uuid[], text, bigint, boolean";
const COLUMNS: &[&str] = &[sql::TYPED_JOB_COLUMNS, "now bigint", "due bigint", "limited boolean"];
pub(crate) static CLAIM_WHOLE_LANES: PlannedFunction =
    PlannedFunction::new(sql::LIFECYCLE, "claim_whole_lanes", PARAMETERS, COLUMNS);
pub(crate) static CLAIM_BY_DUE_TIME: PlannedFunction =
    PlannedFunction::new(sql::LIFECYCLE, "claim_by_due_time", PARAMETERS, COLUMNS);

/// A function claims about as many jobs as have payloads of this size in total, and at least [`FEW_JOBS`]. The server keeps the whole answer of
/// a function in memory before it sends any of it.
const FUNCTION_PAYLOAD_BYTES: usize = 1024 * 1024;
pub(crate) const FEW_JOBS: usize = 32;

/// What the last claims took. It decides whether the next one calls a function.
#[derive(Debug)]
pub(crate) struct LastClaims {
    /// The mean size of the payloads.
    payload_bytes: AtomicUsize,
    /// Whether the last one took more jobs than a function does.
    took_many: AtomicBool,
}

impl Default for LastClaims {
    /// Before the first claim, payloads may have any size.
    fn default() -> Self {
        Self { payload_bytes: AtomicUsize::new(PAYLOAD_BYTES_MAX), took_many: AtomicBool::new(false) }
    }
}

impl LastClaims {
    /// How many jobs a function may take.
    fn function_jobs_max(&self) -> usize {
        (FUNCTION_PAYLOAD_BYTES / self.payload_bytes.load(Ordering::Relaxed).max(1)).max(FEW_JOBS)
    }

    fn record(&self, rows: &[JobRow]) {
        let payloads = rows.iter().filter_map(|row| row.job.as_ref().ok()).map(|job| job.payload.len());
        self.took_many.store(rows.len() > self.function_jobs_max(), Ordering::Relaxed);
        if !rows.is_empty() {
            self.payload_bytes.store(payloads.sum::<usize>() / rows.len(), Ordering::Relaxed);
        }
    }
}

pub(crate) async fn claim(inner: &Inner, request: &ClaimRequest) -> Result<ClaimedJobs> {
    let wake = inner.wakes();
    let limited = inner.known_limits().apply_to_claim(request);
    if !limited && let Some(claim) = claim_unlimited(inner, request, request.limit, false).await? {
        return Ok(finish(inner, request, claim, wake));
    }
    let LimitedClaim { mut claim, has_other_lanes } = limits::claim::claim(inner, request).await?;
    if !has_other_lanes {
        return Ok(finish(inner, request, claim, wake));
    }
    let left = request.limit - claim.rows.len();
    match claim_unlimited(inner, request, left, true).await {
        Ok(others) => claim.extend(others),
        // The caller gets the jobs that are leased already.
        Err(_) if !claim.rows.is_empty() => {}
        Err(error) => return Err(error),
    }
    Ok(finish(inner, request, claim, wake))
}

fn finish(inner: &Inner, request: &ClaimRequest, claim: PartialClaim, wake: WakeToken) -> ClaimedJobs {
    let PartialClaim { rows, now, next_due } = claim;
    inner.held_claims().add(&rows, request.lease);
    let rows = in_order(rows, &inner.lanes.snapshot());
    ClaimedJobs { next_due, ..claimed_jobs(rows, now, wake) }
}

/// The jobs that a claim leased from some of its lanes, and when the next job of these lanes is due.
pub(crate) struct PartialClaim {
    pub(crate) rows: Vec<JobRow>,
    pub(crate) now: Timestamp,
    pub(crate) next_due: Option<Timestamp>,
}

impl PartialClaim {
    fn extend(&mut self, others: Option<Self>) {
        let Some(others) = others else { return };
        self.rows.extend(others.rows);
        self.now = others.now;
        self.next_due = [self.next_due, others.next_due].into_iter().flatten().min();
    }
}

/// Opens some connections and lets the server plan the function of claims there. A claim that starts while an enqueue and a notification use
/// connections would otherwise wait several milliseconds for the first use of another one.
pub(crate) async fn prepare_connections(pool: &Pool) {
    // A connection that cannot be prepared is opened when it is needed.
    let _ = tokio::join!(claim_nothing(pool), claim_nothing(pool), claim_nothing(pool));
}

async fn claim_nothing(pool: &Pool) -> Result<()> {
    let (no_texts, no_lanes, no_times, no_ids): (&[&str], &[i32], &[i64], &[Uuid]) = (&[], &[], &[], &[]);
    let parameters: [Parameter<'_>; 10] = [
        (&None::<i64>, Type::INT8),
        (&no_texts, Type::TEXT_ARRAY),
        (&no_texts, Type::TEXT_ARRAY),
        (&0_i64, Type::INT8),
        (&no_lanes, Type::INT4_ARRAY),
        (&no_times, Type::INT8_ARRAY),
        (&no_ids, Type::UUID_ARRAY),
        (&"", Type::TEXT),
        (&0_i64, Type::INT8),
        (&false, Type::BOOL),
    ];
    pool.query(CLAIM_WHOLE_LANES.call(), &parameters).await.map(drop)
}

/// Claims at most `limit` jobs from lanes without limits. If there are limited lanes, and the caller has not claimed from them before, it
/// returns None and claims nothing.
async fn claim_unlimited(
    inner: &Inner,
    request: &ClaimRequest,
    limit: usize,
    limited_before: bool,
) -> Result<Option<PartialClaim>> {
    let mut first = None;
    if inner.has_functions && !inner.last_claims.took_many.load(Ordering::Relaxed) {
        let few = limit.min(inner.last_claims.function_jobs_max());
        match claim_in_one_call(inner, request, few, limited_before, ClaimCall::Function).await? {
            Some(claim) if claim.rows.len() == few && limit > few => first = Some(claim),
            claimed => return Ok(claimed),
        }
    }
    let left = limit - first.as_ref().map_or(0, |claim| claim.rows.len());
    let claimed = claim_in_one_call(inner, request, left, limited_before, ClaimCall::Statement).await;
    let Some(mut first) = first else { return claimed };
    // If there is no second claim, the caller gets the jobs that are leased already.
    if let Ok(Some(second)) = claimed {
        first.rows.extend(second.rows);
        (first.now, first.next_due) = (second.now, second.next_due);
    }
    Ok(Some(first))
}

/// How a claim is sent.
#[derive(Clone, Copy)]
enum ClaimCall {
    /// As a call of a function. The server knows its plan.
    Function,
    /// As a statement, which the server plans.
    Statement,
}

/// Claims jobs from lanes without limits in one call.
async fn claim_in_one_call(
    inner: &Inner,
    request: &ClaimRequest,
    limit: usize,
    limited_before: bool,
    call: ClaimCall,
) -> Result<Option<PartialClaim>> {
    let started = Instant::now();
    let start = inner.claim_positions().start(request, started);
    let queues: Vec<&str> = request.queues.iter().map(|queue| queue.as_str()).collect();
    let kinds: Vec<&str> = request.kinds.iter().map(|kind| kind.as_str()).collect();
    let (now, limit, lease) = (inner.manual_now(), limit as i64, ceil_ms(request.lease));
    let function = match inner.lanes.snapshot().share_a_priority(request) {
        true => &CLAIM_BY_DUE_TIME,
        false => &CLAIM_WHOLE_LANES,
    };
    let sql = match call {
        ClaimCall::Function => function.call(),
        ClaimCall::Statement => function.statement(),
    };
    let worker = request.worker.as_str();
    let parameters: [Parameter<'_>; 10] = [
        (&now, Type::INT8),
        (&queues, Type::TEXT_ARRAY),
        (&kinds, Type::TEXT_ARRAY),
        (&limit, Type::INT8),
        (&start.lanes, Type::INT4_ARRAY),
        (&start.at, Type::INT8_ARRAY),
        (&start.ids, Type::UUID_ARRAY),
        (&worker, Type::TEXT),
        (&lease, Type::INT8),
        (&limited_before, Type::BOOL),
    ];
    let mut arriving = ArrivingJobs::new(inner.lanes.snapshot());
    let mut summary = None;
    inner
        .pool
        .query_each(sql, &parameters, &mut |row| {
            if summary.is_none() {
                summary = Some(ClaimSummary::read(&row)?);
            }
            arriving.read(row)
        })
        .await
        // The statement may have claimed jobs although no answer came. These become due again at their old positions.
        .inspect_err(|_| inner.claim_positions().forget())?;
    inner.claim_positions().record_scan(request, &start, started.elapsed());
    let ClaimSummary { now, next_due, limited } = summary.ok_or_else(Error::no_row)?;
    if limited && !limited_before {
        return Ok(None);
    }
    let rows = arriving.finish(inner).await?;
    inner.claim_positions().record_claim(&start, &rows, now);
    inner.last_claims.record(&rows);
    Ok(Some(PartialClaim { rows, now, next_due }))
}

/// The columns of a claim's answer that are the same in every row.
struct ClaimSummary {
    now: Timestamp,
    next_due: Option<Timestamp>,
    /// Whether there are lanes with limits.
    limited: bool,
}

impl ClaimSummary {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            now: Timestamp::from_ms(row.try_get("now")?),
            next_due: row.try_get::<_, Option<i64>>("due")?.map(Timestamp::from_ms),
            limited: row.try_get("limited")?,
        })
    }
}

fn in_order(mut rows: Vec<JobRow>, lanes: &Lanes) -> Vec<JobRow> {
    rows.sort_by_key(|row| (Reverse(lanes.get(row.lane).map(|lane| lane.priority)), row.next_run_at, row.id));
    rows
}

/// The answer of a claim or reclaim, with unreadable jobs apart.
pub(crate) fn claimed_jobs(rows: Vec<JobRow>, now: Timestamp, wake: WakeToken) -> ClaimedJobs {
    let mut claimed = ClaimedJobs {
        jobs: Vec::with_capacity(rows.len()),
        unreadable: Vec::new(),
        now,
        next_due: None,
        wake,
    };
    for row in rows {
        match row.job {
            Ok(job) => claimed.jobs.push(job),
            Err(unreadable) => claimed.unreadable.push(unreadable),
        }
    }
    claimed
}
