//! Claims under limits and strict order. One claim at a time reads the counts, lets core decide, and applies the decisions.
//!
//! A lock keeps these claims apart. If its holder stalls for longer than the lock lasts, the larger token of the next holder, which
//! is written into every shard, shuts the stalled one out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use redis::Value;
use redrive_core::capacity::{Admission, Candidate, Capacity, RecentStarts};
use redrive_core::queue_limits::Rate;
use redrive_core::{JobId, Queue, StoreError, Timestamp};

use crate::inner::Inner;
use crate::lifecycle::claim::{self, Claim, LaneHead};
use crate::row::Lane;
use crate::script::{self, Arguments, reply};
use crate::settings::Settings;

/// How long one claim may hold the lock before another may take it.
const LOCK_DURATION: Duration = Duration::from_secs(2);
/// Due jobs to read from each shard at a time.
const CANDIDATES_MIN: usize = 64;
const CANDIDATES_MAX: usize = 1_000;

/// Takes the jobs for which the limits leave slots. Returns when the next job is due whose queue has a free slot.
pub(crate) async fn claim_limited(
    claim: &mut Claim<'_>,
    settings: &Settings,
) -> Result<Option<Timestamp>, StoreError> {
    let deadline = Instant::now() + claim.inner.options.call_timeout;
    while Instant::now() < deadline {
        let lock = LimitsLock::acquire(claim.inner).await?;
        let taken = take_all(claim, settings, &lock).await;
        lock.release().await;
        if let Some(capacity) = taken? {
            return next_due(claim, settings, &capacity).await;
        }
        // Another claim has the lock by now, so start again.
    }
    Err(busy())
}

/// Takes jobs until the request is full or nothing more may start. Returns `None` if another claim has the lock by now.
async fn take_all(
    claim: &mut Claim<'_>,
    settings: &Settings,
    lock: &LimitsLock<'_>,
) -> Result<Option<Capacity>, StoreError> {
    let mut capacity = Capacity { limits: settings.limits.clone(), ..Capacity::default() };
    let mut full = Vec::new();
    loop {
        let max = claim.remaining().clamp(CANDIDATES_MIN, CANDIDATES_MAX);
        let Some(due) = read_due_jobs(claim, settings, lock, &mut capacity, &full, max).await? else {
            return Ok(None);
        };
        let found = due.len();
        let (admissions, newly_full) = decide(claim, &mut capacity, due);
        full.extend(newly_full);
        let stuck = admissions.is_empty() && full.is_empty();
        if !apply(claim, lock, &capacity, admissions).await? {
            return Ok(None);
        }
        if claim.remaining() == 0 || found == 0 || stuck {
            return Ok(Some(capacity));
        }
    }
}

/// A due job and its shard.
struct DueJob {
    shard: usize,
    lane: Lane,
    id: JobId,
    due: Timestamp,
    /// Its queue and partition key; empty without a key.
    scope: String,
    strict: bool,
}

/// Reads the first due jobs of every shard in claim order, and the counts that their limits depend on.
async fn read_due_jobs(
    claim: &mut Claim<'_>,
    settings: &Settings,
    lock: &LimitsLock<'_>,
    capacity: &mut Capacity,
    full: &[Queue],
    max: usize,
) -> Result<Option<Vec<DueJob>>, StoreError> {
    let is_first_read = capacity.now == Timestamp::default();
    let calls = claim.heads.iter().enumerate().map(|(shard, heads)| {
        let lanes: Vec<&Lane> =
            heads.iter().map(|head| &head.lane).filter(|lane| !full.contains(&lane.queue)).collect();
        let mut arguments = claim.inner.arguments();
        arguments.text(&lock.token);
        arguments.count(max);
        arguments.count(lanes.len());
        lanes.iter().for_each(|lane| arguments.text(&lane.name));
        write_limited_queues(&mut arguments, settings, claim.now);
        claim.inner.run(&script::CANDIDATES, shard, arguments)
    });
    let mut all = Vec::new();
    let mut counts = ShardCounts::default();
    for (shard, value) in try_join_all(calls).await?.into_iter().enumerate() {
        let mut parts = reply::items(value)?.into_iter();
        let (Some(now), Some(word)) = (parts.next(), parts.next()) else {
            return Err(reply::unexpected("a time and a word"));
        };
        let now = reply::timestamp(now)?;
        if reply::text(word)? != "ok" {
            return Ok(None);
        }
        claim.now = claim.now.max(now);
        let (Some(due), Some(scopes), Some(queues)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(reply::unexpected("all its parts"));
        };
        for item in reply::items(due)? {
            all.push(read_due_job(shard, item)?);
        }
        counts.add(scopes, queues)?;
    }
    capacity.now = claim.now;
    counts.add_to(capacity, is_first_read);
    all.sort_by_key(|job| (std::cmp::Reverse(job.lane.priority), job.due, job.id));
    all.truncate(max);
    Ok(Some(all))
}

