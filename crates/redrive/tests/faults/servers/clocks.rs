//! Two nodes whose clocks are an hour slow and an hour fast: both use the clock of the server.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::store::PageRequest;
use redrive_core::{Attempt, Backoff, Job, JobId, NewJob, Start, State, Store, Timestamp, WorkerId, catalog};
use redrive_testkit::history::{HistoryEvent, LeaseSource};
use redrive_testkit::{History, RecordingStore};

use super::fixture::{self, Fixture};
use super::node::{self, default_settings};
use crate::process::ChildProcess;
use crate::{runner, workload};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(2);
/// The wait between two attempts, and the delay of a delayed job.
const WAIT: Duration = Duration::from_millis(1_200);
/// How late a job may start on a busy machine.
const LATE: Duration = Duration::from_secs(2);
/// How long after its lease an orphan may be reclaimed.
const RECLAIM_MAX: Duration = Duration::from_secs(5);

/// The jobs of each node: some take longer than their lease, some wait between attempts, some are delayed.
const SCRIPTS: [(&str, Duration); 4] =
    [("take 4500", Duration::ZERO), ("flaky", Duration::ZERO), ("ok", WAIT), ("flaky", WAIT)];

/// The nodes, with the error of their clocks.
const NODES: [(&str, &str); 2] = [("slow", "-1h"), ("fast", "+1h")];

pub(crate) fn clocks_that_differ_by_an_hour() {
    let runtime = runner::runtime();
    let fixture = runtime.block_on(Fixture::open(&[]));
    let mut nodes = NODES.map(|(name, shift)| start(&fixture, name, shift, "clocks"));
    runtime.block_on(async {
        let (store, _) = fixture.local("client").await;
        fixture
            .wait_for_events("the nodes enqueue", 2 * SCRIPTS.len(), |event| {
                matches!(event, HistoryEvent::Acknowledged(_))
            })
            .await;
        fixture.wait_until_ended(&store).await;
        let [slow, fast] = NODES.map(|(name, _)| time_of(&fixture, name));
        let apart = fast.since(slow);
        assert!(apart > 2 * HOUR - MINUTE && apart < 2 * HOUR + MINUTE, "the clocks are {apart:?} apart");
        check_times(&fixture, &store).await;
        for gone in [0, 1] {
            let wait = check_reclaim_by_other_node(&fixture, &store, &mut nodes, gone).await;
            println!(
                "  without the {} node its orphan was reclaimed {wait:?} after its lease",
                NODES[gone].0
            );
        }
        fixture.check().await;
    });
}

/// A node whose clock is shifted. Its timers are not.
fn start(fixture: &Fixture, name: &str, shift: &str, mode: &str) -> ChildProcess {
    let library = faketime_library();
    let mut command = fixture.node(mode, name, 0);
    command.env("LD_PRELOAD", library).env("FAKETIME", shift);
    // Older versions use the second name.
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    ChildProcess::start(command)
}

/// The path of the library that shifts a process's clock.
fn faketime_library() -> String {
    remove_shared_memory_of_ended_processes();
    let output = Command::new("faketime").args(["-f", "+0", "printenv", "LD_PRELOAD"]).output();
    let output = output.expect("faketime is missing: run `cargo xtask setup`");
    let library = String::from_utf8(output.stdout).expect("a path").trim().to_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!library.is_empty(), "faketime does not print the path of its library: {error}");
    library
}

