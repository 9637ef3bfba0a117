//! Hooks are called with the change that the store has written for each job.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::{Backoff, Context, Event, Jitter, Job, JobError, Observer, Policy, Timestamp};

use crate::fixture::{Add, open, work};

/// Counts claims like the metrics of a service would.
#[derive(Default)]
struct Claims(AtomicUsize);

impl Observer for Claims {
    fn claimed(&self, jobs: &[Arc<Job>], _now: Timestamp) {
        self.0.fetch_add(jobs.len(), Ordering::SeqCst);
    }
}

/// The wait between two attempts. It is long enough that the end of an attempt is reported before the next claim.
const WAIT: Duration = Duration::from_millis(500);

fn policy_with_wait() -> Policy {
    let backoff = Backoff::fixed(WAIT).unwrap();
    Policy { backoff, jitter: Jitter::None, ..Policy::default() }.with_max_attempts(2).unwrap()
}

/// Returns the events of one job whose attempts end with the results of `handler`.
async fn record_events(handler: fn(u32) -> Result<u32, JobError>) -> Vec<String> {
    let redrive = open().await;
    let id = redrive.enqueue(Add { a: 1, b: 2 }).policy(policy_with_wait()).await.unwrap().id();
    let (events, claims) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Claims::default()));
    let hook = events.clone();
    let seen = Arc::new(AtomicUsize::new(0));
    let worker = redrive
        .worker()
        .observe(claims.clone())
        .on_event(|_: &Event<'_>| panic!("a panic in a hook affects nothing else"))
        .on_event(move |event: &Event<'_>| {
            assert_eq!(event.job().id, id);
            let text = match event {
                Event::Claimed { job } => format!("claimed {}", job.attempt),
                Event::Succeeded { output, .. } => format!("succeeded {output:?}"),
                Event::Retrying { wait, error, .. } => format!("retrying {wait:?} {error:?}"),
                Event::Dead { reason, error, .. } => format!("dead {reason} {error:?}"),
                Event::Snoozed { wait, .. } => format!("snoozed {wait:?}"),
                Event::Waiting { .. }
                | Event::Released { .. }
                | Event::Cancelled { .. }
                | Event::LeaseLost { .. } => event.name().to_owned(),
            };
            hook.lock().unwrap().push(text);
        })
        .on(move |_: Add, _: Context| {
            let call = seen.fetch_add(1, Ordering::SeqCst);
            async move { handler(u32::try_from(call).unwrap()) }
        });
    work(&redrive, worker, &[id]).await;
    let events = events.lock().unwrap().clone();
    let claimed = events.iter().filter(|text| text.starts_with("claimed")).count();
    assert_eq!(claims.0.load(Ordering::SeqCst), claimed, "a hook does not replace an observer");
    events
}

#[tokio::test]
async fn a_hook_gets_every_event_of_a_job() {
    assert_eq!(record_events(|_| Ok(7)).await, ["claimed 1", "succeeded Some([55])"]);
    let fail = |_| Err(JobError::fail("no"));
    let dead =
        ["claimed 1", "retrying 500ms Some(\"no\")", "claimed 2", "dead attempts_exhausted Some(\"no\")"];
    assert_eq!(record_events(fail).await, dead);
    let snooze = |call| if call == 0 { Err(JobError::snooze(WAIT)) } else { Ok(0) };
    assert_eq!(
        record_events(snooze).await,
        ["claimed 1", "snoozed 500ms", "claimed 1", "succeeded Some([48])"]
    );
    assert_eq!(record_events(|_| Err(JobError::cancelled())).await, ["claimed 1", "cancelled"]);
}
