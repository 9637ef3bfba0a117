//! Kills one process after the other at a random moment. Then one process finishes the work, and the guarantees are checked.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use redrive_core::{Reason, State};
use redrive_testkit::History;
use redrive_testkit::checks::FinalState;
use redrive_testkit::history::HistoryEvent;

use super::child;
use crate::process::{ChildProcess, command};
use crate::workload::{ATTEMPTS, DRAIN_FAILED, LEASE};
use crate::{checks, runner};

/// The least number of processes that are killed.
const KILLS: u32 = 50;
/// The most processes that are killed on a slow machine, until the processes have enqueued [`ACKNOWLEDGED_MIN`] jobs.
const KILLS_MAX: u32 = 10 * KILLS;
/// The number of acknowledged jobs that makes the test meaningful.
const ACKNOWLEDGED_MIN: usize = 500;
/// The most processes that jobs may kill during the drain.
const DRAINS_MAX: u32 = 150;

pub(crate) fn killed_at_random_moments() {
    let mut rng = fastrand::Rng::with_seed(runner::seed());
    let folder = tempfile::tempdir().expect("a folder");
    let until = Instant::now() + soak();
    let mut kills = 0;
    while kills < KILLS || Instant::now() < until || (kills < KILLS_MAX && !is_meaningful(folder.path())) {
        kill_one(folder.path(), &mut rng);
        kills += 1;
    }
    let drained = drain(folder.path());
    // The checks come first, because they name the violated guarantee. The result of the drain does not.
    let summary = check(folder.path());
    assert!(drained, "NO-WEDGE: jobs are left that no process could finish");
    println!("  {kills} processes killed; {summary}");
}

fn is_meaningful(folder: &Path) -> bool {
    let (_store, history) = child::open(folder);
    checks::count_acknowledged(&history) > ACKNOWLEDGED_MIN
}

fn soak() -> Duration {
    let seconds = std::env::var("REDRIVE_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

/// Lets a process work for a moment, sometimes freezes it for longer than its leases, and kills it.
fn kill_one(folder: &Path, rng: &mut fastrand::Rng) {
    let mut child = start("work", folder, rng.u64(..));
    std::thread::sleep(Duration::from_millis(rng.u64(5..250)));
    if rng.f32() < 0.15 {
        child.signal("STOP");
        std::thread::sleep(LEASE * 2);
        child.signal("CONT");
        std::thread::sleep(Duration::from_millis(rng.u64(0..80)));
    }
    // One of its jobs may have killed it already.
    child.kill();
}

/// Lets processes finish the remaining jobs. Returns false if one of them does not end, or if too many are killed by their jobs.
fn drain(folder: &Path) -> bool {
    for _ in 0..DRAINS_MAX {
        match start("drain", folder, 0).wait() {
            Some(0) => return true,
            Some(DRAIN_FAILED) => return false,
            Some(_) | None => {}
        }
    }
    false
}

fn start(mode: &str, folder: &Path, seed: u64) -> ChildProcess {
    let mut command = command(super::SUITE, mode);
    command.arg(folder).arg(seed.to_string()).stderr(Stdio::null());
    ChildProcess::start(command)
}

/// Runs the five checks on the history of all processes.
fn check(folder: &Path) -> String {
    let (store, history) = child::open(folder);
    let end = runner::runtime().block_on(checks::check(&store, &history));
    check_poison_is_dead(&history, &end);
    let acknowledged = checks::count_acknowledged(&history);
    assert!(
        acknowledged > ACKNOWLEDGED_MIN,
        "only {acknowledged} jobs were acknowledged: the children did not get to work"
    );
    format!("{acknowledged} jobs acknowledged, {} in the store, all ended", end.jobs.len())
}

/// Checks ATTEMPTS-BOUNDED for the jobs that kill their process: each started at most as often as its policy allows.
fn check_poison_is_dead(history: &History, end: &FinalState) {
    let all = history.all();
    let poison: Vec<_> = end.jobs.values().filter(|job| job.payload == b"poison").collect();
    assert!(!poison.is_empty(), "no job killed its process, so nothing was tested");
    for job in poison {
        let starts = all
            .iter()
            .filter(|(_, h)| matches!(h, HistoryEvent::Started(lease) if lease.id == job.id))
            .count();
        assert_eq!((job.state, job.reason), (State::Dead, Some(Reason::AttemptsExhausted)), "{job:?}");
        assert!(starts as u32 <= ATTEMPTS, "ATTEMPTS-BOUNDED: {} started {starts} times", job.id);
    }
}
