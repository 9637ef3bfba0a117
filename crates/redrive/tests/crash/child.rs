//! The process that is killed, on a store in a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redrive_core::{PolicyRef, Store, catalog};
use redrive_store_sqlite::{Options, SqliteStore, SystemClock};
use redrive_testkit::{History, Recorded};

use crate::victim::{program, work};

pub(crate) fn main(arguments: &[String]) {
    let [mode, folder, seed] = arguments else { panic!("child MODE FOLDER SEED") };
    let (folder, seed) = (PathBuf::from(folder), seed.parse().expect("a number"));
    program::runtime().block_on(async {
        match mode.as_str() {
            "work" => run(&folder, seed).await,
            "drain" => {
                let (store, history) = open(&folder);
                work::drain(store, history).await;
            }
            "fill" => crate::full::fill(&folder).await,
            other => panic!("no such mode: {other}"),
        }
    });
}

/// Opens the store and notes down all that it answers in the folder's journal.
pub(crate) fn open(folder: &Path) -> (Recorded, History) {
    let store = SqliteStore::open(folder.join("redrive.db"), Options::default()).expect("the store opens");
    let history = History::journalled(&folder.join("journal"), SystemClock).expect("the journal opens");
    (Recorded::new(Arc::new(store), history.clone()), history)
}

/// Enqueues, claims and settles as fast as it can.
async fn run(folder: &Path, seed: u64) {
    let (store, history) = open(folder);
    let policy = catalog::put_inline(&store, &work::policy()).await.expect("the policy is stored");
    let enqueuer = tokio::spawn(enqueue_for_ever(store.clone(), policy, seed));
    let worker = work::worker(Arc::new(store), history, work::hurried());
    worker.run_until(std::future::pending()).await.expect("it works until it is killed");
    enqueuer.abort();
}

async fn enqueue_for_ever(store: Recorded, policy: PolicyRef, seed: u64) {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut poisoned = false;
    loop {
        let mut jobs = work::jobs(&policy, &mut chance);
        if !poisoned && chance.f32() < 0.08 {
            poisoned = true;
            jobs.push(work::job(&policy, "poison"));
        }
        store.enqueue(jobs).await.expect("enqueued");
        tokio::time::sleep(Duration::from_millis(chance.u64(0..4))).await;
    }
}
