//! Counts the running jobs and recent starts of queues and partitions, for the decisions of a claim.

use std::collections::BTreeMap;
use std::time::Duration;

use redrive_core::capacity::{Capacity, RecentStarts};
use redrive_core::queue_limits::Limits;
use redrive_core::store::ClaimRequest;
use redrive_core::time::ceil_ms;
use redrive_core::{JobId, QueueLimits, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lifecycle::scan_start::ScanSchedule;
use crate::limits::claim::{CandidateRow, ClaimScope};
use crate::open::Inner;
use crate::planned_function::PlannedFunction;
use crate::pool::{Executor, Parameter};
use crate::sql;

pub(crate) static COUNT_USAGE: PlannedFunction = PlannedFunction::new(
    sql::LIMITS,
    "count_usage",
    "bigint, text[], text[], bigint[], text[], bigint[], bigint[], boolean[], bigint[], boolean",
    &["what integer, scope text, number bigint, at bigint, id uuid, value bytea"],
);

/// The time between two full counts while these are fast.
const FULL_COUNT_INTERVAL: Duration = Duration::from_millis(100);

/// What one round of a claim leaves for the next one of this node.
#[derive(Debug)]
pub(crate) struct LimitedRoundState {
    pub(crate) full_counts: ScanSchedule,
}

impl Default for LimitedRoundState {
    fn default() -> Self {
        Self { full_counts: ScanSchedule::new(FULL_COUNT_INTERVAL) }
    }
}

/// A partition whose running jobs a claim counts.
#[derive(Default)]
pub(crate) struct LimitedPartition {
    limits: Limits,
    /// Whether one of the candidates must run in strict order.
    strict: bool,
    /// The number of candidates.
    candidates: i64,
}

impl LimitedPartition {
    /// The greatest number of running jobs that leaves a slot for each candidate. None without a limit on running jobs.
    fn unreported_running(&self) -> Option<i64> {
        self.limits.concurrency.map(|slots| i64::from(slots) - self.candidates)
    }
}

/// The partitions of the candidates that have limits or a strict order.
pub(crate) fn limited_partitions<'a>(
    scope: &ClaimScope,
    due: &'a [CandidateRow],
) -> BTreeMap<&'a str, LimitedPartition> {
    let mut partitions: BTreeMap<&str, LimitedPartition> = BTreeMap::new();
    for job in due {
        let queue = scope.queue(job.lane).and_then(|queue| scope.limits.get(queue.as_str()));
        let limits = queue.map(|limits| limits.per_key).unwrap_or_default();
        if let Some(key) = &job.partition
            && (job.strict || limits != Limits::default())
        {
            let partition = partitions.entry(key).or_default();
            partition.limits = limits;
            partition.strict |= job.strict;
            partition.candidates += 1;
        }
    }
    partitions
}

/// Counts the running jobs and the recent starts in the queues of a claim, if any of them has a limit of its own. Otherwise the first
/// round counts and reads the time. A request for no job has no round.
pub(crate) async fn count_queues(
    inner: &Inner,
    request: &ClaimRequest,
    scope: &ClaimScope,
) -> Result<Capacity> {
    if request.limit > 0 && scope.limits.values().all(|limits| limits.queue_wide() == Limits::default()) {
        return Ok(Capacity { limits: scope.limits.clone(), ..Capacity::default() });
    }
    count(inner, &*inner.pool, scope, &BTreeMap::new(), CountExtent::Running).await
}

/// Which index entries a count of running jobs scans. Both count the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountExtent {
    /// Those from the first running job on.
    Running,
    /// All entries of the partitions. Without such a scan once in a while, the server never removes the dead entries before vacuum.
    Full,
}

/// Counts the running jobs and the recent starts in the queues of a claim and in these partitions.
pub(crate) async fn count(
    inner: &Inner,
    on: &(impl Executor + Sync),
    scope: &ClaimScope,
    partitions: &BTreeMap<&str, LimitedPartition>,
    extent: CountExtent,
) -> Result<Capacity> {
    let interval = |limits: &Limits| limits.rate.map(|rate| ceil_ms(rate.per()));
    let (queues, queue_intervals): (Vec<&str>, Vec<Option<i64>>) =
        scope.limits.iter().map(|(queue, limits)| (queue.as_str(), interval(&limits.queue_wide()))).unzip();
    let (scopes, intervals): (Vec<&str>, Vec<Option<i64>>) =
        partitions.iter().map(|(scope, partition)| (*scope, interval(&partition.limits))).unzip();
    // More running jobs than slots need not be counted.
    let slots: Vec<Option<i64>> =
        partitions.values().map(|partition| partition.limits.concurrency.map(i64::from)).collect();
    let strict: Vec<bool> = partitions.values().map(|partition| partition.strict).collect();
    // With this number of running jobs there are slots for all candidates, and core needs no number to admit them.
    let unreported: Vec<Option<i64>> =
        partitions.values().map(LimitedPartition::unreported_running).collect();
    let parameters: [Parameter<'_>; 10] = [
        (&inner.manual_now(), Type::INT8),
        (&scope.queues(), Type::TEXT_ARRAY),
        (&queues, Type::TEXT_ARRAY),
        (&queue_intervals, Type::INT8_ARRAY),
        (&scopes, Type::TEXT_ARRAY),
        (&intervals, Type::INT8_ARRAY),
        (&slots, Type::INT8_ARRAY),
        (&strict, Type::BOOL_ARRAY),
        (&unreported, Type::INT8_ARRAY),
        (&(extent == CountExtent::Full), Type::BOOL),
    ];
    let mut capacity = Capacity::default();
    for row in on.run(inner.sql(&COUNT_USAGE), &parameters).await? {
        add_usage(&mut capacity, &row)?;
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
