//! Process after process is killed in the middle of whatever it does; then one may finish, and the books are checked.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use redrive_store_sqlite::SystemClock;
use redrive_testkit::History;
use redrive_testkit::servers::{Postgres, Redis};

use crate::process::{Victim, command};
use crate::{books, checks, journal, node, program};

/// Processes killed at least.
const KILLS: u32 = 30;

pub(crate) fn on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("sqlite:{}", folder.path().join("redrive.db").display());
    let mut scene = Scene::new(&address, folder.path());
    scene.until_enough(|scene| {
        let pause = scene.chance.u64(20..350);
        let mut node = scene.node("work");
        std::thread::sleep(Duration::from_millis(pause));
        if scene.chance.f32() < 0.1 {
            node.signal("STOP");
            std::thread::sleep(node::LEASE * 2);
            node.signal("CONT");
        }
        node.kill();
    });
    scene.finish();
}

pub(crate) fn on_postgres() {
    let server = Postgres::start();
    three_nodes(&server.address());
}

pub(crate) fn on_redis() {
    let server = Redis::start_with(&[("appendfsync", "always")]);
    three_nodes(&server.address());
}

/// Of three nodes one is killed at a time, and another takes its place.
fn three_nodes(address: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut scene = Scene::new(address, folder.path());
    let mut nodes: Vec<Victim> = (0..3).map(|_| scene.node("work")).collect();
    scene.until_enough(|scene| {
        std::thread::sleep(Duration::from_millis(scene.chance.u64(20..250)));
        let unlucky = scene.chance.usize(..nodes.len());
        if scene.chance.f32() < 0.1 {
            // Its jobs are taken over while it stands still; what it does when it goes on must change nothing.
            nodes[unlucky].signal("STOP");
            std::thread::sleep(node::LEASE * 2);
            nodes[unlucky].signal("CONT");
            std::thread::sleep(Duration::from_millis(50));
        }
        nodes[unlucky].kill();
        nodes[unlucky] = scene.node("work");
    });
    drop(nodes);
    scene.finish();
}

/// A store and the processes on it.
struct Scene<'a> {
    address: &'a str,
    folder: &'a Path,
    chance: fastrand::Rng,
    started: u32,
}

impl<'a> Scene<'a> {
    fn new(address: &'a str, folder: &'a Path) -> Self {
        Self { address, folder, chance: fastrand::Rng::with_seed(program::seed()), started: 0 }
    }

    fn until_enough(&mut self, mut kill: impl FnMut(&mut Self)) {
        let seconds = std::env::var("REDRIVE_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
        let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
        let mut kills = 0;
        while kills < KILLS || Instant::now() < until {
            kill(self);
            kills += 1;
        }
    }

    /// A process with a journal of its own.
    fn node(&mut self, mode: &str) -> Victim {
        self.started += 1;
        let mut command = command(mode);
        command.arg(self.address).arg(self.journal(self.started)).arg(self.chance.u64(..).to_string());
        // What it says while it is killed is of no interest.
        if mode == "work" {
            command.stderr(Stdio::null());
        }
        Victim::start(command)
    }

    fn journal(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{number}.journal"))
    }

    /// Lets one process finish what is left, and checks the books.
    fn finish(mut self) {
        let drained = self.node("drain").wait() == Some(0);
        let journals: Vec<PathBuf> = (1..=self.started).map(|number| self.journal(number)).collect();
        let history = History::merged(&journals, SystemClock).expect("the journals can be read");
        let notes = journal::read(self.folder);
        program::runtime().block_on(async {
            let (redrive, _) = node::open(self.address, &self.journal(0)).await;
            let summary = checks::check(&redrive, &notes).await;
            assert!(drained, "NO-WEDGE: jobs are left that no process could finish");
            books::check(&**redrive.backend(), &history).await;
            println!("  {} processes, {} jobs; {summary}", self.started, books::acknowledged(&history));
        });
    }
}
