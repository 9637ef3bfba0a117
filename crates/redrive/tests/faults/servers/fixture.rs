//! A server, the nodes on it, and the journals of the results that they received.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use redrive::Redrive;
use redrive_core::store::Settlement;
use redrive_core::{
    AttemptReport, Clock as _, Job, Lease, PolicyRef, State, Store, Timestamp, Verdict, catalog, lease_count,
};
use redrive_store_postgres::PostgresStore;
use redrive_store_sqlite::SystemClock;
use redrive_testkit::checks::FinalState;
use redrive_testkit::history::{HistoryEvent, LeaseSource};
use redrive_testkit::servers::Postgres;
use redrive_testkit::{History, RecordingStore};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use super::node;
use crate::{checks, process, workload};

/// The longest time that a test waits for something.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time after its lease until an orphan is reclaimed.
const RECLAIM_MAX: Duration = Duration::from_secs(5);

/// A Postgres and the nodes on it.
pub(crate) struct Fixture {
    pub(crate) server: Postgres,
    pub(crate) nodes: Nodes,
}

impl Deref for Fixture {
    type Target = Nodes;
    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

impl Fixture {
    /// A durable server with migrated tables.
    pub(crate) async fn open(settings: &[(&str, &str)]) -> Self {
        Self::on(Postgres::start_with(settings)).await
    }

    /// A fixture on this server.
    pub(crate) async fn on(server: Postgres) -> Self {
        PostgresStore::migrate(&server.address()).await.expect("the tables are created");
        let nodes = Nodes::at(server.address());
        Self { server, nodes }
    }

    /// Another session on the database.
    pub(crate) async fn session(&self) -> Client {
        let connected = tokio_postgres::connect(&self.server.address(), NoTls).await;
        let (client, connection) = connected.expect("the server answers");
        tokio::spawn(connection);
        client
    }
}

/// The nodes on a server, with their journals.
pub(crate) struct Nodes {
    address: String,
    journals: TempDir,
}

impl Nodes {
    /// The nodes at an address.
    pub(crate) fn at(address: String) -> Self {
        Self { address, journals: tempfile::tempdir().expect("a folder") }
    }

    /// A node as a child process. The meaning of `number` depends on its mode.
    pub(crate) fn node(&self, mode: &str, name: &str, number: u64) -> Command {
        let mut command = process::command(super::SUITE, mode);
        command.arg(&self.address).arg(self.journal(name)).arg(number.to_string());
        command
    }

    /// A node in this process.
    pub(crate) async fn local(&self, name: &str) -> (RecordingStore, History) {
        self.local_at(&self.address, name).await
    }

    /// A node in this process, at another address of the server.
    pub(crate) async fn local_at(&self, address: &str, name: &str) -> (RecordingStore, History) {
        node::open(address, &self.journal(name)).await
    }

    /// The journal of the node with this name.
    pub(crate) fn journal(&self, name: &str) -> PathBuf {
        self.journals.path().join(format!("{name}.journal"))
    }

    /// The history of all nodes so far.
    pub(crate) fn history(&self) -> History {
        let entries = std::fs::read_dir(self.journals.path()).expect("the folder exists").flatten();
        let journals = entries.map(|entry| entry.path());
        let journals: Vec<PathBuf> =
            journals.filter(|path| path.extension().is_some_and(|ending| ending == "journal")).collect();
        History::merge_journals(&journals, SystemClock).expect("the journals can be read")
    }

    /// Waits until the history has `times` events for which `wanted` returns true.
    pub(crate) async fn wait_for_events(
        &self,
        what: &str,
        times: usize,
        wanted: impl Fn(&HistoryEvent) -> bool,
    ) {
        let began = Instant::now();
        while self.history().all().iter().filter(|(_, event)| wanted(event)).count() < times {
            assert!(began.elapsed() < TIMEOUT, "did not happen in time: {what}\n{:#?}", self.history().all());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until every job has ended.
    pub(crate) async fn wait_until_ended(&self, store: &dyn Store) {
        let live = [State::Pending, State::Retrying, State::Running, State::Waiting];
        let began = Instant::now();
        loop {
            let stats = store.stats().await.expect("stats");
            if live.iter().all(|state| stats.in_state(*state) == 0) {
                return;
            }
            assert!(began.elapsed() < TIMEOUT, "NO-WEDGE: jobs do not end: {stats:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs the five checks on the history of all nodes, after all jobs have ended.
    pub(crate) async fn check(&self) -> (FinalState, History) {
        let store = Redrive::open(&self.address).await.expect("the store opens");
        let history = self.history();
        let end = checks::check(&**store.backend(), &history).await;
        (end, history)
    }
}

/// Stores the policy of the jobs, and returns its reference.
pub(crate) async fn policy(store: &RecordingStore) -> PolicyRef {
    catalog::put_inline(store, &workload::policy(), redrive_core::Timestamp::default())
        .await
        .expect("the policy is stored")
}

/// A settlement that completes the job, with its log entry.
pub(crate) fn done(job: &Job) -> Settlement {
    let entry = AttemptReport {
        run: job.run,
        attempt: job.attempt,
        started_at: job.started_at.expect("the job runs"),
        duration: Duration::ZERO,
        outcome: "done".to_owned(),
        error: None,
        detail: None,
    };
    Settlement { entry: Some(entry), ..Settlement::new(job.lease(), Verdict::Complete(None)) }
}

/// The time of this machine, as in the journals.
pub(crate) fn now() -> Timestamp {
    SystemClock.now()
}

/// Checks that the jobs of nodes that stopped at `stopped_at` were reclaimed within a lease and [`RECLAIM_MAX`] after `from`. Returns a
/// summary: the number of orphans and the longest time.
pub(crate) fn check_orphans(
    history: &History,
    stopped_at: Timestamp,
    from: Timestamp,
    lease: Duration,
) -> String {
    let all = history.all();
    let is_before = |lease: Lease, next: Lease| {
        lease.id == next.id && lease_count(lease.epoch) + 1 == lease_count(next.epoch)
    };
    let before = |taken: Lease| {
        all.iter().any(|(at, event)| {
            *at <= stopped_at
                && matches!(event, HistoryEvent::Leased(leased) if is_before(leased.lease, taken))
        })
    };
    let orphans = all.iter().filter_map(|(at, event)| match event {
        HistoryEvent::Leased(taken)
            if taken.source == LeaseSource::Reclaim && *at > stopped_at && before(taken.lease) =>
        {
            Some(at)
        }
        _ => None,
    });
    let waits: Vec<Duration> = orphans.map(|at| at.since(from)).collect();
    let longest = waits.iter().max().expect("no job was orphaned, so nothing was tested");
    assert!(
        *longest <= lease + RECLAIM_MAX,
        "an orphan was reclaimed after {longest:?}, its lease is {lease:?}"
    );
    format!("{} orphans reclaimed within {longest:?}, with a lease of {lease:?}", waits.len())
}

/// When a node first did something after `stopped_at`. A process that starts then needs time of its own until it works.
pub(crate) fn works_from(history: &History, stopped_at: Timestamp) -> Timestamp {
    let times = history.all().into_iter().map(|(at, _)| at);
    times.filter(|at| *at > stopped_at).min().expect("a node works after the stop")
}
