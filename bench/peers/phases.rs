//! What all peer programs share: measured phases, and the one JSON line.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// No phase runs longer than this, so a peer that stalls still yields a line.
const PHASE_LIMIT: Duration = Duration::from_secs(120);
/// Concurrent callers in the one-by-one phase.
const CALLERS: usize = 64;
/// Jobs handed over in one batch call.
const BATCH: usize = 1000;

/// The version Cargo.lock pins, so that the line cannot claim another one.
pub fn locked_version(lock: &str, name: &str) -> Result<String> {
    let at = format!("name = \"{name}\"\nversion = \"");
    let rest = lock.split_once(&at).context("not in Cargo.lock")?.1;
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}

/// The one line on stdout; the field order is the line's order.
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

/// What went wrong, for the note field; nothing wrong leaves the field out.
#[derive(Default)]
pub struct Notes(Vec<String>);

impl Notes {
    pub fn add(&mut self, text: String) {
        self.0.push(text);
    }

    /// Tells of a phase that did not get everything done.
    fn short(&mut self, phase: &str, done: usize, wanted: usize, why: Option<String>) {
        if done < wanted {
            let why = why.unwrap_or_else(|| "time limit".to_owned());
            self.add(format!("{phase}: {done} of {wanted} ({why})"));
        }
    }

    pub fn joined(self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join("; "))
    }
}

/// What a phase got done, and in how long.
#[derive(Clone, Copy)]
pub struct Phase {
    pub done: usize,
    took: Duration,
}

impl Phase {
    /// Jobs per second; None if nothing got done.
    pub fn per_s(self) -> Option<f64> {
        (self.done > 0).then(|| round(self.done as f64 / self.took.as_secs_f64(), 1))
    }
}

/// How a peer is handed jobs.
pub trait Enqueue: Clone + Send + 'static {
    fn one(&mut self) -> impl Future<Output = Result<()>> + Send;
    fn batch(&mut self, size: usize) -> impl Future<Output = Result<()>> + Send;
}

/// Hands over `jobs` jobs in batches, from `callers` tasks at once.
pub async fn enqueue_batches(
    peer: &impl Enqueue,
    callers: usize,
    jobs: usize,
    notes: &mut Notes,
) -> Result<Phase> {
    let (phase, error) = enqueue(peer, Step { callers, size: BATCH }, jobs).await?;
    notes.short("enqueue_batch", phase.done, jobs, error);
    Ok(phase)
}

/// Hands over `jobs` jobs one call each, from many tasks at once.
pub async fn enqueue_singles(peer: &impl Enqueue, jobs: usize, notes: &mut Notes) -> Result<Phase> {
    let (phase, error) = enqueue(peer, Step { callers: CALLERS, size: 1 }, jobs).await?;
    notes.short("enqueue_one_by_one", phase.done, jobs, error);
    Ok(phase)
}

/// How many jobs the one-by-one phase adds.
pub fn singles(jobs: usize) -> usize {
    jobs.min(20_000)
}

/// How jobs are handed over: how many at a time, from how many tasks.
#[derive(Clone, Copy)]
struct Step {
    callers: usize,
    size: usize,
}

async fn enqueue(peer: &impl Enqueue, step: Step, jobs: usize) -> Result<(Phase, Option<String>)> {
    let tickets = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let callers: Vec<_> = (0..step.callers)
        .map(|_| tokio::spawn(add_share(peer.clone(), tickets.clone(), step.size, jobs, start)))
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

/// One caller's share: a failed call is told, and the caller goes on with the next ticket.
async fn add_share(
    mut peer: impl Enqueue,
    tickets: Arc<AtomicUsize>,
    step: usize,
    jobs: usize,
    start: Instant,
) -> (usize, Option<String>) {
    let (mut done, mut error) = (0, None);
    loop {
        let at = tickets.fetch_add(step, Ordering::Relaxed);
        if at >= jobs {
            return (done, error);
        }
        let size = step.min(jobs - at);
        let call = async { if step == 1 { peer.one().await } else { peer.batch(size).await } };
        match timeout(left(start), call).await {
            Ok(Ok(())) => done += size,
            Ok(Err(e)) => error = Some(e.to_string()),
            Err(_) => return (done, error),
        }
    }
}

/// Waits until the database has `jobs` done jobs. The database is asked once the handlers
/// have run, and every few seconds for a peer that stalls: a count costs the peer time.
pub async fn drain(
    jobs: usize,
    start: Instant,
    probe: &Probe,
    mut done_in_db: impl AsyncFnMut() -> Result<usize>,
    notes: &mut Notes,
) -> Result<Phase> {
    let mut next_look = Duration::from_secs(5);
    loop {
        sleep(Duration::from_millis(2)).await;
        if probe.ran() < jobs && start.elapsed() < next_look {
            continue;
        }
        let done = done_in_db().await?;
        let took = start.elapsed();
        if done >= jobs || took >= PHASE_LIMIT {
            notes.short("drain", done, jobs, None);
            return Ok(Phase { done, took });
        }
        next_look = took + Duration::from_secs(5);
    }
}

/// Adds one job at a time to an idle worker, with pauses between; the sorted times from the
/// call's return to the handler's start.
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
        let seen = probe.ran();
        match timeout(left(start), peer.one()).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => error = Some(e.to_string()),
            Err(_) => break,
        }
        let added = Instant::now();
        if error.is_some() {
            break;
        }
        let Some(at) = probe.start_after(seen, left(start)).await else { break };
        waits.push(at.saturating_duration_since(added));
    }
    notes.short("pickup", waits.len(), picks, error);
    waits.sort_unstable();
    waits
}

/// What the handler tells the measuring side.
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

    /// The first thing a handler does.
    pub fn started(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.ran.fetch_add(1, Ordering::Release);
        self.wake.notify_one();
    }

    fn ran(&self) -> usize {
        self.ran.load(Ordering::Acquire)
    }

    /// When the run after the first `seen` ones started, or None once `limit` is over.
    async fn start_after(&self, seen: usize, limit: Duration) -> Option<Instant> {
        let end = Instant::now() + limit;
        while self.ran() <= seen {
            let left = end.checked_duration_since(Instant::now())?;
            // A permit left over from an earlier job only costs one more turn of the loop.
            timeout(left, self.wake.notified()).await.ok()?;
        }
        Some(*self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is left of a phase that began at `start`.
fn left(start: Instant) -> Duration {
    PHASE_LIMIT.saturating_sub(start.elapsed())
}

/// The pause before a pickup: uneven, so as not to fall in step with a poll interval, and the
/// same in every run.
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
