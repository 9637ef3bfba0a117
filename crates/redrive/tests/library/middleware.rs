//! Middleware runs around attempts, the first one outermost, and can replace the handler.

use std::sync::{Arc, Mutex};

use redrive::{Context, JobError, Middleware, Next, Outcome, Reason, State};

use crate::fixture::{Add, job, open, output, work};

type CallLog = Arc<Mutex<Vec<&'static str>>>;

struct RecordingMiddleware(&'static str, &'static str, CallLog);

#[async_trait::async_trait]
impl Middleware for RecordingMiddleware {
    async fn run(&self, cx: Context, next: Next) -> Outcome {
        self.2.lock().unwrap().push(self.0);
        let outcome = next.run(cx).await;
        self.2.lock().unwrap().push(self.1);
        outcome
    }
}

#[tokio::test]
async fn the_first_middleware_is_the_outermost_wherever_it_is_added() {
    let redrive = open().await;
    let id = redrive.enqueue(Add { a: 1, b: 2 }).await.unwrap().id();
    let calls = CallLog::default();
    let inner = calls.clone();
    let worker = redrive
        .worker()
        .middleware(RecordingMiddleware("outer in", "outer out", calls.clone()))
        .on(move |add: Add, _: Context| {
            inner.lock().unwrap().push("handler");
            async move { Ok(add.a + add.b) }
        })
        .middleware(RecordingMiddleware("inner in", "inner out", calls.clone()));
    work(&redrive, worker, &[id]).await;
    assert_eq!(*calls.lock().unwrap(), ["outer in", "inner in", "handler", "inner out", "outer out"]);
    assert_eq!(output(&redrive, id).await, "3");
}

#[tokio::test]
async fn middleware_can_replace_the_handler_and_change_an_outcome() {
    let redrive = open().await;
    let refused = redrive.enqueue(Add { a: 0, b: 0 }).await.unwrap().id();
    let changed = redrive.enqueue(Add { a: 1, b: 0 }).await.unwrap().id();
    let worker = redrive
        .worker()
        .middleware(|cx: Context, next: Next| async move {
            if cx.job.payload == br#"{"a":0,"b":0}"# {
                return Outcome::reject("nothing to add");
            }
            match next.run(cx).await {
                Outcome::Fail(_) => Outcome::Done(Some(b"99".to_vec())),
                other => other,
            }
        })
        .on(|add: Add, _: Context| async move {
            assert_ne!(add.a, 0, "the middleware returns instead of the handler");
            Err(JobError::fail("never mind"))
        });
    work(&redrive, worker, &[refused, changed]).await;
    let dead = job(&redrive, refused).await;
    assert_eq!((dead.state, dead.reason), (State::Dead, Some(Reason::NotRetryable)));
    assert_eq!(dead.last_error.as_deref(), Some("nothing to add"));
    assert_eq!(output(&redrive, changed).await, "99");
}
