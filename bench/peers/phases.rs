//! The code that all peer programs share: the measured phases, and the JSON line that a program prints.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// The longest time of a phase. A peer that stalls still prints a line.
const PHASE_LIMIT: Duration = Duration::from_secs(120);
/// Concurrent callers in the one-by-one phase.
const CALLERS: usize = 64;
/// Jobs in one batch.
const BATCH: usize = 1000;

/// The version of a package in Cargo.lock, so that the report cannot name another one.
pub fn locked_version(lock: &str, name: &str) -> Result<String> {
    let start = format!("name = \"{name}\"\nversion = \"");
    let rest = lock.split_once(&start).context("not in Cargo.lock")?.1;
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}

/// The line on stdout. Its fields have the order of this struct.
#[derive(Serialize)]
pub struct Report {
    pub peer: &'static str,
    pub version: String,
    pub durability: String,
    pub settings: String,
    pub enqueue_batch_per_s: Option<f64>,
    pub enqueue_one_by_one_64_tasks_per_s: Option<f64>,
    pub drain_per_s: Option<f64>,
    pub pickup_p50_ms: Option<f64>,
    pub pickup_p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Report {
    pub fn print(&self) -> Result<()> {
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }
}

/// The problems of a run, for the field `note`. Without problems, the report has no such field.
#[derive(Default)]
pub struct Notes(Vec<String>);

impl Notes {
    pub fn add(&mut self, text: String) {
        self.0.push(text);
    }

    /// Adds a note if a phase has not done all its jobs.
    fn check_complete(&mut self, phase: &str, done: usize, expected: usize, error: Option<String>) {
        if done < expected {
            let cause = error.unwrap_or_else(|| "time limit".to_owned());
            self.add(format!("{phase}: {done} of {expected} ({cause})"));
        }
    }

    pub fn joined(self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join("; "))
    }
}

/// The result of a phase: the number of done jobs, and the time.
#[derive(Clone, Copy)]
pub struct Phase {
    pub done: usize,
    took: Duration,
}

impl Phase {
    /// Jobs per second. `None` if no job was done.
    pub fn per_s(self) -> Option<f64> {
        (self.done > 0).then(|| round(self.done as f64 / self.took.as_secs_f64(), 1))
    }
}

/// Enqueues jobs in a peer.
pub trait Enqueue: Clone + Send + 'static {
    fn one(&mut self) -> impl Future<Output = Result<()>> + Send;
    fn batch(&mut self, size: usize) -> impl Future<Output = Result<()>> + Send;
}

/// Enqueues `jobs` jobs in batches, from `callers` concurrent tasks.
pub async fn enqueue_batches(
    peer: &impl Enqueue,
    callers: usize,
    jobs: usize,
    notes: &mut Notes,
) -> Result<Phase> {
    let (phase, error) = enqueue(peer, EnqueueLoad { callers, batch: BATCH }, jobs).await?;
    notes.check_complete("enqueue_batch", phase.done, jobs, error);
    Ok(phase)
}

/// Enqueues `jobs` jobs with one call each, from many concurrent tasks.
pub async fn enqueue_singles(peer: &impl Enqueue, jobs: usize, notes: &mut Notes) -> Result<Phase> {
    let (phase, error) = enqueue(peer, EnqueueLoad { callers: CALLERS, batch: 1 }, jobs).await?;
    notes.check_complete("enqueue_one_by_one", phase.done, jobs, error);
    Ok(phase)
}

/// The number of jobs of the one-by-one phase.
pub fn singles(jobs: usize) -> usize {
    jobs.min(20_000)
}

/// The number of concurrent tasks that enqueue, and of jobs in one call.
#[derive(Clone, Copy)]
struct EnqueueLoad {
    callers: usize,
    batch: usize,
}

async fn enqueue(peer: &impl Enqueue, load: EnqueueLoad, jobs: usize) -> Result<(Phase, Option<String>)> {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let callers: Vec<_> = (0..load.callers)
        .map(|_| tokio::spawn(run_caller(peer.clone(), next.clone(), load.batch, jobs, start)))
        .collect();
    let (mut done, mut error) = (0, None);
    for caller in callers {
        let (added, failed) = caller.await?;
        done += added;
        error = failed.or(error);
    }
    let took = start.elapsed();
    Ok((Phase { done, took }, error))
}

