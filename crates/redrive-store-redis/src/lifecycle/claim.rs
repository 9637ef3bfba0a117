//! Leases due jobs: highest priority first. Each claim starts at another shard, so that no shard starves.

use futures_util::future::try_join;
use redis::Value;
use redrive_core::store::{ClaimRequest, ClaimedJobs, UnreadableJob};
use redrive_core::{Job, StoreError, Timestamp};

use crate::inner::Inner;
use crate::limits;
use crate::row::{Lane, LeasedRows};
use crate::script::{self, reply};
use crate::settings::Settings;

pub(crate) async fn claim(inner: &Inner, request: &ClaimRequest) -> Result<ClaimedJobs, StoreError> {
    let wake = inner.wakes();
    let (settings, (now, heads)) = try_join(Settings::read(inner), lane_heads(inner)).await?;
    let mut claim = Claim {
        inner,
        request,
        number: fastrand::u64(..),
        now,
        heads: heads.into_iter().map(|heads| requested_heads(heads, request, &settings)).collect(),
        jobs: Vec::new(),
        unreadable: Vec::new(),
    };
    let limited = claim.heads.iter().flatten().any(|head| settings.has_limits(&head.lane.queue));
    let next_due = if limited || claim.take_unlimited().await? == Stop::PartitionKey {
        limits::claim_limited(&mut claim, &settings).await?
    } else {
        claim.heads.iter().flatten().map(|head| head.due).min()
    };
    let Claim { now, mut jobs, unreadable, .. } = claim;
    jobs.sort_by_key(|job| (std::cmp::Reverse(job.priority), job.next_run_at, job.id));
    Ok(ClaimedJobs { jobs, unreadable, now, next_due, wake })
}

/// A claim in progress.
pub(crate) struct Claim<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) request: &'a ClaimRequest,
    /// A random number. It distinguishes the leases of this claim from others with the same epoch, which exist after a
    /// failover that lost writes.
    pub(crate) number: u64,
    pub(crate) now: Timestamp,
    /// The lanes that it may take from, by shard; highest priority first.
    pub(crate) heads: Vec<Vec<LaneHead>>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) unreadable: Vec<UnreadableJob>,
}

/// A lane, and when its first job is due.
pub(crate) struct LaneHead {
    pub(crate) lane: Lane,
    pub(crate) due: Timestamp,
}

/// Why a claim stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// It has enough jobs, or nothing more is due.
    Done,
    /// The next job has a partition key, and so may have limits or an order.
    PartitionKey,
}

