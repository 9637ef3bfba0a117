//! A node as a child process, which tests kill, freeze or start with a wrong clock.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redrive::Redrive;
use redrive_core::store::EnqueueResult;
use redrive_core::{NewJob, PolicyRef, Store, WorkerId, catalog};
use redrive_store_sqlite::SystemClock;
use redrive_testkit::{History, RecordingStore};
use redrive_worker::{AttemptLogging, Settings};

use crate::{runner, workload};

/// The extension of files that list the enqueues whose first result was lost.
pub(crate) const AGAIN: &str = "again";

pub(crate) fn main(arguments: &[String]) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    runner::runtime().block_on(async {
        match arguments.as_slice() {
            ["work", address, journal, seed] => run(address, journal.as_ref(), number(seed)).await,
            ["drain", address, journal, _] => {
                let (store, history) = open(address, journal.as_ref()).await;
                workload::drain(store, history).await;
            }
            ["default", address, journal, lease_ms] => {
                run_with_default_intervals(
                    address,
                    journal.as_ref(),
                    Duration::from_millis(number(lease_ms)),
                )
                .await;
            }
            ["clocks", address, journal, _] => {
                super::clocks::enqueue_and_work(address, journal.as_ref()).await
            }
            ["power", disk, image, fsync] => super::power::cut(disk.as_ref(), image.as_ref(), fsync).await,
            ["full", disk] => super::full::fill(disk.as_ref()).await,
            other => panic!("no such child: {other:?}"),
        }
    });
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// Opens the store, and records all its results in a journal.
pub(crate) async fn open(address: &str, journal: &Path) -> (RecordingStore, History) {
    let store = Redrive::open(address).await.expect("the store opens").backend().clone();
    let history = History::with_journal(journal, SystemClock).expect("the journal opens");
    (RecordingStore::new(store, history.clone()), history)
}

/// Enqueues, claims and settles with short intervals, even if the server fails.
async fn run(address: &str, journal: &Path, seed: u64) {
    let (store, history) = open(address, journal).await;
    let policy = catalog::put_inline(&store, &workload::policy(), redrive_core::Timestamp::default())
        .await
        .expect("the policy is stored");
    let again = File::create(journal.with_extension(AGAIN)).expect("a file");
    let worker = workload::worker(Arc::new(store.clone()), history, workload::quick_settings());
    tokio::select! {
        ended = worker.run_until(std::future::pending()) => panic!("the worker has ended: {ended:?}"),
        () = enqueue_for_ever(store, policy, seed, again) => {}
    }
}

/// Claims and settles with the default intervals.
async fn run_with_default_intervals(address: &str, journal: &Path, lease: Duration) {
    let (store, history) = open(address, journal).await;
    let worker = workload::worker(Arc::new(store), history, default_settings(&name(journal), lease));
    worker.run_until(std::future::pending()).await.expect("the worker runs until it is killed");
}

/// The name of a node, from the name of its journal.
pub(crate) fn name(journal: &Path) -> String {
    journal.file_stem().expect("a name").to_string_lossy().into_owned()
}

/// The default settings of workers, except for the lease and the attempt log.
pub(crate) fn default_settings(name: &str, lease: Duration) -> Settings {
    let worker = WorkerId::new(name).expect("legal");
    Settings::default().with_worker(worker).with_lease(lease).with_log(AttemptLogging::All)
}

async fn enqueue_for_ever(store: RecordingStore, policy: PolicyRef, seed: u64, mut again: File) {
    let mut rng = fastrand::Rng::with_seed(seed);
    loop {
        enqueue(&store, workload::jobs(&policy, &mut rng), &mut again).await;
        tokio::time::sleep(Duration::from_millis(rng.u64(5..25))).await;
    }
}

/// After an error the jobs may or may not be enqueued, so it enqueues the same jobs again until it gets a result.
async fn enqueue(store: &RecordingStore, jobs: Vec<NewJob>, again: &mut File) {
    let mut unknown = false;
    let answers = loop {
        match store.enqueue(jobs.clone()).await {
            Ok(answers) => break answers,
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
        unknown = true;
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    if unknown {
        let had_taken_effect =
            jobs.iter().zip(&answers).any(|(job, answer)| *answer == EnqueueResult::Existing(job.id));
        let line: &[u8] = if had_taken_effect { b"had taken effect\n" } else { b"had not taken effect\n" };
        again.write_all(line).expect("the file can be written");
    }
}
