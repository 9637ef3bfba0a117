//! Large payloads go to an object store, and a lost payload is reported.

use std::fs;
use std::path::{Path, PathBuf};

use redrive::{
    Conflict, Context, EnqueuedJob, Error, INLINE_BYTES_MAX, Next, Policy, Reason, Redrive, State, Task,
    TaskWorker,
};
use serde::{Deserialize, Serialize};

use crate::fixture::{eventually, job, open, output, work};

/// A payload of a given length.
#[derive(Serialize, Deserialize)]
struct Import(String);

impl Task for Import {
    const KIND: &'static str = "import";
    type Output = usize;

    fn policy() -> Policy {
        Policy::default().with_max_attempts(1).unwrap()
    }
}

fn import(bytes: usize) -> Import {
    // JSON adds two quotes.
    Import("x".repeat(bytes - 2))
}

async fn with_folder() -> (Redrive, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("file:{}", folder.path().display());
    (open().await.with_bodies(&address).unwrap(), folder)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let tenants = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    tenants
        .filter(|path| path.is_dir())
        .flat_map(|tenant| fs::read_dir(tenant).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect()
}

fn worker(redrive: &Redrive) -> TaskWorker {
    redrive.worker().on(|import: Import, _: Context| async move { Ok(import.0.len() + 2) })
}

#[tokio::test]
async fn a_handler_gets_the_whole_large_payload() {
    let (redrive, folder) = with_folder().await;
    let sizes = [INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 3_000_000];
    let answers = redrive.enqueue_all(sizes.map(import)).await.unwrap();
    let ids: Vec<_> = answers.into_iter().map(EnqueuedJob::id).collect();
    assert_eq!(files(folder.path()).len(), 2, "a payload that fits stays on the row");
    let seen = |cx: Context, next: Next| async move {
        assert!(cx.job.payload.len() >= INLINE_BYTES_MAX, "the middleware sees the whole payload");
        next.run(cx).await
    };
    work(&redrive, worker(&redrive).middleware(seen), &ids).await;
    for (id, size) in ids.into_iter().zip(sizes) {
        assert_eq!(output(&redrive, id).await, size.to_string());
        assert_eq!(job(&redrive, id).await.payload.len() > 200, size == INLINE_BYTES_MAX);
    }
}

#[tokio::test]
async fn a_repeat_with_a_key_is_recognised_by_its_whole_payload() {
    let (redrive, folder) = with_folder().await;
    let first = redrive.enqueue(import(100_000)).key("k").await.unwrap();
    let again = redrive.enqueue(import(100_000)).key("k").await.unwrap();
    let existing = EnqueuedJob::Existing(first.id());
    let conflict = Conflict { key: "k".to_owned(), existing: first.id() };
    assert_eq!(again, existing);
    match redrive.enqueue(import(100_001)).key("k").await {
        Err(Error::Conflict(found)) => assert_eq!(found, conflict),
        other => panic!("{other:?}"),
    }
    let keyed = |bytes, key: &str| redrive.enqueue(import(bytes)).key(key);
    let batch = [keyed(100_000, "k"), keyed(100_000, "new"), keyed(100_001, "k"), keyed(100_000, "k")];
    let Err(Error::BatchConflict(batch)) = redrive.enqueue_all(batch).await else { panic!("no conflict") };
    let [a, b, c, d] = &batch.results[..] else { panic!("{batch:?}") };
    assert_eq!((a, c, d), (&Ok(existing), &Err(conflict), &Ok(existing)));
    assert!(matches!(b, Ok(EnqueuedJob::Created(_))));
    assert_eq!(files(folder.path()).len(), 2, "a repeat stores no payload");
}

#[tokio::test]
async fn a_job_with_a_lost_or_damaged_payload_is_dead_with_that_reason() {
    let (redrive, folder) = with_folder().await;
    let lost = redrive.enqueue(import(100_000)).await.unwrap().id();
    fs::remove_file(&files(folder.path())[0]).unwrap();
    let damaged = redrive.enqueue(import(100_000)).await.unwrap().id();
    fs::write(&files(folder.path())[0], "y".repeat(100_000)).unwrap();
    work(&redrive, worker(&redrive), &[lost, damaged]).await;
    for id in [lost, damaged] {
        let job = job(&redrive, id).await;
        assert_eq!((job.state, job.reason), (State::Dead, Some(Reason::BodyLost)), "{:?}", job.last_error);
    }
}

#[tokio::test]
async fn a_job_waits_for_a_worker_that_can_reach_its_payload() {
    let (redrive, folder) = with_folder().await;
    let without = Redrive::on(redrive.backend().clone());
    let elsewhere = tempfile::tempdir().unwrap();
    let elsewhere = format!("file:{}", elsewhere.path().display());
    let elsewhere = Redrive::on(redrive.backend().clone()).with_bodies(&elsewhere).unwrap();
    let here = folder.path().canonicalize().unwrap().display().to_string();
    for (unable, why) in [(without, "Redrive::with_bodies"), (elsewhere, here.as_str())] {
        let id = redrive.enqueue(import(100_000)).await.unwrap().id();
        let deferred =
            eventually("the job is deferred", || async { job(&redrive, id).await.last_error.is_some() });
        worker(&unable).run_until(deferred).await.unwrap();
        let waiting = job(&redrive, id).await;
        assert_eq!((waiting.state, waiting.attempt), (State::Waiting, 0), "no attempt is charged");
        assert!(waiting.last_error.as_ref().unwrap().contains(why), "{:?}", waiting.last_error);
        redrive.backend().run_now(vec![id]).await.unwrap();
        work(&redrive, worker(&redrive), &[id]).await;
        assert_eq!(output(&redrive, id).await, "100000");
    }
}

#[tokio::test]
async fn an_oversized_payload_and_an_unknown_object_store_are_rejected() {
    let (redrive, folder) = with_folder().await;
    let huge = redrive.enqueue(import(64 * 1024 * 1024 + 1)).await.unwrap_err();
    assert!(matches!(huge, Error::Body(_)), "{huge:?}");
    assert!(files(folder.path()).is_empty());
    let plain = Redrive::on(redrive.backend().clone());
    let inline = plain.enqueue(import(100_000)).await.unwrap_err();
    assert!(inline.to_string().starts_with("payload: is 100000 bytes long"), "{inline}");
    let unknown = plain.with_bodies("ftp://x").unwrap_err();
    assert!(unknown.to_string().contains("file:FOLDER"), "{unknown}");
}
