//! Process after process is killed in the middle of whatever it does; then one may finish, and the books are checked.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redrive_core::store::PageRequest;
use redrive_core::{Lease, Reason, State, Store};
use redrive_store_sqlite::SystemClock;
use redrive_testkit::History;
use redrive_testkit::checks::{End, check_all};
use redrive_testkit::history::{Happening, Settlement};

use crate::child::{self, ATTEMPTS, LEASE};

/// Processes killed at least.
const KILLS: u32 = 50;
/// Processes that a drain may lose to jobs that kill theirs.
const DRAINS_MAX: u32 = 150;

pub(crate) fn killed_at_random_moments() {
    let seed = std::env::var("REDRIVE_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a seed"));
    println!("  seed {seed}");
    let folder = tempfile::tempdir().expect("a folder");
    let mut chance = fastrand::Rng::with_seed(seed);
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
    let mut child = spawn("work", folder, chance.u64(..));
    std::thread::sleep(Duration::from_millis(chance.u64(5..250)));
    if chance.f32() < 0.15 {
        signal(&child, "-STOP");
        std::thread::sleep(LEASE * 2);
        signal(&child, "-CONT");
        std::thread::sleep(Duration::from_millis(chance.u64(0..80)));
    }
    // It may have been killed by one of its own jobs already.
    let _ = child.kill();
    child.wait().expect("it has ended");
}

/// Lets processes finish what is left; false when one finds no end, or too many are killed by their jobs.
fn drain(folder: &Path) -> bool {
    for _ in 0..DRAINS_MAX {
        match spawn("drain", folder, 0).wait().expect("it has ended").code() {
            Some(0) => return true,
            Some(child::NO_END) => return false,
            Some(_) | None => {}
        }
    }
    false
}

fn spawn(mode: &str, folder: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["child", mode])
        .arg(folder)
        .arg(seed.to_string())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child starts")
}

fn signal(child: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status();
    status.expect("kill runs");
}

/// Runs the five checks over everything that any of the processes was told.
fn check(folder: &Path) -> String {
    let history = History::journalled(&folder.join("journal"), SystemClock).expect("the journal is there");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let end = runtime.block_on(async {
        let (store, _) = child::open(folder);
        let end = End::of(&store, &history).await.expect("the store can be read");
        add_what_nobody_was_told(&history, &store, &end).await;
        end
    });
    check_all(&history, &end, Duration::ZERO).unwrap_or_else(|violation| {
        let story = violation.job.map(|job| history.of_job(job).join("\n")).unwrap_or_default();
        panic!("{violation}\n{story}");
    });
    poison_is_dead(&history, &end);
    let acknowledged = history.all().iter().filter(|(_, h)| matches!(h, Happening::Acknowledged(_))).count();
    assert!(
        acknowledged > 500,
        "only {acknowledged} jobs were acknowledged: the children did not get to work"
    );
    format!("{acknowledged} jobs acknowledged, {} in the store, all ended", end.jobs.len())
}

/// A process that is killed between a commit and its answer was told nothing of it; the store's own log knows.
async fn add_what_nobody_was_told(history: &History, store: &dyn Store, end: &End) {
    let told: BTreeSet<Lease> = history
        .all()
        .into_iter()
        .filter_map(
            |(_, happening)| {
                if let Happening::Settled(settled) = happening { Some(settled.lease) } else { None }
            },
        )
        .collect();
    for id in end.jobs.keys() {
        let log = store.attempts(*id, PageRequest::first(1000)).await.expect("the log can be read");
        for attempt in log.items {
            let lease = Lease { id: *id, epoch: attempt.epoch };
            let refund = u32::from(["snoozed", "released"].contains(&attempt.entry.outcome.as_str()));
            if !told.contains(&lease) {
                history.add(Happening::Settled(Settlement {
                    lease,
                    led_to: attempt.led_to,
                    refund,
                    logged: true,
                }));
            }
        }
    }
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
