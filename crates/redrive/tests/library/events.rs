//! Hooks hear of each job what the store has written, beside other observers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::{Backoff, Context, Event, Jitter, Job, JobError, Observer, Policy, Timestamp};

use crate::stage::{Add, open, work};

/// Counts claims like the metrics of a service would.
#[derive(Default)]
struct Claims(AtomicUsize);

impl Observer for Claims {
    fn claimed(&self, jobs: &[Arc<Job>], _now: Timestamp) {
        self.0.fetch_add(jobs.len(), Ordering::SeqCst);
    }
}

/// Hooks hear of an end once it is written: by then another claim may have been heard of, unless that comes later than this.
const WAIT: Duration = Duration::from_millis(500);

fn spaced() -> Policy {
    let spaced = Backoff::fixed(WAIT).unwrap();
    Policy { backoff: spaced, jitter: Jitter::None, ..Policy::default() }.with_max_attempts(2).unwrap()
}

/// What is heard of one job whose attempts end as `handler` says.
async fn heard(handler: fn(u32) -> Result<u32, JobError>) -> Vec<String> {
    let redrive = open().await;
    let id = redrive.enqueue(Add { a: 1, b: 2 }).policy(spaced()).await.unwrap().id();
    let (heard, claims) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Claims::default()));
    let hook = heard.clone();
    let seen = Arc::new(AtomicUsize::new(0));
    let worker = redrive
        .worker()
        .observe(claims.clone())
        .on_event(|_: &Event<'_>| panic!("a hook that panics harms nobody"))
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
    let heard = heard.lock().unwrap().clone();
    let claimed = heard.iter().filter(|text| text.starts_with("claimed")).count();
    assert_eq!(claims.0.load(Ordering::SeqCst), claimed, "the observer was not displaced");
    heard
}

#[tokio::test]
async fn a_job_is_heard_of_from_its_claim_to_its_end() {
    assert_eq!(heard(|_| Ok(7)).await, ["claimed 1", "succeeded Some([55])"]);
    let fail = |_| Err(JobError::fail("no"));
    let dead =
        ["claimed 1", "retrying 500ms Some(\"no\")", "claimed 2", "dead ATTEMPTS_EXHAUSTED Some(\"no\")"];
    assert_eq!(heard(fail).await, dead);
    let snooze = |call| if call == 0 { Err(JobError::snooze(WAIT)) } else { Ok(0) };
    assert_eq!(heard(snooze).await, ["claimed 1", "snoozed 500ms", "claimed 1", "succeeded Some([48])"]);
    assert_eq!(heard(|_| Err(JobError::cancelled())).await, ["claimed 1", "cancelled"]);
}