/// Enqueues batches until all callers together have enqueued all jobs. After a failed call, the caller continues with the next
/// batch, and returns the error at the end.
async fn run_caller(
    mut peer: impl Enqueue,
    next: Arc<AtomicUsize>,
    batch: usize,
    jobs: usize,
    start: Instant,
) -> (usize, Option<String>) {
    let (mut done, mut error) = (0, None);
    loop {
        let first = next.fetch_add(batch, Ordering::Relaxed);
        if first >= jobs {
            return (done, error);
        }
        let size = batch.min(jobs - first);
        let call = async { if batch == 1 { peer.one().await } else { peer.batch(size).await } };
        match timeout(time_left(start), call).await {
            Ok(Ok(())) => done += size,
            Ok(Err(e)) => error = Some(e.to_string()),
            Err(_) => return (done, error),
        }
    }
}

/// Waits until the database has `jobs` done jobs. Counting slows the peer down, so this counts when all handlers have run, and every
/// five seconds in case the peer stalls.
pub async fn drain(
    jobs: usize,
    start: Instant,
    probe: &Probe,
    mut done_in_db: impl AsyncFnMut() -> Result<usize>,
    notes: &mut Notes,
) -> Result<Phase> {
    let mut next_count = Duration::from_secs(5);
    loop {
        sleep(Duration::from_millis(2)).await;
        if probe.ran() < jobs && start.elapsed() < next_count {
            continue;
        }
        let done = done_in_db().await?;
        let took = start.elapsed();
        if done >= jobs || took >= PHASE_LIMIT {
            notes.check_complete("drain", done, jobs, None);
            return Ok(Phase { done, took });
        }
        next_count = took + Duration::from_secs(5);
    }
}

/// Enqueues one job at a time for an idle worker, with pauses in between. Returns the sorted times from the return of the enqueue to the
/// start of the handler.
pub async fn pickups(
    peer: &impl Enqueue,
    probe: &Probe,
    picks: usize,
    pause_ms: Range<u64>,
    notes: &mut Notes,
) -> Vec<Duration> {
    let mut peer = peer.clone();
    let mut error = None;
    let mut waits = Vec::with_capacity(picks);
    let start = Instant::now();
    for pick in 0..picks {
        sleep(pause(pick, &pause_ms)).await;
        let ran_before = probe.ran();
        match timeout(time_left(start), peer.one()).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => error = Some(e.to_string()),
            Err(_) => break,
        }
        let added = Instant::now();
        if error.is_some() {
            break;
        }
        let Some(at) = probe.start_after(ran_before, time_left(start)).await else { break };
        waits.push(at.saturating_duration_since(added));
    }
    notes.check_complete("pickup", waits.len(), picks, error);
    waits.sort_unstable();
    waits
}

/// Records the starts of handlers for the measurement.
pub struct Probe {
    ran: AtomicUsize,
    last: Mutex<Instant>,
    wake: Notify,
}

impl Probe {
    pub fn new() -> Self {
        let last = Mutex::new(Instant::now());
        Self { ran: AtomicUsize::new(0), last, wake: Notify::new() }
    }

    /// Records the start of a handler. A handler calls this first.
    pub fn started(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.ran.fetch_add(1, Ordering::Release);
        self.wake.notify_one();
    }

    fn ran(&self) -> usize {
        self.ran.load(Ordering::Acquire)
    }

    /// Waits for the start of the first handler after `ran_before` others. Returns `None` after `limit`.
    async fn start_after(&self, ran_before: usize, limit: Duration) -> Option<Instant> {
        let end = Instant::now() + limit;
        while self.ran() <= ran_before {
            let left = end.checked_duration_since(Instant::now())?;
            // A permit of an earlier job only causes one more iteration.
            timeout(left, self.wake.notified()).await.ok()?;
        }
        Some(*self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The remaining time of a phase that began at `start`.
fn time_left(start: Instant) -> Duration {
    PHASE_LIMIT.saturating_sub(start.elapsed())
}

/// The pause before a pickup. The pauses differ, so that they do not synchronise with a poll interval, and are the same in every run.
fn pause(pick: usize, ms: &Range<u64>) -> Duration {
    // The finaliser of splitmix64.
    let mut mix = (pick as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ (mix >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let spread_us = (ms.end - ms.start) * 1000;
    Duration::from_micros(ms.start * 1000 + (mix ^ (mix >> 31)) % spread_us)
}

/// The p-th percentile (nearest rank) in milliseconds.
pub fn percentile_ms(sorted: &[Duration], p: f64) -> Option<f64> {
    let rank = (p / 100.0 * sorted.len() as f64).ceil() as usize;
    let at = sorted.get(rank.saturating_sub(1))?;
    Some(round(at.as_secs_f64() * 1e3, 3))
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}
