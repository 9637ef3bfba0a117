//! Process after process is killed in the middle of whatever it does; then one may finish, and the books are checked.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use redrive_core::{Reason, State};
use redrive_testkit::History;
use redrive_testkit::checks::End;
use redrive_testkit::history::Happening;

use crate::child;
use crate::victim::process::{Victim, command};
use crate::victim::work::{ATTEMPTS, LEASE, NO_END};
use crate::victim::{books, program};

/// Processes killed at least.
const KILLS: u32 = 50;
/// Processes that a drain may lose to jobs that kill theirs.
const DRAINS_MAX: u32 = 150;

pub(crate) fn killed_at_random_moments() {
    let mut chance = fastrand::Rng::with_seed(program::seed());
    let folder = tempfile::tempdir().expect("a folder");
    let until = Instant::now() + soak();
    let mut kills = 0;
    while kills < KILLS || Instant::now() < until {
        kill_one(folder.path(), &mut chance);
        kills += 1;
    }
    let drained = drain(folder.path());
    // The checks come first: they name what was wrong where a drain only does not end.
    let books = check(folder.path());
    assert!(drained, "NO-WEDGE: jobs are left that no process could finish");
    println!("  {kills} processes killed; {books}");
}

fn soak() -> Duration {
    let seconds = std::env::var("REDRIVE_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

/// Lets a process work for a moment, now and then freezes it for longer than its leases, and kills it.
fn kill_one(folder: &Path, chance: &mut fastrand::Rng) {
    let mut child = start("work", folder, chance.u64(..));
    std::thread::sleep(Duration::from_millis(chance.u64(5..250)));
    if chance.f32() < 0.15 {
        child.signal("STOP");
        std::thread::sleep(LEASE * 2);
        child.signal("CONT");
        std::thread::sleep(Duration::from_millis(chance.u64(0..80)));
    }
    // It may have been killed by one of its own jobs already.
    child.kill();
}

/// Lets processes finish what is left; false when one finds no end, or too many are killed by their jobs.
fn drain(folder: &Path) -> bool {
    for _ in 0..DRAINS_MAX {
        match start("drain", folder, 0).wait() {
            Some(0) => return true,
            Some(NO_END) => return false,
            Some(_) | None => {}
        }
    }
    false
}

fn start(mode: &str, folder: &Path, seed: u64) -> Victim {
    let mut command = command(mode);
    command.arg(folder).arg(seed.to_string()).stderr(Stdio::null());
    Victim::start(command)
}

/// Runs the five checks over everything that any of the processes was told.
fn check(folder: &Path) -> String {
    let (store, history) = child::open(folder);
    let end = program::runtime().block_on(books::check(&store, &history));
    poison_is_dead(&history, &end);
    let acknowledged = books::acknowledged(&history);
    assert!(
        acknowledged > 500,
        "only {acknowledged} jobs were acknowledged: the children did not get to work"
    );
    format!("{acknowledged} jobs acknowledged, {} in the store, all ended", end.jobs.len())
}

/// ATTEMPTS-BOUNDED once more, from outside: a job that kills its process started exactly as often as it may.
fn poison_is_dead(history: &History, end: &End) {
    let all = history.all();
    let poison: Vec<_> = end.jobs.values().filter(|job| job.payload == b"poison").collect();
    assert!(!poison.is_empty(), "no job killed its process: the test did not test that");
    for job in poison {
        let starts =
            all.iter().filter(|(_, h)| matches!(h, Happening::Started(lease) if lease.id == job.id)).count();
        assert_eq!((job.state, job.reason), (State::Dead, Some(Reason::AttemptsExhausted)), "{job:?}");
        assert!(starts as u32 <= ATTEMPTS, "ATTEMPTS-BOUNDED: {} started {starts} times", job.id);
    }
}
