//! A node as a process of its own, to be killed, frozen or put into another time.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redrive::Redrive;
use redrive_core::store::Enqueued;
use redrive_core::{NewJob, PolicyRef, Store, WorkerId, catalog};
use redrive_store_sqlite::SystemClock;
use redrive_testkit::{History, Recorded};
use redrive_worker::{KeepLog, Settings};

use crate::victim::{program, work};

/// How the files of enqueues end whose outcome was unknown at first.
pub(crate) const AGAIN: &str = "again";

pub(crate) fn main(arguments: &[String]) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    program::runtime().block_on(async {
        match arguments.as_slice() {
            ["work", address, journal, seed] => run(address, journal.as_ref(), number(seed)).await,
            ["drain", address, journal, _] => {
                let (store, history) = open(address, journal.as_ref()).await;
                work::drain(store, history).await;
            }
            ["calm", address, journal, lease_ms] => {
                run_calmly(address, journal.as_ref(), Duration::from_millis(number(lease_ms))).await;
            }
            ["clocks", address, journal, _] => {
                crate::clocks::enqueue_and_work(address, journal.as_ref()).await
            }
            ["power", disk, image, fsync] => crate::power::cut(disk.as_ref(), image.as_ref(), fsync).await,
            ["full", disk] => crate::full::fill(disk.as_ref()).await,
            other => panic!("no such child: {other:?}"),
        }
    });
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// Opens the store and notes down all that it answers in a journal.
pub(crate) async fn open(address: &str, journal: &Path) -> (Recorded, History) {
    let store = Redrive::open(address).await.expect("the store opens").backend().clone();
    let history = History::journalled(journal, SystemClock).expect("the journal opens");
    (Recorded::new(store, history.clone()), history)
}

/// Enqueues, claims and settles in a hurry, whatever happens to the server.
async fn run(address: &str, journal: &Path, seed: u64) {
    let (store, history) = open(address, journal).await;
    let policy = catalog::put_inline(&store, &work::policy()).await.expect("the policy is stored");
    let again = File::create(journal.with_extension(AGAIN)).expect("a file");
    let worker = work::worker(Arc::new(store.clone()), history, work::hurried());
    tokio::select! {
        ended = worker.run_until(std::future::pending()) => panic!("the worker has ended: {ended:?}"),
        () = enqueue_for_ever(store, policy, seed, again) => {}
    }
}

/// Claims and settles without haste.
async fn run_calmly(address: &str, journal: &Path, lease: Duration) {
    let (store, history) = open(address, journal).await;
    let worker = work::worker(Arc::new(store), history, calm(&name(journal), lease));
    worker.run_until(std::future::pending()).await.expect("it works until it is killed");
}

/// The name of a node, as its journal has it.
pub(crate) fn name(journal: &Path) -> String {
    journal.file_stem().expect("a name").to_string_lossy().into_owned()
}

/// The settings that workers have by default, apart from the lease and the log.
pub(crate) fn calm(name: &str, lease: Duration) -> Settings {
    let worker = WorkerId::new(name).expect("legal");
    Settings::default().with_worker(worker).with_lease(lease).with_log(KeepLog::All)
}

async fn enqueue_for_ever(store: Recorded, policy: PolicyRef, seed: u64, mut again: File) {
    let mut chance = fastrand::Rng::with_seed(seed);
    loop {
        enqueue(&store, work::jobs(&policy, &mut chance), &mut again).await;
        tokio::time::sleep(Duration::from_millis(chance.u64(5..25))).await;
    }
}

/// After an error nobody knows whether the jobs are there: the same ones again, until there is an answer.
async fn enqueue(store: &Recorded, jobs: Vec<NewJob>, again: &mut File) {
    let mut unknown = false;
    let answers = loop {
        match store.enqueue(jobs.clone()).await {
            Ok(answers) => break answers,
            Err(error) => assert!(error.may_pass(), "{error:?}"),
        }
        unknown = true;
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    if unknown {
        let was_there = jobs.iter().zip(&answers).any(|(job, answer)| *answer == Enqueued::Existing(job.id));
        let line: &[u8] = if was_there { b"was there\n" } else { b"was not there\n" };
        again.write_all(line).expect("the file can be written");
    }
}
