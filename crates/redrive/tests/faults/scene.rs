//! A server, the nodes on it, and what they were told.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use redrive::Redrive;
use redrive_core::store::Settlement;
use redrive_core::{Clock as _, Entry, Job, Lease, PolicyRef, State, Store, Timestamp, Verdict, catalog};
use redrive_store_postgres::PostgresStore;
use redrive_store_sqlite::SystemClock;
use redrive_testkit::checks::End;
use redrive_testkit::history::{By, Happening};
use redrive_testkit::servers::Postgres;
use redrive_testkit::{History, Recorded};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use crate::node;
use crate::victim::{books, process, work};

/// How long anything may take that a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Orphans are picked up this long after their lease at the latest.
const PICK_UP: Duration = Duration::from_secs(5);

/// A Postgres and the nodes on it.
pub(crate) struct Scene {
    pub(crate) server: Postgres,
    nodes: Nodes,
}

impl Deref for Scene {
    type Target = Nodes;
    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

impl Scene {
    /// A durable server with the tables made.
    pub(crate) async fn open(settings: &[(&str, &str)]) -> Self {
        Self::on(Postgres::start_with(settings)).await
    }

    /// On this server.
    pub(crate) async fn on(server: Postgres) -> Self {
        PostgresStore::migrate(&server.address()).await.expect("the tables are made");
        let nodes = Nodes::at(server.address());
        Self { server, nodes }
    }

    /// A session of somebody else's.
    pub(crate) async fn session(&self) -> Client {
        let connected = tokio_postgres::connect(&self.server.address(), NoTls).await;
        let (client, connection) = connected.expect("the server answers");
        tokio::spawn(connection);
        client
    }
}

/// The nodes on a server, with the journals of what they were told.
pub(crate) struct Nodes {
    address: String,
    journals: TempDir,
}

impl Nodes {
    /// Those at an address.
    pub(crate) fn at(address: String) -> Self {
        Self { address, journals: tempfile::tempdir().expect("a folder") }
    }

    /// A node as a process, with a number that its mode has a meaning for.
    pub(crate) fn node(&self, mode: &str, name: &str, number: u64) -> Command {
        let mut command = process::command(mode);
        command.arg(&self.address).arg(self.journal(name)).arg(number.to_string());
        command
    }

    /// A node in this process.
    pub(crate) async fn local(&self, name: &str) -> (Recorded, History) {
        self.local_at(&self.address, name).await
    }

    /// A node in this process, at another address of the server.
    pub(crate) async fn local_at(&self, address: &str, name: &str) -> (Recorded, History) {
        node::open(address, &self.journal(name)).await
    }

    /// The file in which the node of that name writes down what it is told.
    pub(crate) fn journal(&self, name: &str) -> PathBuf {
        self.journals.path().join(format!("{name}.journal"))
    }

    /// What all nodes were told so far.
    pub(crate) fn history(&self) -> History {
        let entries = std::fs::read_dir(self.journals.path()).expect("the folder is there").flatten();
        let journals = entries.map(|entry| entry.path());
        let journals: Vec<PathBuf> =
            journals.filter(|path| path.extension().is_some_and(|ending| ending == "journal")).collect();
        History::merged(&journals, SystemClock).expect("the journals can be read")
    }

    /// Waits until so many things have happened that are `wanted`.
    pub(crate) async fn happened(&self, what: &str, times: usize, wanted: impl Fn(&Happening) -> bool) {
        let began = Instant::now();
        while self.history().all().iter().filter(|(_, happening)| wanted(happening)).count() < times {
            assert!(began.elapsed() < PATIENCE, "never happened: {what}\n{:#?}", self.history().all());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until every job has ended.
    pub(crate) async fn ended(&self, store: &dyn Store) {
        let live = [State::Pending, State::Retrying, State::Running, State::Waiting];
        let began = Instant::now();
        loop {
            let stats = store.stats().await.expect("stats");
            if live.iter().all(|state| stats.in_state(*state) == 0) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "NO-WEDGE: jobs do not end: {stats:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs the five checks over what all nodes were told. Nothing may be left to do.
    pub(crate) async fn check(&self) -> (End, History) {
        let store = Redrive::open(&self.address).await.expect("the store opens");
        let history = self.history();
        let end = books::check(&**store.backend(), &history).await;
        (end, history)
    }
}

/// The policy of the jobs, stored.
pub(crate) async fn policy(store: &Recorded) -> PolicyRef {
    catalog::put_inline(store, &work::policy()).await.expect("the policy is stored")
}

/// A settlement that completes the job, with its log entry.
pub(crate) fn done(job: &Job) -> Settlement {
    let entry = Entry {
        run: job.run,
        attempt: job.attempt,
        started_at: job.started_at.expect("it runs"),
        duration: Duration::ZERO,
        outcome: "done".to_owned(),
        error: None,
        detail: None,
    };
    Settlement { entry: Some(entry), ..Settlement::new(job.lease(), Verdict::Complete(None)) }
}

/// The time of this machine, as journals have it.
pub(crate) fn now() -> Timestamp {
    SystemClock.now()
}

/// Checks that what was under lease when its holders fell silent was taken over within a lease and [`PICK_UP`]; says how
/// many there were and how long the last one took.
pub(crate) fn orphans_in_time(history: &History, silent: Timestamp, lease: Duration) -> String {
    let all = history.all();
    let before = |wanted: Lease| {
        let wanted = Lease { epoch: wanted.epoch - 1, ..wanted };
        all.iter().any(|(at, happening)| {
            *at <= silent && matches!(happening, Happening::Leased(leased) if leased.lease == wanted)
        })
    };
    let orphans = all.iter().filter_map(|(at, happening)| match happening {
        Happening::Leased(taken) if taken.by == By::Reclaim && *at > silent && before(taken.lease) => {
            Some(at)
        }
        _ => None,
    });
    let waits: Vec<Duration> = orphans.map(|at| at.since(silent)).collect();
    let longest = waits.iter().max().expect("nobody was orphaned: the test did not test that");
    assert!(*longest <= lease + PICK_UP, "an orphan was left alone for {longest:?}, its lease is {lease:?}");
    format!("{} orphans picked up within {longest:?} of a lease of {lease:?}", waits.len())
}
