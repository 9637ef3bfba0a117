//! A node that is stopped for three leases, heartbeats and all, and wakes up after another has taken its jobs.

use std::time::Duration;

use redrive_core::{State, Store};
use redrive_testkit::history::Happening;

use crate::scene::{self, Scene};
use crate::victim::process::Victim;
use crate::victim::{program, work};

/// Three of them are longer than a lease and the time in which orphans are picked up.
const LEASE: Duration = Duration::from_secs(3);
/// When the node wakes up, some of its jobs have ended with the other one, and some still run there.
const SCRIPTS: [&str; 4] = ["take 2000", "take 2000", "take 8000", "take 8000"];

pub(crate) fn frozen_for_three_leases() {
    let runtime = program::runtime();
    let scene = runtime.block_on(Scene::open(&[]));
    let lease_ms = LEASE.as_millis() as u64;
    let frozen = Victim::start(scene.node("calm", "frozen", lease_ms));
    let (store, _) = runtime.block_on(scene.local("client"));
    runtime.block_on(async {
        let policy = scene::policy(&store).await;
        let jobs = SCRIPTS.map(|script| work::job(&policy, script));
        store.enqueue(jobs.to_vec()).await.expect("enqueued");
        scene
            .happened("the jobs start", SCRIPTS.len(), |happening| matches!(happening, Happening::Started(_)))
            .await;
    });
    let _awake = Victim::start(scene.node("calm", "awake", lease_ms));
    frozen.signal("STOP");
    let silent = scene::now();
    std::thread::sleep(LEASE * 3);
    frozen.signal("CONT");
    runtime.block_on(async {
        let shut_out =
            |happening: &Happening| matches!(happening, Happening::ShutOut(lease) if lease.epoch == 1);
        scene.happened("a late settlement is refused", 1, shut_out).await;
        scene.ended(&store).await;
        // What the late one may still have to say, it says within a heartbeat.
        tokio::time::sleep(LEASE / 3).await;
        let (end, history) = scene.check().await;
        for job in end.jobs.values() {
            let by = job.worker.as_ref().map(|worker| worker.as_str());
            let seen = (job.state, job.attempt, by);
            assert_eq!(seen, (State::Succeeded, 2, Some("awake")), "STALE-SHUT-OUT: {job:?}");
        }
        let late = history.all().iter().filter(|(_, happening)| shut_out(happening)).count();
        println!("  {}", scene::orphans_in_time(&history, silent, LEASE));
        println!("  {late} of {} late settlements came, and changed nothing", SCRIPTS.len());
    });
}
