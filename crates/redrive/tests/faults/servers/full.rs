//! A full disk: enqueues fail with an error that says so, and all acknowledged jobs still exist once the disk has space again.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use redrive_core::store::EnqueueResult;
use redrive_core::{NewJob, PolicyRef, Store, StoreError};
use redrive_testkit::RecordingStore;
use redrive_testkit::checks::{FinalState, nothing_lost};
use redrive_testkit::servers::Postgres;

use super::fixture::{self, Fixture, TIMEOUT};
use crate::{process, workload};

/// The size of the disk, and how much of it is used at the start.
const DISK_MB: usize = 96;
const BALLAST_FOR_TABLES_MB: usize = 80;
const BALLAST_FOR_SERVER_MB: usize = 30;
/// The least number of jobs that a meaningful test enqueues.
const JOBS_MIN: usize = 20;

/// The exit code of a shell that could not mount.
const NO_DISK: i32 = 77;

/// Runs in a process of its own, so that the disk is unmounted when the process ends.
pub(crate) fn disk_full() {
    let disk = tempfile::tempdir().expect("a folder");
    let owner = std::fs::metadata("/proc/self").expect("this needs Linux");
    let mount =
        format!("mount -t tmpfs -o size={DISK_MB}m,mode=1777 redrive \"$1\" || exit {NO_DISK}; shift");
    let mut unshare = Command::new("unshare");
    if owner.uid() == 0 {
        unshare.args(["--mount", "sh", "-c", &format!("{mount}; exec \"$@\"")]);
    } else {
        // Root of a new namespace may mount. Postgres refuses to run as root, so it runs as another user.
        let again = format!("unshare --user --map-user={} --map-group={}", owner.uid(), owner.gid());
        unshare.args(["--map-root-user", "--mount", "sh", "-c", &format!("{mount}; exec {again} \"$@\"")]);
    }
    let program = std::env::current_exe().expect("this program");
    unshare
        .arg("sh")
        .arg(disk.path())
        .arg(program)
        .args([process::CHILD, super::SUITE, "full"])
        .arg(disk.path());
    let status = unshare.status().expect("unshare runs: install util-linux");
    assert!(
        status.code() != Some(NO_DISK) && status.code() != Some(1),
        "a small disk cannot be mounted: run the tests as root, or allow namespaces to users, \
         with sysctl kernel.unprivileged_userns_clone=1 and user.max_user_namespaces=1000"
    );
    assert!(status.success(), "the test on a small disk has failed");
}

/// The process that mounts the disk.
pub(crate) async fn fill(disk: &Path) {
    tables_full(disk).await;
    server_full(disk).await;
}

/// Only the tables are on the disk: the server continues, and reports the problem.
async fn tables_full(disk: &Path) {
    let server = Postgres::start();
    let tables = disk.join("tables");
    // The user of the server must own the folder.
    server.run(&format!("COPY (SELECT) TO PROGRAM 'mkdir -m 700 {}'", tables.display()));
    server.run(&format!("CREATE TABLESPACE small LOCATION '{}'", tables.display()));
    server.run("ALTER DATABASE redrive SET default_tablespace = small");
    let ballast = Ballast::put(disk, BALLAST_FOR_TABLES_MB);
    let fixture = Fixture::on(server).await;
    let (store, history) = fixture.local("full").await;
    let policy = fixture::policy(&store).await;
    let (refused, error) = enqueue_until_refused(&store, &policy).await;
    assert!(matches!(error, StoreError::Full(_)), "{error:?}");
    let again = store.enqueue(vec![refused.clone()]).await.expect_err("there is still no space");
    assert!(matches!(again, StoreError::Full(_)), "{again:?}");
    check_kept(&fixture, &store).await;
    ballast.remove();
    let room = store.enqueue(vec![refused.clone()]).await.expect("there is space again");
    assert_eq!(room, [EnqueueResult::Created(refused.id)]);
    workload::drain(store.clone(), history).await;
    let (end, _) = fixture.check().await;
    println!("  {} jobs on a full table space, all ended", end.jobs.len());
}

/// The whole server is on the disk: without space for its log it stops, and it starts again once there is space.
async fn server_full(disk: &Path) {
    let server = Postgres::start_in(disk, &[("max_wal_size", "4MB")]);
    let ballast = Ballast::put(disk, BALLAST_FOR_SERVER_MB);
    let mut fixture = Fixture::on(server).await;
    let (store, history) = fixture.local("full").await;
    let policy = fixture::policy(&store).await;
    let (refused, error) = enqueue_until_refused(&store, &policy).await;
    assert!(matches!(error, StoreError::Full(_) | StoreError::Unavailable(_)), "{error:?}");
    ballast.remove();
    fixture.server.restart();
    check_kept(&fixture, &store).await;
    store.enqueue(vec![refused]).await.expect("there is space again");
    workload::drain(store.clone(), history).await;
    let (end, _) = fixture.check().await;
    println!("  {} jobs on a server that is full ({error}), all ended", end.jobs.len());
}

/// Enqueues jobs until an enqueue fails. Returns the job and the error.
async fn enqueue_until_refused(store: &RecordingStore, policy: &PolicyRef) -> (NewJob, StoreError) {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < TIMEOUT, "the disk is not filled");
        // The metadata cannot be compressed.
        let metadata = (0..30_000).map(|_| fastrand::alphanumeric()).collect();
        let job = NewJob { metadata: Some(metadata), ..workload::job(policy, "ok") };
        if let Err(error) = store.enqueue(vec![job.clone()]).await {
            return (job, error);
        }
    }
}

/// Checks NOTHING-LOST.
async fn check_kept(fixture: &Fixture, store: &RecordingStore) {
    let history = fixture.history();
    let end = FinalState::read(store, &history).await.expect("reads need no space");
    assert!(end.jobs.len() >= JOBS_MIN, "only {} jobs were accepted", end.jobs.len());
    nothing_lost(&history, &end).unwrap_or_else(|violation| panic!("{violation}"));
}

/// A file that uses space.
struct Ballast(PathBuf);

impl Ballast {
    fn put(disk: &Path, megabytes: usize) -> Self {
        let path = disk.join("ballast");
        let mut file = File::create(&path).expect("a file");
        (0..megabytes)
            .for_each(|_| file.write_all(&vec![0; 1024 * 1024]).expect("there is space for the ballast"));
        Self(path)
    }

    fn remove(self) {
        std::fs::remove_file(self.0).expect("the file can be removed");
    }
}
