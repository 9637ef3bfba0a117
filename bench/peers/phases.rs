//! What the peer programs share: command line, measured phases, and the one JSON line.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// No phase runs longer than this, so a peer that stalls still yields a line.
const PHASE_LIMIT: Duration = Duration::from_secs(120);
/// Concurrent callers in the one-by-one phase.
const CALLERS: usize = 64;
/// Jobs handed over in one batch call.
const BATCH: usize = 1000;

/// The command line.
pub struct Args {
    pub dir: PathBuf,
    pub jobs: usize,
    picks: usize,
}

impl Args {
    pub fn parse() -> Result<Self> {
        let (mut dir, mut jobs, mut picks) = (None, None, 200);
        let mut words = std::env::args().skip(1);
        while let Some(flag) = words.next() {
            let value = words.next().with_context(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--dir" => dir = Some(PathBuf::from(value)),
                "--jobs" => jobs = Some(value.parse().context("--jobs")?),
                "--picks" => picks = value.parse().context("--picks")?,
                _ => bail!("unknown flag {flag}"),
            }
        }
        let dir = dir.context("--dir is required")?;
        std::fs::create_dir_all(&dir)?;
        if std::fs::read_dir(&dir)?.next().is_some() {
            bail!("--dir must be empty: leftovers would be drained as well");
        }
        let jobs = jobs.context("--jobs is required")?;
        Ok(Self { dir, jobs, picks })
    }

    /// How many pickups to measure: none while jobs are left, as the worker is not idle then
    /// and another job's start would be taken for the pickup.
    pub fn picks_after(&self, drained: Phase, jobs: usize) -> usize {
        if drained.done < jobs { 0 } else { self.picks }
    }

    /// How many jobs the one-by-one phase adds.
    pub fn singles(&self) -> usize {
        self.jobs.min(20_000)
    }
}

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
    pub fn per_s(self) -> Option<f64> {
        (self.done > 0).then(|| round(self.done as f64 / self.took.as_secs_f64(), 1))
    }
}

/// How a peer is handed jobs.
pub trait Enqueue: Clone + Send + 'static {
    fn one(&mut self) -> impl Future<Output = Result<()>> + Send;
    fn batch(&mut self, size: usize) -> impl Future<Output = Result<()>> + Send;
}

/// Hands over `jobs` jobs in batches, one batch after the other.
pub async fn enqueue_batches(peer: &impl Enqueue, jobs: usize, notes: &mut Notes) -> Phase {
    let mut peer = peer.clone();
    let (mut done, mut error) = (0, None);
    let start = Instant::now();
    while done < jobs && error.is_none() {
        let size = BATCH.min(jobs - done);
        match timeout(left(start), peer.batch(size)).await {
            Ok(Ok(())) => done += size,
            Ok(Err(e)) => error = Some(e.to_string()),
            Err(_) => break,
        }
    }
    let took = start.elapsed();
    notes.short("enqueue_batch", done, jobs, error);
    Phase { done, took }
}

/// Hands over `jobs` jobs one call each, from many tasks at once.
pub async fn enqueue_singles(peer: &impl Enqueue, jobs: usize, notes: &mut Notes) -> Result<Phase> {
    let tickets = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let callers: Vec<_> =
        (0..CALLERS).map(|_| tokio::spawn(add_share(peer.clone(), tickets.clone(), jobs, start))).collect();
    let (mut done, mut error) = (0, None);
    for caller in callers {
        let (added, failed) = caller.await?;
        done += added;
        error = failed.or(error);
    }
    let took = start.elapsed();
    notes.short("enqueue_one_by_one", done, jobs, error);
    Ok(Phase { done, took })
}

/// One caller's share: a failed call is told, and the caller goes on with the next ticket.
async fn add_share(
    mut peer: impl Enqueue,
    tickets: Arc<AtomicUsize>,
    jobs: usize,
    start: Instant,
) -> (usize, Option<String>) {
    let (mut done, mut error) = (0, None);
    while tickets.fetch_add(1, Ordering::Relaxed) < jobs {
        match timeout(left(start), peer.one()).await {
            Ok(Ok(())) => done += 1,
            Ok(Err(e)) => error = Some(e.to_string()),
            Err(_) => break,
        }
    }
    (done, error)
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

/// Adds one job at a time to an idle worker; the sorted times from the call's return to
/// the handler's start.
pub async fn pickups(peer: &impl Enqueue, probe: &Probe, picks: usize, notes: &mut Notes) -> Vec<Duration> {
    let mut peer = peer.clone();
    let mut error = None;
    let mut waits = Vec::with_capacity(picks);
    let start = Instant::now();
    for pick in 0..picks {
        sleep(gap(pick)).await;
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

/// Gaps between pickups, 5 to 25 ms: uneven, so as not to fall in step with a poll interval.
fn gap(pick: usize) -> Duration {
    Duration::from_micros(5_000 + (pick as u64 * 7_919) % 20_000)
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
