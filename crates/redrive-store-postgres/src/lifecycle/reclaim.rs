//! Takes over leases that have run out.

use std::time::Instant;

use redrive_core::Timestamp;
use redrive_core::store::{ClaimedJobs, ReclaimRequest};
use redrive_core::time::ceil_ms;
use redrive_sql::Statement;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lifecycle::claim;
use crate::lifecycle::scan_start::LeaseScan;
use crate::lifecycle::settle_columns::key;
use crate::open::Inner;
use crate::pool::{Executor, Parameter};
use crate::row::{self, JobRow};
use crate::sql;

static FIND_EXPIRED: Statement = sql::SETTLE.statement("find_expired");
static LOCK_EXPIRED: Statement = sql::SETTLE.statement("lock_expired");
static WAIT_FOR_EXPIRED: Statement = sql::SETTLE.statement("wait_for_expired");
static LIMIT_LOCK_WAIT: Statement = sql::SETTLE.statement("limit_lock_wait");
static RECLAIM: Statement = sql::SETTLE.statement("reclaim");

/// The maximum number of claims that one transaction locks.
const CLAIMS_MAX: i64 = 64;
/// How long a reclaim waits for claims that another one has locked, in milliseconds.
const LOCK_WAIT_MS: &str = "200";

pub(crate) async fn reclaim(inner: &Inner, request: &ReclaimRequest) -> Result<ClaimedJobs> {
    let wake = inner.wakes();
    let started = Instant::now();
    let (start, full) = inner.lease_positions().start(&request.kinds, started, inner.manual_now());
    let mut scan = ExpiredScan { inner, request, start, seen: Vec::new(), left_to_others: false };
    let mut taken: Vec<(i64, JobRow)> = Vec::new();
    let now = loop {
        let page = scan.next(request.limit - taken.len()).await?;
        taken.extend(page.jobs);
        if page.is_last || taken.len() >= request.limit {
            break page.now;
        }
    };
    // A lease that the scan left to its holder must be found again once the holder stops.
    let complete = taken.len() < request.limit && !scan.left_to_others;
    inner
        .lease_positions()
        .record(&request.kinds, LeaseScan { full, complete, now, took: started.elapsed() });
    taken.sort_by_key(|(ended, row)| (*ended, row.id));
    let rows: Vec<JobRow> = taken.into_iter().map(|(_, row)| row).collect();
    inner.held_claims().add(&rows, request.lease);
    Ok(claim::claimed_jobs(rows, now, wake))
}

/// A scan of expired claims, the earliest first, some claims at a time.
struct ExpiredScan<'a> {
    inner: &'a Inner,
    request: &'a ReclaimRequest,
    /// The earliest end of a lease to scan.
    start: i64,
    /// The claims that the scan has looked at.
    seen: Vec<i64>,
    /// Whether a claim has jobs of other kinds, or leases that the caller holds.
    left_to_others: bool,
}

/// Claims that were locked, and the rows of the statement `reclaim`.
struct LockedPage {
    claims: Vec<i64>,
    rows: Vec<Row>,
}

/// The jobs that were taken over from some claims, each with the end of its old lease.
struct ExpiredPage {
    jobs: Vec<(i64, JobRow)>,
    now: Timestamp,
    is_last: bool,
}

impl ExpiredScan<'_> {
    async fn next(&mut self, limit: usize) -> Result<ExpiredPage> {
        let found = self.inner.pool.query(&FIND_EXPIRED, &self.parameters(&self.inner.manual_now())).await?;
        let found = found.first().ok_or_else(Error::no_row)?;
        if !found.try_get("found")? {
            let now = Timestamp::from_ms(found.try_get("now")?);
            return Ok(ExpiredPage { jobs: Vec::new(), now, is_last: true });
        }
        let mut page = self.lock_and_take(&LOCK_EXPIRED, limit).await?;
        if page.claims.is_empty() {
            // The session that has locked the claims that are left may take some of their jobs only. A session that keeps its lock keeps its
            // claim: the next reclaim tries again.
            match self.lock_and_take(&WAIT_FOR_EXPIRED, limit).await {
                Ok(waited) => page = waited,
                Err(error) if error.is_busy() => {}
                Err(error) => return Err(error),
            }
        }
        let LockedPage { claims, rows } = page;
        let first = rows.first().ok_or_else(Error::no_row)?;
        self.left_to_others |= first.try_get::<_, i64>("left_to_others")? > 0;
        let is_last = claims.is_empty();
        self.seen.extend(claims);
        let lanes = self.inner.lanes_of(&rows).await?;
        let mut jobs = Vec::with_capacity(rows.len());
        for (row, job) in rows.iter().zip(row::read_all(&rows, lanes)?) {
            jobs.push((row.try_get::<_, i64>("ended_lease")?, job));
            // A very short lease may have run out already. The job is taken over once in a call.
            self.seen.push(row.try_get::<_, i64>("epoch")? >> redrive_core::LEASE_COUNT_BITS);
        }
        Ok(ExpiredPage { jobs, now: Timestamp::from_ms(first.try_get("now")?), is_last })
    }

    /// The parameters of the statements that look for expired claims.
    fn parameters<'a>(&'a self, now: &'a Option<i64>) -> [Parameter<'a>; 4] {
        [
            (now, Type::INT8),
            (&CLAIMS_MAX, Type::INT8),
            (&self.start, Type::INT8),
            (&self.seen, Type::INT8_ARRAY),
        ]
    }

    /// Locks expired claims and takes over their jobs. A second statement reads the jobs: its snapshot shows all settlements that the
    /// locks have waited for.
    async fn lock_and_take(&self, lock: &str, limit: usize) -> Result<LockedPage> {
        let now = self.inner.manual_now();
        let reclaiming = self.inner.pool.transaction(async |client| {
            client.run(&LIMIT_LOCK_WAIT, &[(&LOCK_WAIT_MS, Type::TEXT)]).await?;
            let locked = client.run(lock, &self.parameters(&now)).await?;
            let (claims, parts) = numbers(&locked)?;
            let rows = self.take(client, &claims, &parts, limit).await?;
            Ok(LockedPage { claims, rows })
        });
        reclaiming.await
    }

    async fn take(
        &self,
        on: &(impl Executor + Sync),
        claims: &[i64],
        parts: &[i64],
        limit: usize,
    ) -> Result<Vec<Row>> {
        let kinds: Vec<&str> = self.request.kinds.iter().map(|kind| kind.as_str()).collect();
        let (held, epochs): (Vec<Uuid>, Vec<i64>) = self.request.held.iter().copied().map(key).unzip();
        let parameters: [Parameter<'_>; 8] = [
            (&self.inner.manual_now(), Type::INT8),
            (&kinds, Type::TEXT_ARRAY),
            (&(limit as i64), Type::INT8),
            (&ceil_ms(self.request.lease), Type::INT8),
            (&claims, Type::INT8_ARRAY),
            (&parts, Type::INT8_ARRAY),
            (&held, Type::UUID_ARRAY),
            (&epochs, Type::INT8_ARRAY),
        ];
        on.run(&RECLAIM, &parameters).await
    }
}

fn numbers(rows: &[Row]) -> Result<(Vec<i64>, Vec<i64>)> {
    let (mut claims, mut parts) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for row in rows {
        claims.push(row.try_get("claim")?);
        parts.push(row.try_get("part")?);
    }
    Ok((claims, parts))
}
