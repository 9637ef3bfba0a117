//! A power cut of a Redis server: it starts again from the data that had reached its disk.
//!
//! The files of the server are on a file system in an image. A copy of the image at the moment of the cut has exactly the data
//! that was synced by then.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use redrive::{Redrive, doctor};
use redrive_core::store::EnqueueResult;
use redrive_core::{JobId, catalog};
use redrive_testkit::servers::Redis;

use crate::{process, runner, workload};

/// How long jobs are enqueued before the cut.
const LOAD: Duration = Duration::from_secs(4);
/// The exit code of a shell that could not mount.
const NO_DISK: i32 = 77;

pub(crate) fn redis_power_cut_loses_no_more_than_the_doctor_reports() {
    for fsync in ["always", "everysec"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (image, disk) = (folder.path().join("image"), folder.path().join("disk"));
        std::fs::create_dir(&disk).expect("the folder can be created");
        run(Command::new("truncate").args(["-s", "256M"]).arg(&image));
        run(Command::new("mkfs.ext4").arg("-q").arg(&image));
        let mount = format!("mount -o loop \"$1\" \"$2\" && chmod 1777 \"$2\" || exit {NO_DISK}; shift 2");
        let program = std::env::current_exe().expect("this program");
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", &format!("{mount}; exec \"$@\""), "sh"]);
        unshare
            .arg(&image)
            .arg(&disk)
            .arg(program)
            .args([process::CHILD, super::SUITE, "power"])
            .arg(&disk)
            .arg(&image)
            .arg(fsync);
        let status = unshare.status().expect("unshare runs: install util-linux");
        if status.code() == Some(NO_DISK) {
            // Without root or loop devices no image can be mounted.
            println!("  no image can be mounted here: the server is killed instead of its power cut");
            runner::runtime().block_on(kill(fsync));
        } else {
            assert!(status.success(), "the test with appendfsync {fsync} has failed");
        }
    }
}

/// The process that mounts the disk.
pub(crate) async fn cut(disk: &Path, image: &Path, fsync: &str) {
    let server = Redis::start_in(disk, &[("appendfsync", fsync)]);
    let reported_s = reported_loss_s(&server.address()).await;
    let acknowledged = load(&server.address()).await;
    server.freeze();
    let cut = Instant::now();
    let left = image.with_extension("left");
    run(Command::new("cp").arg("--sparse=always").arg(image).arg(&left));
    let files = server.files().file_name().expect("a folder").to_owned();
    drop(server);

    let again = image.with_extension("again");
    std::fs::create_dir(&again).expect("the folder can be created");
    run(Command::new("mount").args(["-o", "loop"]).arg(&left).arg(&again));
    if fsync == "everysec" {
        repair(&again.join(&files));
    }
    let server = Redis::start_from(&again.join(files), &[("appendfsync", fsync)]);
    check(&server, &acknowledged, cut, fsync, reported_s).await;
    drop(server);
    run(Command::new("umount").arg(&again));
}

/// Cuts off the file of a server at its first gap, as Redis tells its operator to do. Blocks that were not synchronised reach the disk in any
/// order, so there may be a gap before the end of the file, and then Redis does not start.
fn repair(files: &Path) {
    let manifest = files.join("appendonlydir/appendonly.aof.manifest");
    run(Command::new("sh")
        .args(["-c", "yes | redis-check-aof --fix \"$1\" > /dev/null", "sh"])
        .arg(manifest));
}

/// The same with a crash of the server only, while the operating system continues.
async fn kill(fsync: &str) {
    let mut server = Redis::start_with(&[("appendfsync", fsync)]);
    let reported_s = reported_loss_s(&server.address()).await;
    let acknowledged = load(&server.address()).await;
    server.kill();
    let cut = Instant::now();
    server.restart();
    check(&server, &acknowledged, cut, fsync, reported_s).await;
}

/// Checks that no acknowledged job is lost, except within the time that the doctor reported.
async fn check(
    server: &Redis,
    acknowledged: &[(Vec<JobId>, Instant)],
    cut: Instant,
    fsync: &str,
    reported_s: u64,
) {
    let store = Redrive::open(&server.address()).await.expect("the store opens");
    let mut lost = Vec::new();
    for (ids, at) in acknowledged {
        let found = store.backend().get(ids.clone()).await.expect("get");
        lost.extend(found.iter().filter(|job| job.is_none()).map(|_| cut.duration_since(*at)));
    }
    let longest = lost.iter().max().copied().unwrap_or_default();
    let jobs: usize = acknowledged.iter().map(|(ids, _)| ids.len()).sum();
    let count = lost.len();
    println!(
        "  appendfsync {fsync}: {count} of {jobs} jobs lost, the oldest {longest:?} before the end; the doctor reported {reported_s} s"
    );
    assert!(reported_s > 0 || lost.is_empty(), "NOTHING-LOST: {count} acknowledged jobs are gone");
    let reported = Duration::from_secs(reported_s);
    assert!(
        longest <= reported,
        "NOTHING-LOST: a job acknowledged {longest:?} before the end is gone, but the doctor reported {reported:?}"
    );
}

/// How many seconds of data an outage can lose, according to the doctor.
async fn reported_loss_s(address: &str) -> u64 {
    let findings = doctor(address).await.expect("the doctor answers");
    let durability = findings
        .iter()
        .find(|finding| finding.check == "durability")
        .expect("the doctor checks the durability");
    if durability.what.contains("loses no acknowledged job") {
        return 0;
    }
    let seconds =
        durability.what.split("the last ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    seconds.unwrap_or_else(|| panic!("the finding names no time: {durability:?}"))
}

/// Enqueues jobs, and records when each was acknowledged.
async fn load(address: &str) -> Vec<(Vec<JobId>, Instant)> {
    let redrive = Redrive::open(address).await.expect("the store opens");
    let store = redrive.backend();
    let policy = catalog::put_inline(&**store, &workload::policy(), redrive_core::Timestamp::default())
        .await
        .expect("stored");
    let (mut acknowledged, end) = (Vec::new(), Instant::now() + LOAD);
    while Instant::now() < end {
        let jobs: Vec<_> = (0..10).map(|_| workload::job(&policy, "ok")).collect();
        let ids = jobs.iter().map(|job| job.id).collect();
        let answers = store.enqueue(jobs).await.expect("enqueued");
        assert!(answers.iter().all(|answer| matches!(answer, EnqueueResult::Created(_))));
        acknowledged.push((ids, Instant::now()));
    }
    acknowledged
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(status.success(), "{command:?} failed, {status}");
}
