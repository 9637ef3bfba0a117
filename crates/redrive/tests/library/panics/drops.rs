//! Panics in destructors.

use redrive::{Context, JobError, Policy, State, Task};
use serde::{Deserialize, Serialize};

use super::{failures, panicked, quick_policy, work_beside};
use crate::fixture::{Add, job, open, work};

/// Panics when it is dropped, if it is armed.
struct Bomb {
    armed: bool,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.armed, "dropped");
    }
}

#[derive(Serialize, Deserialize)]
struct Defuse {}

impl Task for Defuse {
    const KIND: &'static str = "defuse";
    type Output = u32;

    fn policy() -> Policy {
        quick_policy()
    }
}

#[tokio::test]
async fn values_and_payloads_that_panic_when_dropped_fail_their_attempt() {
    let redrive = open().await;
    let id = redrive.enqueue(Defuse {}).await.unwrap().id();
    let worker = redrive.worker().on(|_: Defuse, cx: Context| async move {
        match cx.job.attempt {
            1 => {
                let _value = Bomb { armed: true };
                Err(JobError::fail("its value panics first"))
            }
            2 => std::panic::panic_any(Bomb { armed: true }),
            attempt => Ok(attempt),
        }
    });
    work_beside(&redrive, worker, &[id]).await;
    assert_eq!(job(&redrive, id).await.state, State::Succeeded);
    let log = [panicked("handler panicked: dropped"), panicked("handler panicked")];
    assert_eq!(failures(&redrive, id).await, log);
}

#[tokio::test]
async fn a_worker_whose_closures_and_state_panic_when_dropped_shuts_down_cleanly() {
    // One at a time: a second panic while the first one unwinds ends any Rust program.
    for armed in [true, false] {
        let redrive = open().await;
        let id = redrive.enqueue(Add { a: 1, b: 2 }).await.unwrap().id();
        let bomb = Bomb { armed };
        let worker = redrive.worker().state(Bomb { armed: !armed }).on(move |add: Add, _: Context| {
            let _captured = &bomb;
            async move { Ok(add.a) }
        });
        assert_eq!(work(&redrive, worker, &[id]).await.succeeded, 1);
    }
}
