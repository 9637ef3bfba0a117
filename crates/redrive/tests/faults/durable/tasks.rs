//! The tasks of a node that is killed, and their handlers.

use std::time::Duration;

use redrive::{Backoff, Context, JobError, Policy, Task, presets};
use serde::{Deserialize, Serialize};

use super::journal::{JobEvent, Journal};

const MS: Duration = Duration::from_millis(1);
/// The number of signals that a flow takes.
pub(crate) const SIGNALS: u64 = 2;
/// The number of children of a parent.
pub(crate) const CHILDREN: u32 = 4;

/// Many attempts with short waits, so that a job survives every kill.
fn many_attempts() -> Policy {
    let backoff = Backoff::fixed(2 * MS).expect("legal");
    presets::once().with_max_attempts(1_000).expect("legal").with_backoff(backoff)
}

macro_rules! task {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* } -> $output:ty, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Serialize, Deserialize)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
        impl Task for $name {
            const KIND: &'static str = $kind;
            type Output = $output;
            fn policy() -> Policy { many_attempts() }
        }
    };
}

task!(
    /// Runs steps, sleeps, and waits for signals.
    Flow {} -> Vec<u64>, "flow"
);
task!(
    /// Runs a fan-out and adds up the results.
    Parent {} -> u32, "parent"
);
task!(
    /// A child of a parent.
    Child { n: u32 } -> u32, "child"
);
task!(
    /// Has a unique key.
    Only {} -> (), "only"
);
task!(
    /// In a queue with limits.
    Narrow {} -> (), "narrow"
);
task!(
    /// Runs in order with the others of its key.
    Ordered {} -> (), "ordered"
);
task!(
    /// Enqueued by a schedule.
    Tick {} -> (), "tick"
);

pub(crate) async fn flow(cx: Context, journal: Journal) -> Result<Vec<u64>, JobError> {
    let mut taken = vec![step(&cx, &journal, "first").await?];
    cx.sleep(15 * MS).await?;
    journal.add(JobEvent::SleepEnded(cx.job.id, cx.now().map_or(0, |now| now.as_ms())));
    taken.push(step(&cx, &journal, "second").await?);
    for _ in 0..SIGNALS {
        let value: u64 = cx.signal("go").await?;
        journal.add(JobEvent::SignalTaken(cx.job.id, value));
        taken.push(value);
    }
    let never = cx.signal::<u64>("never").timeout(10 * MS).await?;
    assert_eq!(never, None);
    taken.push(step(&cx, &journal, "last").await?);
    Ok(taken)
}

async fn step(cx: &Context, journal: &Journal, name: &str) -> Result<u64, JobError> {
    let (id, epoch) = (cx.job.id, cx.job.epoch);
    let value = cx.step(name, || async {
        journal.add(JobEvent::StepStarted(id, epoch, name.to_owned()));
        tokio::time::sleep(MS).await;
        Ok::<_, JobError>(fastrand::u64(..1_000_000))
    });
    let value = value.await?;
    journal.add(JobEvent::StepStored(id, epoch, name.to_owned()));
    Ok(value)
}

pub(crate) async fn parent(cx: Context, journal: Journal) -> Result<u32, JobError> {
    let results = cx.fan_out((0..CHILDREN).map(|n| Child { n })).await?;
    journal.add(JobEvent::FanOutReturned(cx.job.id, results.clone()));
    Ok(results.into_iter().sum())
}

pub(crate) async fn child(child: Child) -> Result<u32, JobError> {
    tokio::time::sleep(fastrand::u32(0..10) * MS).await;
    Ok(child.n * 10)
}

pub(crate) async fn busy(cx: Context, journal: Journal) -> Result<(), JobError> {
    journal.add(JobEvent::JobStarted(cx.job.id));
    tokio::time::sleep(fastrand::u32(0..20) * MS).await;
    Ok(())
}

pub(crate) async fn tick(cx: Context, journal: Journal) -> Result<(), JobError> {
    let occurrence = cx.occurrence().ok_or_else(|| JobError::reject("a tick without an occurrence"))?;
    journal.add(JobEvent::OccurrenceRan(occurrence.as_ms(), cx.job.id));
    Ok(())
}
