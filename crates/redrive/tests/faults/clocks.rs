//! Two nodes whose clocks are an hour slow and an hour fast: the server's clock rules.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::store::PageRequest;
use redrive_core::{Attempt, Backoff, Job, JobId, NewJob, Start, State, Store, Timestamp, WorkerId, catalog};
use redrive_testkit::history::{By, Happening};
use redrive_testkit::{History, Recorded};

use crate::node::{self, calm};
use crate::scene::{self, Scene};
use crate::victim::process::Victim;
use crate::victim::{program, work};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(2);
/// Between two attempts, and before the first one of a job that is delayed.
const WAIT: Duration = Duration::from_millis(1_200);
/// How late a job may start on a busy machine.
const LATE: Duration = Duration::from_secs(2);
/// How late orphans may be picked up after their lease.
const PICK_UP: Duration = Duration::from_secs(5);

/// What each node enqueues: jobs that take longer than their lease, that wait between attempts, and that are delayed.
const SCRIPTS: [(&str, Duration); 4] =
    [("take 4500", Duration::ZERO), ("flaky", Duration::ZERO), ("ok", WAIT), ("flaky", WAIT)];

/// The nodes, and how far off their clocks are.
const NODES: [(&str, &str); 2] = [("slow", "-1h"), ("fast", "+1h")];

pub(crate) fn clocks_that_differ_by_an_hour() {
    let runtime = program::runtime();
    let scene = runtime.block_on(Scene::open(&[]));
    let mut nodes = NODES.map(|(name, shift)| start(&scene, name, shift, "clocks"));
    runtime.block_on(async {
        let (store, _) = scene.local("client").await;
        scene
            .happened("the nodes enqueue", 2 * SCRIPTS.len(), |happening| {
                matches!(happening, Happening::Acknowledged(_))
            })
            .await;
        scene.ended(&store).await;
        let [slow, fast] = NODES.map(|(name, _)| time_of(&scene, name));
        let apart = fast.since(slow);
        assert!(apart > 2 * HOUR - MINUTE && apart < 2 * HOUR + MINUTE, "the clocks are {apart:?} apart");
        check_times(&scene, &store).await;
        for gone in [0, 1] {
            let wait = take_over(&scene, &store, &mut nodes, gone).await;
            println!(
                "  without the {} node its orphan was picked up {wait:?} after its lease",
                NODES[gone].0
            );
        }
        scene.check().await;
    });
}

/// A node in another time: its clock is shifted, its timers are not.
fn start(scene: &Scene, name: &str, shift: &str, mode: &str) -> Victim {
    let asked = Command::new("faketime").args(["-f", "+0", "printenv", "LD_PRELOAD"]).output();
    let library = asked.expect("faketime is missing: run `cargo xtask setup`").stdout;
    let library = String::from_utf8(library).expect("a path").trim().to_owned();
    assert!(!library.is_empty(), "faketime does not say where its library is");
    let mut command = scene.node(mode, name, 0);
    command.env("LD_PRELOAD", library).env("FAKETIME", shift);
    // The second name is that of older versions.
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    Victim::start(command)
}

/// The process: enqueues its jobs and works.
pub(crate) async fn enqueue_and_work(address: &str, journal: &Path) {
    let (store, history) = node::open(address, journal).await;
    if history.all().is_empty() {
        let backoff = Backoff::fixed(WAIT).expect("legal");
        let policy =
            catalog::put_inline(&store, &work::policy().with_backoff(backoff)).await.expect("stored");
        let job = |(script, delay): (&str, Duration)| NewJob {
            start: if delay.is_zero() { Start::Now } else { Start::After(delay) },
            ..work::job(&policy, script)
        };
        store.enqueue(SCRIPTS.into_iter().map(job).collect()).await.expect("enqueued");
    }
    let settings = calm(&node::name(journal), LEASE).with_reclaim_every(LEASE);
    let worker = work::worker(Arc::new(store), history, settings);
    worker.run_until(std::future::pending()).await.expect("it works until it is killed");
}

/// When the node was last told something, by its own clock.
fn time_of(scene: &Scene, name: &str) -> Timestamp {
    let journal =
        History::merged(&[scene.journal(name)], redrive_store_sqlite::SystemClock).expect("a journal");
    journal.all().last().expect("it was told something").0
}

/// Nothing was taken over early, and nothing started early or late.
async fn check_times(scene: &Scene, store: &Recorded) {
    let (end, history) = scene.check().await;
    for (_, happening) in history.all() {
        let lost = match &happening {
            Happening::Leased(leased) => leased.by == By::Reclaim,
            Happening::ShutOut(_) => true,
            _ => false,
        };
        assert!(!lost, "a lease was lost that was renewed: {happening:?}");
    }
    for job in end.jobs.values() {
        assert_eq!(job.state, State::Succeeded, "{job:?}");
        let off = job.created_at.since(scene::now()).max(scene::now().since(job.created_at));
        assert!(off < MINUTE, "it was created {off:?} off the server's time");
        let mut due = job.began_at;
        for attempt in attempts(store, job.id).await {
            let started = attempt.entry.started_at;
            assert!(started >= due, "started {:?} early: {job:?}", due.since(started));
            assert!(started <= due.after(LATE), "started {:?} late: {job:?}", started.since(due));
            due = attempt.next_run_at.unwrap_or(due);
        }
    }
}

/// Kills the node that runs a job: the other one takes it over once its lease is over, and soon after; says how soon.
async fn take_over(scene: &Scene, store: &Recorded, nodes: &mut [Victim; 2], gone: usize) -> Duration {
    let (name, shift) = NODES[gone];
    let policy = scene::policy(store).await;
    let job = work::job(&policy, "hang");
    let id = job.id;
    // The other one is not to have it first.
    nodes[1 - gone].signal("STOP");
    store.enqueue(vec![job]).await.expect("enqueued");
    scene
        .happened(
            "the job starts",
            1,
            |happening| matches!(happening, Happening::Started(lease) if lease.id == id),
        )
        .await;
    nodes[1 - gone].signal("CONT");
    // A few heartbeats long the other one has to leave it alone.
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(nodes[gone].kill(), None, "the node had ended before");
    let orphan = read(store, id).await;
    assert_eq!((orphan.epoch, orphan.worker), (1, WorkerId::new(name).ok()), "it was taken over early");
    let over = orphan.lease_until.expect("it is running");
    scene.ended(store).await;
    let log = attempts(store, id).await;
    let expired = &log[0].entry;
    let taken = expired.started_at.after(expired.duration);
    assert!(taken >= over, "it was taken over {:?} early: {log:?}", over.since(taken));
    assert!(taken <= over.after(PICK_UP), "it was taken over {:?} late: {log:?}", taken.since(over));
    nodes[gone] = start(scene, name, shift, "clocks");
    taken.since(over)
}

async fn read(store: &Recorded, id: JobId) -> Job {
    store.get(vec![id]).await.expect("read").pop().flatten().expect("it is there")
}

async fn attempts(store: &Recorded, id: JobId) -> Vec<Attempt> {
    store.attempts(id, PageRequest::first(100)).await.expect("the log can be read").items
}
