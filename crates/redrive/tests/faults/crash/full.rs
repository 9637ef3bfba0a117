//! A full disk: enqueues fail with an error that says so, and no acknowledged job is lost.

use std::path::Path;
use std::process::Command;

use redrive_core::{JobId, Kind, NewJob, Store, StoreError, catalog};
use redrive_store_sqlite::{Options, SqliteStore};
use redrive_testkit::checks::{FinalState, nothing_lost};

use super::child;
use crate::{process, workload};

/// The file size limit of the child, in kilobytes.
const FILE_KBYTES_MAX: u32 = 2_000;

pub(crate) fn full_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    // The limit makes writes fail like a full disk. The signal that comes with it is ignored, because a full disk sends
    // none.
    let script = format!("trap '' XFSZ; ulimit -f {FILE_KBYTES_MAX}; exec \"$@\"");
    let status = Command::new("bash")
        .args(["-c", &script])
        .arg("bash")
        .arg(std::env::current_exe().expect("this program"))
        .args([process::CHILD, super::SUITE, "fill"])
        .arg(folder.path())
        .arg("0")
        .status()
        .expect("bash runs");
    assert!(status.success(), "the child must get an error and not crash");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(check(folder.path()));
}

/// The child process: enqueues until an enqueue fails, then checks that reads still work.
pub(crate) async fn fill(folder: &Path) {
    let (store, _) = child::open(folder);
    let policy = catalog::put_inline(&store, &workload::policy(), redrive_core::Timestamp::default())
        .await
        .expect("stored");
    let error = loop {
        let kind = Kind::new("full").expect("legal");
        let job = NewJob::new(JobId(uuid::Uuid::now_v7()), kind, policy.clone(), vec![7; 20_000]);
        match store.enqueue(vec![job]).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full(_) | StoreError::Unavailable(_)), "{error:?}");
    store.stats().await.expect("reads need no space");
}

async fn check(folder: &Path) {
    let (store, history) = child::open(folder);
    let end = FinalState::read(&store, &history).await.expect("the store can be read");
    assert!(end.jobs.len() > 20, "only {} jobs were accepted", end.jobs.len());
    nothing_lost(&history, &end).unwrap_or_else(|violation| panic!("{violation}"));
    drop(store);
    let store =
        SqliteStore::open(folder.join("redrive.db"), Options::default()).expect("the store opens again");
    let policy = catalog::put_inline(&store, &workload::policy(), redrive_core::Timestamp::default())
        .await
        .expect("there is space again");
    let job =
        NewJob::new(JobId(uuid::Uuid::now_v7()), Kind::new("full").expect("legal"), policy, vec![7; 20_000]);
    store.enqueue(vec![job]).await.expect("there is space again");
}
