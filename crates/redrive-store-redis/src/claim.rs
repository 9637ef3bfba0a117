//! Leases due jobs: the most urgent first, and partition after partition in turn, so that none starves.

use futures_util::future::try_join;
use redis::Value;
use redrive_core::store::{ClaimRequest, Claimed, Unreadable};
use redrive_core::{Job, StoreError, Timestamp};

use crate::open::Inner;
use crate::row::{Lane, Taken};
use crate::settings::Settings;
use crate::{answer, claim_bounded, script};

pub(crate) async fn claim(inner: &Inner, request: &ClaimRequest) -> Result<Claimed, StoreError> {
    let wake = inner.wakes();
    let (settings, (now, heads)) = try_join(Settings::read(inner), heads(inner)).await?;
    let mut claim = Claim {
        inner,
        request,
        number: fastrand::u64(..),
        now,
        heads: heads.into_iter().map(|lanes| wanted(lanes, request, &settings)).collect(),
        jobs: Vec::new(),
        unreadable: Vec::new(),
    };
    let bounded =
        claim.heads.iter().any(|lanes| lanes.iter().any(|(lane, _)| settings.is_bounded(&lane.queue)));
    let next_due = if bounded || claim.take_free().await? == Met::Bounds {
        claim_bounded::go_on(&mut claim, &settings).await?
    } else {
        claim.heads.iter().flatten().map(|(_, due)| *due).min()
    };
    let Claim { now, mut jobs, unreadable, .. } = claim;
    jobs.sort_by_key(|job| (std::cmp::Reverse(job.priority), job.next_run_at, job.id));
    Ok(Claimed { jobs, unreadable, now, next_due, wake })
}

/// A claim under way.
pub(crate) struct Claim<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) request: &'a ClaimRequest,
    /// Its own, by which its leases are known apart from others of the same epoch.
    pub(crate) number: u64,
    pub(crate) now: Timestamp,
    /// The lanes that it may take from, by partition, with when the first job of each is due.
    pub(crate) heads: Vec<Heads>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) unreadable: Vec<Unreadable>,
}

/// Lanes with when the first job of each is due, the most urgent first.
pub(crate) type Heads = Vec<(Lane, Timestamp)>;

/// What stopped a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    /// Nothing more to take, or as many as were asked for.
    End,
    /// A job whose key may have bounds or an order.
    Bounds,
}

impl Claim<'_> {
    pub(crate) fn left(&self) -> usize {
        self.request.limit - self.jobs.len() - self.unreadable.len()
    }

    /// Takes what nothing bounds, priority by priority.
    async fn take_free(&mut self) -> Result<Met, StoreError> {
        let turns: Vec<usize> = self.inner.in_turn().collect();
        for priority in self.priorities() {
            for partition in &turns {
                let due =
                    self.heads[*partition].iter().any(|(lane, due)| priority.fits(lane) && *due <= self.now);
                if self.left() > 0 && due && self.take_from(*partition, priority).await? == Met::Bounds {
                    return Ok(Met::Bounds);
                }
            }
        }
        Ok(Met::End)
    }

    /// The priorities to go through one by one. Where one partition has all that is due, it keeps their order by itself.
    fn priorities(&self) -> Vec<Urgency> {
        let due = |heads: &Heads| heads.iter().any(|(_, due)| *due <= self.now);
        if self.heads.iter().filter(|heads| due(heads)).count() < 2 {
            return vec![Urgency::Any];
        }
        let lanes = self.heads.iter().flatten().map(|(lane, _)| lane.priority);
        let mut all: Vec<u8> = lanes.collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter().rev().map(Urgency::Only).collect()
    }

    async fn take_from(&mut self, partition: usize, priority: Urgency) -> Result<Met, StoreError> {
        let (asked, rest): (Heads, Heads) =
            self.heads[partition].drain(..).partition(|(lane, _)| priority.fits(lane));
        let mut arguments = self.inner.arguments();
        arguments.count(self.left());
        arguments.text(&self.request.worker);
        arguments.text(self.number);
        arguments.text(self.request.lease.as_millis());
        arguments.count(asked.len());
        asked.iter().for_each(|(lane, _)| arguments.text(&lane.name));
        let value = self.inner.run(&script::CLAIM, partition, arguments).await?;
        let [now, bounded, leased, heads] = answer::parts(value)?;
        let now = answer::instant(now)?;
        self.now = self.now.max(now);
        self.keep(partition, now, leased)?;
        self.heads[partition] = rest.into_iter().chain(read_heads(heads)?).collect();
        sort(&mut self.heads[partition]);
        Ok(if bounded == Value::Int(1) { Met::Bounds } else { Met::End })
    }

    /// Keeps what was leased in a partition at an instant.
    pub(crate) fn keep(&mut self, partition: usize, now: Timestamp, leased: Value) -> Result<(), StoreError> {
        let taken = Taken {
            inner: self.inner,
            partition,
            claim: self.number,
            worker: Some(&self.request.worker),
            started: Some(now),
        };
        let (jobs, unreadable) = taken.read(leased)?;
        self.jobs.extend(jobs);
        self.unreadable.extend(unreadable);
        Ok(())
    }
}

/// Which priorities to take from.
#[derive(Debug, Clone, Copy)]
enum Urgency {
    Any,
    Only(u8),
}

impl Urgency {
    fn fits(self, lane: &Lane) -> bool {
        match self {
            Self::Any => true,
            Self::Only(priority) => lane.priority == priority,
        }
    }
}

/// The store's time, and the lanes of every partition.
pub(crate) async fn heads(inner: &Inner) -> Result<(Timestamp, Vec<Heads>), StoreError> {
    let mut all = Vec::with_capacity(inner.layout.partitions);
    let mut latest = Timestamp::from_ms(i64::MIN);
    for value in inner.run_on_all(&script::HEADS, &inner.arguments()).await? {
        let [now, heads] = answer::parts(value)?;
        latest = latest.max(answer::instant(now)?);
        all.push(read_heads(heads)?);
    }
    Ok((latest, all))
}

fn read_heads(value: Value) -> Result<Heads, StoreError> {
    let mut flat = answer::items(value)?.into_iter();
    let mut heads = Vec::new();
    while let (Some(lane), Some(due)) = (flat.next(), flat.next()) {
        // One that cannot be read was not written by redrive.
        if let Ok(lane) = Lane::read(answer::text(lane)?) {
            heads.push((lane, answer::instant(due)?));
        }
    }
    Ok(heads)
}

/// What the request asks for, paused queues left out, the most urgent first.
pub(crate) fn wanted(lanes: Heads, request: &ClaimRequest, settings: &Settings) -> Heads {
    let asked = |lane: &Lane| {
        (request.queues.is_empty() || request.queues.contains(&lane.queue))
            && (request.kinds.is_empty() || request.kinds.contains(&lane.kind))
            && !settings.is_paused(lane.queue.as_str())
            && !settings.is_sealed()
    };
    let mut wanted: Heads = lanes.into_iter().filter(|(lane, _)| asked(lane)).collect();
    sort(&mut wanted);
    wanted
}

fn sort(heads: &mut Heads) {
    heads.sort_by_key(|(lane, _)| std::cmp::Reverse(lane.priority));
}
