//! A disk that takes no more: an error that says so, and everything acknowledged is there afterwards.

use std::path::Path;
use std::process::Command;

use redrive_core::{JobId, Kind, NewJob, Store, StoreError, catalog};
use redrive_store_sqlite::{Options, SqliteStore};
use redrive_testkit::checks::{End, nothing_lost};

use crate::child;
use crate::victim::work;

/// Kilobytes that a file of the child may have, as bash counts them.
const FILE_KBYTES_MAX: u32 = 2_000;

pub(crate) fn full_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    // The limit makes writes fail as a full disk does; the signal that comes with it is ignored, as on a full disk there
    // is none.
    let script = format!("trap '' XFSZ; ulimit -f {FILE_KBYTES_MAX}; exec \"$0\" child fill \"$1\" 0");
    let status = Command::new("bash")
        .args(["-c", &script])
        .arg(std::env::current_exe().expect("this program"))
        .arg(folder.path())
        .status()
        .expect("bash runs");
    assert!(status.success(), "the child must see an error, not die of it");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(check(folder.path()));
}

/// The child: enqueues until it is refused, then sees that reading still works.
pub(crate) async fn fill(folder: &Path) {
    let (store, _) = child::open(folder);
    let policy = catalog::put_inline(&store, &work::policy()).await.expect("stored");
    let error = loop {
        let kind = Kind::new("full").expect("legal");
        let job = NewJob::new(JobId(uuid::Uuid::now_v7()), kind, policy.clone(), vec![7; 20_000]);
        match store.enqueue(vec![job]).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full(_) | StoreError::Unavailable(_)), "{error:?}");
    store.stats().await.expect("reading needs no room");
}

async fn check(folder: &Path) {
    let (store, history) = child::open(folder);
    let end = End::of(&store, &history).await.expect("the store can be read");
    assert!(end.jobs.len() > 20, "only {} jobs were accepted", end.jobs.len());
    nothing_lost(&history, &end).unwrap_or_else(|violation| panic!("{violation}"));
    drop(store);
    let store = SqliteStore::open(folder.join("redrive.db"), Options::default()).expect("it opens again");
    let policy = catalog::put_inline(&store, &work::policy()).await.expect("there is room again");
    let job =
        NewJob::new(JobId(uuid::Uuid::now_v7()), Kind::new("full").expect("legal"), policy, vec![7; 20_000]);
    store.enqueue(vec![job]).await.expect("there is room again");
}
