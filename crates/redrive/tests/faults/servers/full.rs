//! A disk that takes no more: an error that says so, and everything acknowledged is there once there is room again.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use redrive_core::store::Enqueued;
use redrive_core::{NewJob, PolicyRef, Store, StoreError};
use redrive_testkit::Recorded;
use redrive_testkit::checks::{End, nothing_lost};
use redrive_testkit::servers::Postgres;

use crate::scene::{self, PATIENCE, Scene};
use crate::victim::work;

/// The disk, and how much of it is taken from the start.
const DISK_MB: usize = 96;
const BALLAST_FOR_TABLES_MB: usize = 80;
const BALLAST_FOR_SERVER_MB: usize = 30;
/// Enough for a test to have got somewhere.
const JOBS_MIN: usize = 20;

/// The exit code of a shell that could not mount.
const NO_DISK: i32 = 77;

/// The disk belongs to a process of its own and goes with it, however that ends.
pub(crate) fn disk_full() {
    let disk = tempfile::tempdir().expect("a folder");
    let me = std::fs::metadata("/proc/self").expect("this needs Linux");
    let mount =
        format!("mount -t tmpfs -o size={DISK_MB}m,mode=1777 redrive \"$1\" || exit {NO_DISK}; shift");
    let mut unshare = Command::new("unshare");
    if me.uid() == 0 {
        unshare.args(["--mount", "sh", "-c", &format!("{mount}; exec \"$@\"")]);
    } else {
        // Root of a namespace of its own may mount; Postgres then wants to be run by anyone but root.
        let again = format!("unshare --user --map-user={} --map-group={}", me.uid(), me.gid());
        unshare.args(["--map-root-user", "--mount", "sh", "-c", &format!("{mount}; exec {again} \"$@\"")]);
    }
    let program = std::env::current_exe().expect("this program");
    unshare.arg("sh").arg(disk.path()).arg(program).args(["child", "full"]).arg(disk.path());
    let status = unshare.status().expect("unshare runs: install util-linux");
    assert!(
        status.code() != Some(NO_DISK) && status.code() != Some(1),
        "a small disk cannot be mounted: run the tests as root, or allow namespaces to users, \
         with sysctl kernel.unprivileged_userns_clone=1 and user.max_user_namespaces=1000"
    );
    assert!(status.success(), "the test on a small disk has failed");
}

/// The process with the disk.
pub(crate) async fn fill(disk: &Path) {
    tables_full(disk).await;
    server_full(disk).await;
}

/// The tables are on the disk, the rest of the server is not: it goes on, and says what is the matter.
async fn tables_full(disk: &Path) {
    let server = Postgres::start();
    let tables = disk.join("tables");
    // The server's user has to own it.
    server.run(&format!("COPY (SELECT) TO PROGRAM 'mkdir -m 700 {}'", tables.display()));
    server.run(&format!("CREATE TABLESPACE small LOCATION '{}'", tables.display()));
    server.run("ALTER DATABASE redrive SET default_tablespace = small");
    let ballast = Ballast::put(disk, BALLAST_FOR_TABLES_MB);
    let scene = Scene::on(server).await;
    let (store, history) = scene.local("full").await;
    let policy = scene::policy(&store).await;
    let (refused, error) = enqueue_until_refused(&store, &policy).await;
    assert!(matches!(error, StoreError::Full(_)), "{error:?}");
    let again = store.enqueue(vec![refused.clone()]).await.expect_err("there is no more room than before");
    assert!(matches!(again, StoreError::Full(_)), "{again:?}");
    check_kept(&scene, &store).await;
    ballast.remove();
    let room = store.enqueue(vec![refused.clone()]).await.expect("there is room again");
    assert_eq!(room, [Enqueued::Created(refused.id)]);
    work::drain(store.clone(), history).await;
    let (end, _) = scene.check().await;
    println!("  {} jobs on a full table space, all ended", end.jobs.len());
}

/// All of the server is on the disk: without room for its log it goes down, and comes back when there is some.
async fn server_full(disk: &Path) {
    let server = Postgres::start_in(disk, &[("max_wal_size", "4MB")]);
    let ballast = Ballast::put(disk, BALLAST_FOR_SERVER_MB);
    let mut scene = Scene::on(server).await;
    let (store, history) = scene.local("full").await;
    let policy = scene::policy(&store).await;
    let (refused, error) = enqueue_until_refused(&store, &policy).await;
    assert!(matches!(error, StoreError::Full(_) | StoreError::Unavailable(_)), "{error:?}");
    ballast.remove();
    scene.server.restart();
    check_kept(&scene, &store).await;
    store.enqueue(vec![refused]).await.expect("there is room again");
    work::drain(store.clone(), history).await;
    let (end, _) = scene.check().await;
    println!("  {} jobs on a server that is full ({error}), all ended", end.jobs.len());
}

/// Enqueues jobs until one is refused; returns it, and why.
async fn enqueue_until_refused(store: &Recorded, policy: &PolicyRef) -> (NewJob, StoreError) {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "the disk is not filled");
        // Nothing that can be compressed.
        let metadata = (0..30_000).map(|_| fastrand::alphanumeric()).collect();
        let job = NewJob { metadata: Some(metadata), ..work::job(policy, "ok") };
        if let Err(error) = store.enqueue(vec![job.clone()]).await {
            return (job, error);
        }
    }
}

/// NOTHING-LOST, read from the store as it is.
async fn check_kept(scene: &Scene, store: &Recorded) {
    let history = scene.history();
    let end = End::of(store, &history).await.expect("reading needs no room");
    assert!(end.jobs.len() >= JOBS_MIN, "only {} jobs were accepted", end.jobs.len());
    nothing_lost(&history, &end).unwrap_or_else(|violation| panic!("{violation}"));
}

/// A file that takes room away.
struct Ballast(PathBuf);

impl Ballast {
    fn put(disk: &Path, megabytes: usize) -> Self {
        let path = disk.join("ballast");
        let mut file = File::create(&path).expect("a file");
        (0..megabytes)
            .for_each(|_| file.write_all(&vec![0; 1024 * 1024]).expect("there is room for ballast"));
        Self(path)
    }

    fn remove(self) {
        std::fs::remove_file(self.0).expect("it is ours");
    }
}
