//! The process that is killed. It works on a SQLite file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redrive_core::{PolicyRef, Store, catalog};
use redrive_store_sqlite::{Options, SqliteStore, SystemClock};
use redrive_testkit::{History, RecordingStore};

use crate::{runner, workload};

pub(crate) fn main(arguments: &[String]) {
    let [mode, folder, seed] = arguments else { panic!("child MODE FOLDER SEED") };
    let (folder, seed) = (PathBuf::from(folder), seed.parse().expect("a number"));
    runner::runtime().block_on(async {
        match mode.as_str() {
            "work" => run(&folder, seed).await,
            "drain" => {
                let (store, history) = open(&folder);
                workload::drain(store, history).await;
            }
            "fill" => super::full::fill(&folder).await,
            other => panic!("no such mode: {other}"),
        }
    });
}

/// Opens the store, and records all its results in the journal of the folder.
pub(crate) fn open(folder: &Path) -> (RecordingStore, History) {
    let store = SqliteStore::open(folder.join("redrive.db"), Options::default()).expect("the store opens");
    let history = History::with_journal(&folder.join("journal"), SystemClock).expect("the journal opens");
    (RecordingStore::new(Arc::new(store), history.clone()), history)
}

/// Enqueues, claims and settles as fast as it can.
async fn run(folder: &Path, seed: u64) {
    let (store, history) = open(folder);
    let policy = catalog::put_inline(&store, &workload::policy(), redrive_core::Timestamp::default())
        .await
        .expect("the policy is stored");
    let enqueuer = tokio::spawn(enqueue_for_ever(store.clone(), policy, seed));
    let worker = workload::worker(Arc::new(store), history, workload::quick_settings());
    worker.run_until(std::future::pending()).await.expect("the worker runs until it is killed");
    enqueuer.abort();
}

async fn enqueue_for_ever(store: RecordingStore, policy: PolicyRef, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut poisoned = false;
    loop {
        let mut jobs = workload::jobs(&policy, &mut rng);
        if !poisoned && rng.f32() < 0.08 {
            poisoned = true;
            jobs.push(workload::job(&policy, "poison"));
        }
        store.enqueue(jobs).await.expect("enqueued");
        tokio::time::sleep(Duration::from_millis(rng.u64(0..4))).await;
    }
}
