//! A job that ends early ends its children, and a fan-out fails as soon as too many children have failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::{Context, JobError, JobId, Policy, Redrive, State, Task, TaskWorker};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::fixture::{eventually, job, work};
use crate::steps::quick_policy;
use crate::stores::on_every_store;

const MS: Duration = Duration::from_millis(1);

on_every_store!(
    trees_that_are_cancelled_while_they_grow_leave_no_live_job,
    a_parent_that_dies_during_its_fan_out_ends_its_children,
    detached_children_outlive_their_parent,
    the_first_rejection_keeps_the_other_children_from_running,
    a_parent_resumes_before_its_other_children,
    children_with_keys_are_refused_before_anything_is_stored,
    a_cancel_reaches_a_running_handler_without_a_heartbeat,
);

#[derive(Serialize, Deserialize)]
struct Top;

impl Task for Top {
    const KIND: &'static str = "top";
    type Output = ();
    fn policy() -> Policy {
        quick_policy(1)
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Leaf {
    n: u32,
}

impl Task for Leaf {
    const KIND: &'static str = "leaf";
    type Output = u32;
    fn policy() -> Policy {
        quick_policy(1)
    }
}

fn leaves(count: u32) -> impl Iterator<Item = Leaf> {
    (0..count).map(|n| Leaf { n })
}

/// How many jobs have not ended.
async fn live(redrive: &Redrive) -> u64 {
    let stats = redrive.backend().stats().await.unwrap();
    [State::Pending, State::Retrying, State::Running, State::Waiting]
        .into_iter()
        .map(|state| stats.in_state(state))
        .sum()
}

async fn enqueue(redrive: &Redrive) -> JobId {
    redrive.enqueue(Top).await.unwrap().id()
}

/// A worker whose next heartbeat comes after the end of the test.
fn worker_without_heartbeat(redrive: &Redrive) -> TaskWorker {
    let (lease, heartbeat) = (Duration::from_secs(200), Some(Duration::from_secs(60)));
    let settings = redrive::Settings { lease, heartbeat, ..redrive::Settings::default() };
    redrive.worker().settings(settings)
}

async fn trees_that_are_cancelled_while_they_grow_leave_no_live_job(redrive: Redrive) {
    let tops: Vec<JobId> = {
        let mut tops = Vec::new();
        for _ in 0..8 {
            tops.push(enqueue(&redrive).await);
        }
        tops
    };
    let grown = Arc::new(AtomicU32::new(0));
    let counted = grown.clone();
    let worker = worker_without_heartbeat(&redrive)
        .concurrency(16)
        .on(move |_: Top, cx: Context| {
            let grown = counted.clone();
            async move {
                // The fan-outs are concurrent, so that the parent runs while its tree grows.
                for round in 0..1_000 {
                    let small = cx.fan_out(leaves(5)).each(|leaf| leaf.delay(3_600_000 * MS));
                    let mut wait = Box::pin(std::future::IntoFuture::into_future(small));
                    // The children exist once the fan-out waits. The handler continues without their results.
                    let slow = cx.step(&format!("round {round}"), || async {
                        tokio::time::sleep(5 * MS).await;
                        Ok::<_, JobError>(())
                    });
                    tokio::select! {
                        done = slow => done?,
                        ended = &mut wait => drop(ended?),
                    }
                    grown.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            }
        })
        .on(|_: Leaf, _: Context| async { Ok(0) });
    let cancel = async {
        eventually("the trees grow", || async { grown.load(Ordering::SeqCst) >= 40 }).await;
        for id in &tops {
            redrive.cancel(*id).await.unwrap();
        }
    };
    tokio::join!(work(&redrive, worker, &tops), cancel);
    for id in &tops {
        assert_eq!(job(&redrive, *id).await.state, State::Cancelled);
    }
    assert_eq!(live(&redrive).await, 0);
}

async fn a_parent_that_dies_during_its_fan_out_ends_its_children(redrive: Redrive) {
    let id = enqueue(&redrive).await;
    let worker = worker_without_heartbeat(&redrive)
        .on(|_: Top, cx: Context| async move {
            let children = cx.fan_out(leaves(50)).each(|leaf| leaf.delay(3_600_000 * MS));
            let refused = cx.step("refused", || async {
                tokio::time::sleep(20 * MS).await;
                Err::<(), _>(JobError::reject("refused"))
            });
            tokio::try_join!(std::future::IntoFuture::into_future(children), refused)?;
            Ok(())
        })
        .on(|_: Leaf, _: Context| async { Ok(0) });
    work(&redrive, worker, &[id]).await;
    let top = job(&redrive, id).await;
    assert_eq!((top.state, top.last_error.as_deref()), (State::Dead, Some("refused")));
    assert_eq!(live(&redrive).await, 0);
}

async fn detached_children_outlive_their_parent(redrive: Redrive) {
    let id = enqueue(&redrive).await;
    let store = redrive.clone();
    let worker = worker_without_heartbeat(&redrive).on(move |_: Top, cx: Context| {
        let store = store.clone();
        async move {
            let children = cx.fan_out(leaves(3)).detach().each(|leaf| leaf.delay(3_600_000 * MS));
            let refused = cx.step("refused", || async {
                eventually("the children are stored", || async { live(&store).await == 4 }).await;
                Err::<(), _>(JobError::reject("refused"))
            });
            tokio::try_join!(std::future::IntoFuture::into_future(children), refused)?;
            Ok(())
        }
    });
    work(&redrive, worker, &[id]).await;
    assert_eq!(live(&redrive).await, 3);
}

async fn the_first_rejection_keeps_the_other_children_from_running(redrive: Redrive) {
    let id = enqueue(&redrive).await;
    let ran = Arc::new(AtomicU32::new(0));
    let counted = ran.clone();
    let worker = worker_without_heartbeat(&redrive)
        .concurrency(8)
        .on(|_: Top, cx: Context| async move { cx.fan_out(leaves(1_500)).await.map(drop) })
        .on(move |leaf: Leaf, _: Context| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                if leaf.n == 3 {
                    return Err(JobError::reject("bad leaf"));
                }
                tokio::time::sleep(200 * MS).await;
                Ok(leaf.n)
            }
        });
    work(&redrive, worker, &[id]).await;
    let top = job(&redrive, id).await;
    let error = top.last_error.unwrap_or_default();
    assert!(top.state == State::Dead && error.contains("bad leaf"), "{error}");
    assert_eq!(live(&redrive).await, 0);
    let ran = ran.load(Ordering::SeqCst);
    assert!(ran < 150, "{ran} of 1,500 children ran");
}

/// Detached children continue after one was rejected. There is one slot, which the parent gets before them.
async fn a_parent_resumes_before_its_other_children(redrive: Redrive) {
    let id = enqueue(&redrive).await;
    let ran = Arc::new(AtomicU32::new(0));
    let counted = ran.clone();
    let worker = worker_without_heartbeat(&redrive)
        .concurrency(1)
        .on(|_: Top, cx: Context| async move { cx.fan_out(leaves(300)).detach().await.map(drop) })
        .on(move |leaf: Leaf, _: Context| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { if leaf.n == 0 { Err(JobError::reject("bad leaf")) } else { Ok(leaf.n) } }
        });
    work(&redrive, worker, &[id]).await;
    let ran = ran.load(Ordering::SeqCst);
    assert_eq!(job(&redrive, id).await.state, State::Dead);
    assert!(ran < 200, "{ran} of 300 children ran before their parent");
}

