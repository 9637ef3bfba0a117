//! Kills one process after the other at a random moment. Then one process finishes the work, and the guarantees are checked.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use redrive_store_sqlite::SystemClock;
use redrive_testkit::History;
use redrive_testkit::servers::{Postgres, Redis};

use super::{checks, journal, node};
use crate::process::{ChildProcess, command};
use crate::runner;

/// The least number of processes that are killed.
const KILLS: u32 = 30;

pub(crate) fn on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("sqlite:{}", folder.path().join("redrive.db").display());
    let mut fixture = Fixture::new(&address, folder.path());
    fixture.kill_repeatedly(|fixture| {
        let pause = fixture.rng.u64(20..350);
        let mut node = fixture.node("work");
        std::thread::sleep(Duration::from_millis(pause));
        if fixture.rng.f32() < 0.1 {
            node.signal("STOP");
            std::thread::sleep(node::LEASE * 2);
            node.signal("CONT");
        }
        node.kill();
    });
    fixture.finish();
}

pub(crate) fn on_postgres() {
    let server = Postgres::start();
    three_nodes(&server.address());
}

pub(crate) fn on_redis() {
    let server = Redis::start_with(&[("appendfsync", "always")]);
    three_nodes(&server.address());
}

/// Runs three nodes, kills one at a time, and starts another one in its place.
fn three_nodes(address: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut fixture = Fixture::new(address, folder.path());
    let mut nodes: Vec<ChildProcess> = (0..3).map(|_| fixture.node("work")).collect();
    fixture.kill_repeatedly(|fixture| {
        std::thread::sleep(Duration::from_millis(fixture.rng.u64(20..250)));
        let victim = fixture.rng.usize(..nodes.len());
        if fixture.rng.f32() < 0.1 {
            // The other nodes reclaim its jobs while it is stopped. When it continues, it must change nothing.
            nodes[victim].signal("STOP");
            std::thread::sleep(node::LEASE * 2);
            nodes[victim].signal("CONT");
            std::thread::sleep(Duration::from_millis(50));
        }
        nodes[victim].kill();
        nodes[victim] = fixture.node("work");
    });
    drop(nodes);
    fixture.finish();
}

/// A store and the processes on it.
struct Fixture<'a> {
    address: &'a str,
    folder: &'a Path,
    rng: fastrand::Rng,
    started: u32,
}

impl<'a> Fixture<'a> {
    fn new(address: &'a str, folder: &'a Path) -> Self {
        Self { address, folder, rng: fastrand::Rng::with_seed(runner::seed()), started: 0 }
    }

    fn kill_repeatedly(&mut self, mut kill: impl FnMut(&mut Self)) {
        let seconds = std::env::var("REDRIVE_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
        let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
        let mut kills = 0;
        while kills < KILLS || Instant::now() < until {
            kill(self);
            kills += 1;
        }
    }

    /// A process with a journal of its own.
    fn node(&mut self, mode: &str) -> ChildProcess {
        self.started += 1;
        let mut command = command(super::SUITE, mode);
        command.arg(self.address).arg(self.journal(self.started)).arg(self.rng.u64(..).to_string());
        // The errors of a process that is killed do not matter.
        if mode == "work" {
            command.stderr(Stdio::null());
        }
        ChildProcess::start(command)
    }

    fn journal(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{number}.journal"))
    }

    /// Lets one process finish the remaining jobs, and checks the guarantees.
    fn finish(mut self) {
        let drained = self.node("drain").wait() == Some(0);
        let journals: Vec<PathBuf> = (1..=self.started).map(|number| self.journal(number)).collect();
        let history = History::merge_journals(&journals, SystemClock).expect("the journals can be read");
        let events = journal::read(self.folder);
        runner::runtime().block_on(async {
            let (redrive, _) = node::open(self.address, &self.journal(0)).await;
            let summary = checks::check(&redrive, &events).await;
            assert!(drained, "NO-WEDGE: jobs are left that no process could finish");
            crate::checks::check(&**redrive.backend(), &history).await;
            println!(
                "  {} processes, {} jobs; {summary}",
                self.started,
                crate::checks::count_acknowledged(&history)
            );
        });
    }
}
