//! Lists dead jobs in pages, redrives and discards them by a filter, and runs delayed jobs now.

use std::time::Duration;

use redrive::{Context, Filter, JobError, JobId, PageRequest, Queue, Redrive, RunNowResult, State};

use crate::fixture::{Add, job, open, output, work};

/// A store with dead jobs: `count` in "default" and one in "other".
async fn dead_letters(count: u32) -> (Redrive, Vec<JobId>, JobId) {
    let redrive = open().await;
    let tasks = (0..count).map(|a| Add { a, b: 0 });
    let ids: Vec<JobId> =
        redrive.enqueue_all(tasks).await.unwrap().into_iter().map(redrive::EnqueuedJob::id).collect();
    let other = redrive.enqueue(Add { a: 0, b: 0 }).queue("other").await.unwrap().id();
    let worker = redrive.worker().on(|_: Add, _: Context| async { Err(JobError::reject("no")) });
    let all: Vec<JobId> = ids.iter().copied().chain([other]).collect();
    work(&redrive, worker.concurrency(1000), &all).await;
    (redrive, ids, other)
}

#[tokio::test]
async fn dead_jobs_are_listed_by_queue_and_in_pages() {
    let (redrive, ids, other) = dead_letters(5).await;
    let queue = Queue::default();
    let first = redrive.dead_letters(Some(&queue), PageRequest::first(3)).await.unwrap();
    let rest = redrive.dead_letters(Some(&queue), PageRequest { after: first.next, limit: 3 }).await.unwrap();
    assert_eq!((first.items.len(), rest.items.len(), rest.next), (3, 2, None));
    let listed = first.items.iter().chain(&rest.items).map(|job| job.id);
    assert!(listed.eq(ids.iter().rev().copied()), "newest first");
    let all = redrive.dead_letters(None, PageRequest::first(100)).await.unwrap();
    assert_eq!(all.items.len(), 6);
    assert_eq!(all.items[0].id, other);
}

#[tokio::test]
async fn matching_jobs_are_redriven_in_several_batches() {
    let (redrive, ids, other) = dead_letters(2100).await;
    let alive = redrive.enqueue(Add { a: 9, b: 9 }).await.unwrap().id();
    let mine = || Filter { queue: Some(Queue::default()), ..Filter::default() };
    assert_eq!(redrive.redrive_all(mine()).await.unwrap(), ids.len());
    assert_eq!(redrive.redrive_all(mine()).await.unwrap(), 0);
    for id in [ids[0], ids[1050], ids[2099]] {
        let job = job(&redrive, id).await;
        assert_eq!((job.state, job.run, job.attempt), (State::Pending, 2, 0));
    }
    assert_eq!(job(&redrive, other).await.state, State::Dead);
    assert_eq!(job(&redrive, alive).await.run, 1);
}

#[tokio::test]
async fn matching_jobs_are_discarded() {
    let (redrive, ids, other) = dead_letters(3).await;
    let others = Filter { queue: Some("other".parse().unwrap()), ..Filter::default() };
    assert_eq!(redrive.discard_all(others).await.unwrap(), 1);
    assert!(redrive.get(other).await.unwrap().is_none());
    assert_eq!(job(&redrive, ids[0]).await.state, State::Dead);
}

#[tokio::test]
async fn a_delayed_job_runs_now_and_no_other_job_does() {
    let (redrive, ids, _) = dead_letters(1).await;
    let hour = Duration::from_secs(60 * 60);
    let delayed = redrive.enqueue(Add { a: 1, b: 2 }).delay(hour).await.unwrap().id();
    assert_eq!(redrive.run_now(delayed).await.unwrap(), RunNowResult::Done);
    let worker = redrive.worker().on(|add: Add, _: Context| async move { Ok(add.a + add.b) });
    work(&redrive, worker, &[delayed]).await;
    assert_eq!(output(&redrive, delayed).await, "3");
    assert_eq!(redrive.run_now(delayed).await.unwrap(), RunNowResult::NotWaiting(State::Succeeded));
    assert_eq!(redrive.run_now(ids[0]).await.unwrap(), RunNowResult::NotWaiting(State::Dead));
    assert_eq!(redrive.run_now(JobId(uuid::Uuid::nil())).await.unwrap(), RunNowResult::NotFound);
}