/// faketime creates shared memory that is named after its process id. A killed process leaves it behind, and faketime then
/// fails in the next process that gets the same id.
fn remove_shared_memory_of_ended_processes() {
    let Ok(files) = std::fs::read_dir("/dev/shm") else { return };
    for file in files.flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let id = name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"));
        if id.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// The child process: enqueues its jobs and runs a worker.
pub(crate) async fn enqueue_and_work(address: &str, journal: &Path) {
    let (store, history) = node::open(address, journal).await;
    if history.all().is_empty() {
        let backoff = Backoff::fixed(WAIT).expect("legal");
        let policy = catalog::put_inline(
            &store,
            &workload::policy().with_backoff(backoff),
            redrive_core::Timestamp::default(),
        )
        .await
        .expect("stored");
        let job = |(script, delay): (&str, Duration)| NewJob {
            start: if delay.is_zero() { Start::Now } else { Start::After(delay) },
            ..workload::job(&policy, script)
        };
        store.enqueue(SCRIPTS.into_iter().map(job).collect()).await.expect("enqueued");
    }
    let settings = default_settings(&node::name(journal), LEASE).with_reclaim_every(LEASE);
    let worker = workload::worker(Arc::new(store), history, settings);
    worker.run_until(std::future::pending()).await.expect("the worker runs until it is killed");
}

/// When the node last received a result, by its own clock.
fn time_of(fixture: &Fixture, name: &str) -> Timestamp {
    let journal = History::merge_journals(&[fixture.journal(name)], redrive_store_sqlite::SystemClock)
        .expect("a journal");
    journal.all().last().expect("the node received a result").0
}

/// Checks that no job was reclaimed early, and that none started early or late.
async fn check_times(fixture: &Fixture, store: &RecordingStore) {
    let (end, history) = fixture.check().await;
    for (_, event) in history.all() {
        let lost = match &event {
            HistoryEvent::Leased(leased) => leased.source == LeaseSource::Reclaim,
            HistoryEvent::LeaseLost(_) => true,
            _ => false,
        };
        assert!(!lost, "a lease was lost although it was renewed: {event:?}");
    }
    for job in end.jobs.values() {
        assert_eq!(job.state, State::Succeeded, "{job:?}");
        let off = job.created_at.since(fixture::now()).max(fixture::now().since(job.created_at));
        assert!(off < MINUTE, "the creation time is {off:?} off the server's time");
        let mut due = job.began_at;
        for attempt in attempts(store, job.id).await {
            let started = attempt.entry.started_at;
            assert!(started >= due, "started {:?} early: {job:?}", due.since(started));
            assert!(started <= due.after(LATE), "started {:?} late: {job:?}", started.since(due));
            due = attempt.next_run_at.unwrap_or(due);
        }
    }
}

/// Kills the node that runs a job, and checks that the other node reclaims it soon after its lease. Returns how soon.
async fn check_reclaim_by_other_node(
    fixture: &Fixture,
    store: &RecordingStore,
    nodes: &mut [ChildProcess; 2],
    gone: usize,
) -> Duration {
    let (name, shift) = NODES[gone];
    let policy = fixture::policy(store).await;
    let job = workload::job(&policy, "hang");
    let id = job.id;
    // The other node must not claim the job first.
    nodes[1 - gone].signal("STOP");
    store.enqueue(vec![job]).await.expect("enqueued");
    fixture
        .wait_for_events(
            "the job starts",
            1,
            |event| matches!(event, HistoryEvent::Started(lease) if lease.id == id),
        )
        .await;
    nodes[1 - gone].signal("CONT");
    // For a few heartbeats the other node must not reclaim the job.
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(nodes[gone].kill(), None, "the node had ended before");
    let orphan = read(store, id).await;
    assert_eq!(
        (orphan.lease_count(), orphan.worker),
        (1, WorkerId::new(name).ok()),
        "the job was reclaimed early"
    );
    let lease_end = orphan.lease_until.expect("the job is running");
    fixture.wait_until_ended(store).await;
    let log = attempts(store, id).await;
    let expired = &log[0].entry;
    let reclaimed_at = expired.started_at.after(expired.duration);
    let early = lease_end.since(reclaimed_at);
    assert!(reclaimed_at >= lease_end, "the job was reclaimed {early:?} early: {log:?}");
    assert!(
        reclaimed_at <= lease_end.after(RECLAIM_MAX),
        "the job was reclaimed {:?} late: {log:?}",
        reclaimed_at.since(lease_end)
    );
    nodes[gone] = start(fixture, name, shift, "clocks");
    reclaimed_at.since(lease_end)
}

async fn read(store: &RecordingStore, id: JobId) -> Job {
    store.get(vec![id]).await.expect("read").pop().flatten().expect("the job exists")
}

/// The attempt log of a job, oldest attempt first.
async fn attempts(store: &RecordingStore, id: JobId) -> Vec<Attempt> {
    let page = store.attempts(id, PageRequest::first(100)).await.expect("the log can be read");
    page.items.into_iter().rev().collect()
}
