//! A power cut under a Redis: what its disk had, and nothing of what the system would have written later, is what it starts from.
//!
//! Its files are on a file system of their own inside an image. A copy of the image at the moment of the cut has what was
//! written through to the disk by then.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use redrive::{Redrive, doctor};
use redrive_core::store::Enqueued;
use redrive_core::{JobId, catalog};
use redrive_testkit::servers::Redis;

use crate::victim::{program, work};

/// How long jobs are put in before the cut.
const LOAD: Duration = Duration::from_secs(4);
/// The exit code of a shell that could not mount.
const NO_DISK: i32 = 77;

pub(crate) fn redis_power_cut_loses_no_more_than_was_said() {
    for fsync in ["always", "everysec"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (image, disk) = (folder.path().join("image"), folder.path().join("disk"));
        std::fs::create_dir(&disk).expect("a folder of our own");
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
            .args(["child", "power"])
            .arg(&disk)
            .arg(&image)
            .arg(fsync);
        let status = unshare.status().expect("unshare runs: install util-linux");
        if status.code() == Some(NO_DISK) {
            // Without root or loop devices there is no disk to take the power from.
            println!("  no image can be mounted here: the server is killed instead of its power cut");
            program::runtime().block_on(kill(fsync));
        } else {
            assert!(status.success(), "the test with appendfsync {fsync} has failed");
        }
    }
}

/// The process with the disk.
pub(crate) async fn cut(disk: &Path, image: &Path, fsync: &str) {
    let server = Redis::start_in(disk, &[("appendfsync", fsync)]);
    let said_s = said(&server.address()).await;
    let acknowledged = load(&server.address()).await;
    server.freeze();
    let cut = Instant::now();
    let left = image.with_extension("left");
    run(Command::new("cp").arg("--sparse=always").arg(image).arg(&left));
    let files = server.files().file_name().expect("a folder").to_owned();
    drop(server);

    let again = image.with_extension("again");
    std::fs::create_dir(&again).expect("a folder of our own");
    run(Command::new("mount").args(["-o", "loop"]).arg(&left).arg(&again));
    let server = Redis::start_from(&again.join(files), &[("appendfsync", fsync)]);
    check(&server, &acknowledged, cut, fsync, said_s).await;
    drop(server);
    run(Command::new("umount").arg(&again));
}

/// The same with a crash of the server alone, which the system survives.
async fn kill(fsync: &str) {
    let mut server = Redis::start_with(&[("appendfsync", fsync)]);
    let said_s = said(&server.address()).await;
    let acknowledged = load(&server.address()).await;
    server.kill();
    let cut = Instant::now();
    server.restart();
    check(&server, &acknowledged, cut, fsync, said_s).await;
}

/// What was acknowledged is there, but for what was said could be lost.
async fn check(
    server: &Redis,
    acknowledged: &[(Vec<JobId>, Instant)],
    cut: Instant,
    fsync: &str,
    said_s: u64,
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
        "  appendfsync {fsync}: {count} of {jobs} jobs lost, the oldest {longest:?} before the end; {said_s} s were said"
    );
    assert!(said_s > 0 || lost.is_empty(), "NOTHING-LOST: {count} acknowledged jobs are gone");
    let said = Duration::from_secs(said_s);
    assert!(
        longest <= said,
        "NOTHING-LOST: a job acknowledged {longest:?} before the end is gone, {said:?} were said"
    );
}

/// How many seconds an outage can lose, as the doctor says.
async fn said(address: &str) -> u64 {
    let findings = doctor(address).await.expect("it answers");
    let durability = findings.iter().find(|finding| finding.check == "durability").expect("it is looked at");
    if durability.what.contains("loses nothing") {
        return 0;
    }
    let seconds =
        durability.what.split("the last ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    seconds.unwrap_or_else(|| panic!("it does not say how much: {durability:?}"))
}

/// Puts jobs in, and notes down when each was acknowledged.
async fn load(address: &str) -> Vec<(Vec<JobId>, Instant)> {
    let redrive = Redrive::open(address).await.expect("the store opens");
    let store = redrive.backend();
    let policy = catalog::put_inline(&**store, &work::policy()).await.expect("stored");
    let (mut acknowledged, end) = (Vec::new(), Instant::now() + LOAD);
    while Instant::now() < end {
        let jobs: Vec<_> = (0..10).map(|_| work::job(&policy, "ok")).collect();
        let ids = jobs.iter().map(|job| job.id).collect();
        let answers = store.enqueue(jobs).await.expect("enqueued");
        assert!(answers.iter().all(|answer| matches!(answer, Enqueued::Created(_))));
        acknowledged.push((ids, Instant::now()));
    }
    acknowledged
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(status.success(), "{command:?} failed, {status}");
}
