//! A server that crashes again and again while two nodes work on it.

use std::time::Duration;

use redrive_core::{JobId, Store};
use redrive_testkit::history::Happening;
use redrive_testkit::servers::Postgres;

use crate::node::AGAIN;
use crate::scene::{self, Nodes, Scene};
use crate::victim::process::Victim;
use crate::victim::work::LEASE;
use crate::victim::{books, program, work};

/// Crashes of the server, half of them by a kill, half of them by an immediate shutdown.
pub(crate) const CRASHES: usize = 6;
/// Jobs that do not end by themselves, so that their nodes leave orphans behind.
const HANGING: usize = 4;

pub(crate) fn killed_and_restarted_under_load() {
    let mut chance = fastrand::Rng::with_seed(program::seed());
    let runtime = program::runtime();
    let mut scene = runtime.block_on(Scene::open(&[]));
    let names = ["first", "second"];
    let mut nodes = names.map(|name| Victim::start(scene.node("work", name, chance.u64(..))));
    for crash in [Postgres::kill, Postgres::stop_immediately].into_iter().cycle().take(CRASHES) {
        pause(&mut chance, 700..1300);
        crash(&mut scene.server);
        pause(&mut chance, 0..400);
        scene.server.restart();
    }
    runtime.block_on(hang(&scene));
    let silent = scene::now();
    for node in &mut nodes {
        assert_eq!(node.kill(), None, "a node did not survive the crash of its server");
    }
    let drained = Victim::start(scene.node("drain", "drain", 0)).wait();
    let (end, history) = runtime.block_on(scene.check());
    assert_eq!(drained, Some(0), "NO-WEDGE: jobs are left that no process could finish");
    let acknowledged = books::acknowledged(&history);
    assert!(acknowledged > 300, "only {acknowledged} jobs were acknowledged: the nodes did not get to work");
    println!("  {}", scene::orphans_in_time(&history, silent, LEASE));
    println!("  {}", repeated(&scene, &names));
    println!("  {acknowledged} jobs acknowledged, {} in the store, all ended", end.jobs.len());
}

/// Sees to it that both nodes are busy with something when they are killed.
pub(crate) async fn hang(scene: &Nodes) {
    let (store, _) = scene.local("client").await;
    let policy = scene::policy(&store).await;
    let jobs = [(); HANGING].map(|()| work::job(&policy, "hang"));
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    store.enqueue(jobs.to_vec()).await.expect("enqueued");
    let starts =
        |happening: &Happening| matches!(happening, Happening::Started(lease) if ids.contains(&lease.id));
    scene.happened("the jobs start", HANGING, starts).await;
}

pub(crate) fn pause(chance: &mut fastrand::Rng, ms: std::ops::Range<u64>) {
    std::thread::sleep(Duration::from_millis(chance.u64(ms)));
}

/// Every crash leaves enqueues behind whose outcome is unknown: they were made again, with the same ids.
pub(crate) fn repeated(scene: &Nodes, names: &[&str]) -> String {
    let mut there = 0;
    let mut all = 0;
    for name in names {
        let file = scene.journal(name).with_extension(AGAIN);
        let again = std::fs::read_to_string(file).expect("the node has noted it down");
        all += again.lines().count();
        there += again.lines().filter(|line| *line == "was there").count();
    }
    assert!(all >= CRASHES / 2, "only {all} enqueues were repeated: the server crashed beside the load");
    format!("{all} enqueues repeated after a crash, {there} of them had taken effect")
}