/// Names the queues with limits, and since when starts count for their rates.
fn write_limited_queues(arguments: &mut Arguments, settings: &Settings, now: Timestamp) {
    let since = |rate: Option<Rate>| rate.map(|rate| rate.since(now).as_ms().to_string()).unwrap_or_default();
    arguments.count(settings.limits.len());
    for (queue, limits) in &settings.limits {
        arguments.text(queue);
        arguments.text(since(limits.rate));
        arguments.text(since(limits.per_key.rate));
    }
}

fn read_due_job(shard: usize, value: Value) -> Result<DueJob, StoreError> {
    let [id, lane, due, scope, strict] = reply::parts(value)?;
    Ok(DueJob {
        shard,
        lane: Lane::parse(reply::text(lane)?)?,
        id: reply::id(&reply::text(id)?)?,
        due: reply::timestamp(due)?,
        scope: reply::text(scope)?,
        strict: !reply::text(strict)?.is_empty(),
    })
}

/// Running jobs and recent starts, summed over the shards.
#[derive(Default)]
struct ShardCounts {
    queues: BTreeMap<String, ScopeCounts>,
    scopes: BTreeMap<String, ScopeCounts>,
}

#[derive(Default)]
struct ScopeCounts {
    running: u64,
    starts: Vec<Timestamp>,
    /// The first live job in strict order.
    first: Option<JobId>,
}

impl ShardCounts {
    fn add(&mut self, scopes: Value, queues: Value) -> Result<(), StoreError> {
        for scope in reply::items(scopes)? {
            let mut parts = reply::items(scope)?.into_iter();
            let (Some(scope), Some(running), Some(first)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(reply::unexpected("all its parts"));
            };
            let first = reply::optional_id(first)?;
            let counts = self.scopes.entry(reply::text(scope)?).or_default();
            counts.running += reply::number::<u64>(running)?;
            counts.first = [counts.first, first].into_iter().flatten().min();
            counts.starts.extend(parts.next().map(read_starts).transpose()?.unwrap_or_default());
        }
        for queue in reply::items(queues)? {
            let [queue, running, starts] = reply::parts(queue)?;
            let counts = self.queues.entry(reply::text(queue)?).or_default();
            counts.running += reply::number::<u64>(running)?;
            counts.starts.extend(read_starts(starts)?);
        }
        Ok(())
    }

    /// Adds the counts to `capacity`. After the first read it already counts what this claim has taken, so only new scopes are
    /// added.
    fn add_to(self, capacity: &mut Capacity, is_first_read: bool) {
        let recent = |starts: Vec<Timestamp>| RecentStarts {
            before: starts.into_iter().map(|at| (at, 1)).collect(),
            added: 0,
        };
        if is_first_read {
            for (queue, counts) in self.queues {
                capacity.running.insert(queue.clone(), counts.running);
                capacity.starts.insert(queue, recent(counts.starts));
            }
        }
        for (scope, counts) in self.scopes {
            if !capacity.running.contains_key(&scope) {
                capacity.running.insert(scope.clone(), counts.running);
                capacity.starts.insert(scope.clone(), recent(counts.starts));
                if let Some(first) = counts.first {
                    capacity.first.insert(scope, first);
                }
            }
        }
    }
}

fn read_starts(value: Value) -> Result<Vec<Timestamp>, StoreError> {
    let flat = reply::texts(value)?;
    flat.chunks_exact(2).map(|pair| reply::score(&pair[1])).collect()
}

/// Lets core decide about each job. Returns the decisions to apply, and the queues without a free slot.
fn decide(
    claim: &Claim<'_>,
    capacity: &mut Capacity,
    due: Vec<DueJob>,
) -> (Vec<(DueJob, Admission)>, Vec<Queue>) {
    let (mut admissions, mut full) = (Vec::new(), Vec::new());
    let mut taken = 0;
    for job in due {
        if taken == claim.remaining() {
            break;
        }
        let partition = (!job.scope.is_empty()).then_some(job.scope.as_str());
        let candidate = Candidate { id: job.id, partition, strict: job.strict };
        let admission = capacity.admit(&job.lane.queue, candidate);
        match admission {
            Admission::Skip => {
                if !full.contains(&job.lane.queue) {
                    full.push(job.lane.queue);
                }
            }
            Admission::Take => {
                taken += 1;
                admissions.push((job, admission));
            }
            Admission::WaitForSlot | Admission::Delay(_) => admissions.push((job, admission)),
        }
    }
    (admissions, full)
}

