//! Runs the conformance suite of all stores, in memory and on disk.

use redrive_store_sqlite::{Options, SqliteStore};

#[tokio::test]
async fn sqlite_conforms_in_memory() {
    redrive_testkit::exercise(|clock| async {
        SqliteStore::open_in_memory_with(Options::default().with_clock(clock))
            .expect("a store in memory opens")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_conforms_on_disk() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let files = std::sync::atomic::AtomicU32::new(0);
    redrive_testkit::exercise(|clock| {
        let number = files.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = folder.path().join(format!("{number}.db"));
        async {
            SqliteStore::open(path, Options::default().with_clock(clock)).expect("a store on disk opens")
        }
    })
    .await;
}

#[test]
fn sqlite_agrees_with_the_model() {
    redrive_testkit::check_against_model(512, |clock| async {
        SqliteStore::open_in_memory_with(Options::default().with_clock(clock))
            .expect("a store in memory opens")
    });
}

#[tokio::test]
async fn sqlite_loses_no_wake_up_in_any_order_of_calls() {
    let open = |clock| async {
        SqliteStore::open_in_memory_with(Options::default().with_clock(clock))
            .expect("a store in memory opens")
    };
    redrive_testkit::interleave(open).await;
    redrive_testkit::interleave_all(open).await;
}
