//! Measures how soon a fan-out ends after its first failure, and how many of its children have run by then.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive::{Context, Event, JobError, Redrive, Settings, Task};
use redrive_core::store::Backend;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Children of the fan-out.
pub const CHILDREN: u32 = 2_000;
/// Attempts at once.
pub const CONCURRENCY: usize = 64;
/// The number of the child that is rejected at once.
const REJECTED_CHILD: u32 = 3;
/// How long each of the other children takes, like a call to a service.
pub const CHILD_DURATION: Duration = Duration::from_millis(100);

#[derive(Serialize, Deserialize)]
struct Parent {}

impl Task for Parent {
    const KIND: &'static str = "parent";
    type Output = ();
}

#[derive(Serialize, Deserialize)]
struct Child {
    n: u32,
}

impl Task for Child {
    const KIND: &'static str = "child";
    type Output = ();
}

/// The result of one fan-out.
#[derive(Debug, Clone, Copy)]
pub struct FanOutResult {
    /// From the rejection of the child to the end of the parent in the store.
    pub took: Duration,
    /// Children that were started.
    pub ran: u32,
}

/// Runs one fan-out with a child that is rejected at once.
pub async fn measure(store: Arc<dyn Backend>) -> anyhow::Result<FanOutResult> {
    let redrive = Redrive::on(store);
    let (ran, rejected_at, ended) =
        (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(None)), Arc::new(Notify::new()));
    let ended_at = Arc::new(Mutex::new(None));
    redrive.enqueue(Parent {}).await?;
    let (handler_ran, handler_rejected_at) = (ran.clone(), rejected_at.clone());
    let (event_ended_at, event_ended) = (ended_at.clone(), ended.clone());
    let worker =
        redrive
            .worker()
            .settings(Settings::default().with_concurrency(CONCURRENCY))
            .on(|_: Parent, cx: Context| async move {
                cx.fan_out((0..CHILDREN).map(|n| Child { n })).await.map(drop)
            })
            .on(move |child: Child, _: Context| {
                handler_ran.fetch_add(1, Ordering::SeqCst);
                if child.n == REJECTED_CHILD {
                    set(&handler_rejected_at, Instant::now());
                }
                async move {
                    if child.n == REJECTED_CHILD {
                        return Err(JobError::reject("rejected"));
                    }
                    tokio::time::sleep(CHILD_DURATION).await;
                    Ok(())
                }
            })
            .on_event(move |event| {
                if matches!(event, Event::Dead { job, .. } if job.kind.as_str() == Parent::KIND) {
                    set(&event_ended_at, Instant::now());
                    event_ended.notify_one();
                }
            });
    tokio::time::timeout(Duration::from_secs(60), worker.run_until(ended.notified())).await??;
    let took = get(&ended_at)?.saturating_duration_since(get(&rejected_at)?);
    Ok(FanOutResult { took, ran: ran.load(Ordering::SeqCst) })
}

fn set(slot: &Mutex<Option<Instant>>, at: Instant) {
    if let Ok(mut slot) = slot.lock() {
        *slot = Some(at);
    }
}

fn get(slot: &Mutex<Option<Instant>>) -> anyhow::Result<Instant> {
    let at = slot.lock().ok().and_then(|slot| *slot);
    at.ok_or_else(|| anyhow::anyhow!("the fan-out did not fail"))
}