/// Applies the decisions. Returns false if another claim has the lock by now.
async fn apply(
    claim: &mut Claim<'_>,
    lock: &LimitsLock<'_>,
    capacity: &Capacity,
    admissions: Vec<(DueJob, Admission)>,
) -> Result<bool, StoreError> {
    let mut by_shard: BTreeMap<usize, Vec<(DueJob, Admission)>> = BTreeMap::new();
    for (job, admission) in admissions {
        by_shard.entry(job.shard).or_default().push((job, admission));
    }
    for (shard, admissions) in by_shard {
        let mut arguments = claim.inner.arguments();
        arguments.text(&lock.token);
        arguments.text(&claim.request.worker);
        arguments.text(claim.number);
        arguments.text(claim.request.lease.as_millis());
        arguments.count(admissions.len());
        for (job, admission) in &admissions {
            arguments.id(job.id);
            arguments.text(match admission {
                Admission::WaitForSlot | Admission::Skip => "wait".to_owned(),
                Admission::Take => "take".to_owned(),
                Admission::Delay(until) => until.as_ms().to_string(),
            });
        }
        write_starts(&mut arguments, capacity, &admissions);
        let value = claim.inner.run(&script::APPLY_ADMISSIONS, shard, arguments).await?;
        let mut parts = reply::items(value)?.into_iter();
        let (Some(now), Some(word)) = (parts.next(), parts.next()) else {
            return Err(reply::unexpected("a time and a word"));
        };
        if reply::text(word)? != "ok" {
            return Ok(false);
        }
        let leased = parts.next().ok_or_else(|| reply::unexpected("the leased jobs"))?;
        claim.add_leased(shard, reply::timestamp(now)?, leased)?;
    }
    Ok(true)
}

/// Writes how many jobs start under each rate limit, and since when its starts count.
fn write_starts(arguments: &mut Arguments, capacity: &Capacity, admissions: &[(DueJob, Admission)]) {
    let mut starts: BTreeMap<&str, (usize, i64)> = BTreeMap::new();
    for (job, _) in admissions.iter().filter(|(_, admission)| *admission == Admission::Take) {
        let limits = capacity.limits_of(&job.lane.queue);
        let of_key = (!job.scope.is_empty()).then_some((job.scope.as_str(), limits.per_key.rate));
        for (scope, rate) in [Some((job.lane.queue.as_str(), limits.rate)), of_key].into_iter().flatten() {
            if let Some(rate) = rate {
                starts.entry(scope).or_insert((0, rate.since(capacity.now).as_ms())).0 += 1;
            }
        }
    }
    arguments.count(starts.len());
    for (scope, (added, since)) in starts {
        arguments.text(scope);
        arguments.count(added);
        arguments.text(since);
    }
}

/// When the next job is due whose queue has a free slot, or when a rate limit allows the next start.
async fn next_due(
    claim: &mut Claim<'_>,
    settings: &Settings,
    capacity: &Capacity,
) -> Result<Option<Timestamp>, StoreError> {
    let (_, heads) = claim::lane_heads(claim.inner).await?;
    let requested: Vec<LaneHead> =
        heads.into_iter().flat_map(|heads| claim::requested_heads(heads, claim.request, settings)).collect();
    let next = first_due_by_queue(&requested).into_iter().filter_map(|(queue, due)| {
        if capacity.free_queue_slots(queue) > 0 {
            Some(due)
        } else {
            capacity.queue_free_at(queue).map(|free| due.max(free))
        }
    });
    Ok(next.min())
}

fn first_due_by_queue(heads: &[LaneHead]) -> BTreeMap<&Queue, Timestamp> {
    let mut first = BTreeMap::new();
    for LaneHead { lane, due } in heads {
        let earliest = first.entry(&lane.queue).or_insert(*due);
        *earliest = (*earliest).min(*due);
    }
    first
}

fn busy() -> StoreError {
    StoreError::Busy("other claims hold the lock for claims under limits".into())
}

/// The lock for claims under limits.
struct LimitsLock<'a> {
    inner: &'a Inner,
    token: String,
}

impl<'a> LimitsLock<'a> {
    /// Waits until nobody else holds it.
    async fn acquire(inner: &'a Inner) -> Result<Self, StoreError> {
        let acquire = async {
            loop {
                let mut arguments = Arguments::none();
                arguments.text(LOCK_DURATION.as_millis());
                let token = reply::text(inner.run_on_records(&script::LOCK, arguments).await?)?;
                if !token.is_empty() {
                    return Ok(Self { inner, token });
                }
                tokio::time::sleep(Duration::from_micros(fastrand::u64(500..2_000))).await;
            }
        };
        tokio::time::timeout(inner.options.call_timeout, acquire).await.map_err(|_| busy())?
    }

    /// Releases the lock. If this fails, the lock expires by itself.
    async fn release(self) {
        let mut arguments = Arguments::none();
        arguments.text(&self.token);
        let _ = self.inner.run_on_records(&script::UNLOCK, arguments).await;
    }
}