async fn children_with_keys_are_refused_before_anything_is_stored(redrive: Redrive) {
    for way in 0..3 {
        let id = enqueue(&redrive).await;
        let worker = worker_without_heartbeat(&redrive).on(move |_: Top, cx: Context| async move {
            let children = cx.fan_out(leaves(3)).each(|leaf| match way {
                0 => leaf.unique("x"),
                1 => leaf.key("x"),
                _ => leaf.replace("x"),
            });
            children.await.map(drop)
        });
        work(&redrive, worker, &[id]).await;
        let top = job(&redrive, id).await;
        let error = top.last_error.unwrap_or_default();
        assert!(top.state == State::Dead && error.contains("cannot have"), "{error}");
        assert_eq!(redrive.steps(id, 0, 9).await.unwrap(), []);
    }
    assert_eq!(live(&redrive).await, 0);
}

async fn a_cancel_reaches_a_running_handler_without_a_heartbeat(redrive: Redrive) {
    let id = enqueue(&redrive).await;
    let started = Arc::new(Notify::new());
    let handler_started = started.clone();
    let worker = worker_without_heartbeat(&redrive).on(move |_: Top, cx: Context| {
        handler_started.notify_one();
        async move {
            cx.cancelled().await;
            std::future::pending().await
        }
    });
    let cancel = async {
        started.notified().await;
        redrive.cancel(id).await.unwrap();
    };
    tokio::join!(work(&redrive, worker, std::slice::from_ref(&id)), cancel);
    assert_eq!(job(&redrive, id).await.state, State::Cancelled);
}