impl Claim<'_> {
    /// How many more jobs it may take.
    pub(crate) fn remaining(&self) -> usize {
        self.request.limit - self.jobs.len() - self.unreadable.len()
    }

    /// Takes jobs without a partition key, priority by priority.
    async fn take_unlimited(&mut self) -> Result<Stop, StoreError> {
        let shards: Vec<usize> = self.inner.rotated_shards().collect();
        for priority in self.priorities() {
            for shard in &shards {
                let is_due = |head: &LaneHead| priority.includes(&head.lane) && head.due <= self.now;
                if self.remaining() > 0
                    && self.heads[*shard].iter().any(is_due)
                    && self.take_from(*shard, priority).await? == Stop::PartitionKey
                {
                    return Ok(Stop::PartitionKey);
                }
            }
        }
        Ok(Stop::Done)
    }

    /// The priorities to go through one by one. If only one shard has due jobs, its script keeps the order of priorities itself.
    fn priorities(&self) -> Vec<PriorityFilter> {
        let has_due = |heads: &&Vec<LaneHead>| heads.iter().any(|head| head.due <= self.now);
        if self.heads.iter().filter(has_due).count() < 2 {
            return vec![PriorityFilter::Any];
        }
        let mut priorities: Vec<u8> = self.heads.iter().flatten().map(|head| head.lane.priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        priorities.into_iter().rev().map(PriorityFilter::Only).collect()
    }

    async fn take_from(&mut self, shard: usize, priority: PriorityFilter) -> Result<Stop, StoreError> {
        let (selected, rest): (Vec<LaneHead>, Vec<LaneHead>) =
            self.heads[shard].drain(..).partition(|head| priority.includes(&head.lane));
        let mut arguments = self.inner.arguments();
        arguments.count(self.remaining());
        arguments.text(&self.request.worker);
        arguments.text(self.number);
        arguments.text(self.request.lease.as_millis());
        arguments.count(selected.len());
        selected.iter().for_each(|head| arguments.text(&head.lane.name));
        let value = self.inner.run(&script::CLAIM, shard, arguments).await?;
        let [now, limited, leased, heads] = reply::parts(value)?;
        let now = reply::timestamp(now)?;
        self.now = self.now.max(now);
        self.add_leased(shard, now, leased)?;
        self.heads[shard] = rest.into_iter().chain(read_heads(heads)?).collect();
        sort_by_priority(&mut self.heads[shard]);
        Ok(if limited == Value::Int(1) { Stop::PartitionKey } else { Stop::Done })
    }

    /// Adds the jobs that a script leased on a shard at `now`.
    pub(crate) fn add_leased(
        &mut self,
        shard: usize,
        now: Timestamp,
        leased: Value,
    ) -> Result<(), StoreError> {
        let rows = LeasedRows {
            inner: self.inner,
            shard,
            claim: self.number,
            worker: Some(&self.request.worker),
            started: Some(now),
        };
        let (jobs, unreadable) = rows.read(leased)?;
        self.jobs.extend(jobs);
        self.unreadable.extend(unreadable);
        Ok(())
    }
}

/// Which priorities to take from.
#[derive(Debug, Clone, Copy)]
enum PriorityFilter {
    Any,
    Only(u8),
}

impl PriorityFilter {
    fn includes(self, lane: &Lane) -> bool {
        match self {
            Self::Any => true,
            Self::Only(priority) => lane.priority == priority,
        }
    }
}

/// The store's time, and the lanes of every shard.
pub(crate) async fn lane_heads(inner: &Inner) -> Result<(Timestamp, Vec<Vec<LaneHead>>), StoreError> {
    let mut all = Vec::with_capacity(inner.layout.shards);
    let mut latest = Timestamp::from_ms(i64::MIN);
    for value in inner.run_on_all_shards(&script::LANE_HEADS, &inner.arguments()).await? {
        let [now, heads] = reply::parts(value)?;
        latest = latest.max(reply::timestamp(now)?);
        all.push(read_heads(heads)?);
    }
    Ok((latest, all))
}

fn read_heads(value: Value) -> Result<Vec<LaneHead>, StoreError> {
    let mut flat = reply::items(value)?.into_iter();
    let mut heads = Vec::new();
    while let (Some(lane), Some(due)) = (flat.next(), flat.next()) {
        // A lane that cannot be parsed was not written by redrive.
        if let Ok(lane) = Lane::parse(reply::text(lane)?) {
            heads.push(LaneHead { lane, due: reply::timestamp(due)? });
        }
    }
    Ok(heads)
}

/// The lanes that the request asks for, without paused queues; highest priority first.
pub(crate) fn requested_heads(
    heads: Vec<LaneHead>,
    request: &ClaimRequest,
    settings: &Settings,
) -> Vec<LaneHead> {
    let is_requested = |lane: &Lane| {
        (request.queues.is_empty() || request.queues.contains(&lane.queue))
            && (request.kinds.is_empty() || request.kinds.contains(&lane.kind))
            && !settings.is_paused(lane.queue.as_str())
            && !settings.is_sealed()
    };
    let mut requested: Vec<LaneHead> = heads.into_iter().filter(|head| is_requested(&head.lane)).collect();
    sort_by_priority(&mut requested);
    requested
}

fn sort_by_priority(heads: &mut [LaneHead]) {
    heads.sort_by_key(|head| std::cmp::Reverse(head.lane.priority));
}
