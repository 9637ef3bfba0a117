//! The conformance suite: what every store must do, one small named behaviour at a time.

mod attempts;
mod cancel;
mod catalog;
mod claim;
mod discard;
mod enqueue;
mod extend;
mod follow_ups;
mod get;
mod limits;
mod list;
mod pause;
mod prune;
mod reclaim;
mod records;
mod redrive;
mod resume;
mod run_now;
mod settle;
mod signals;
mod stage;
mod stats;
mod steps;
mod transfer;
mod transfer_records;
mod unique;
mod verdicts;
mod wait;

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use redrive_core::store::Backend;

use crate::clock::ManualClock;
use stage::Stage;

/// Narrows [`exercise`] to the behaviours whose `chapter::name` contains its value.
pub const ONLY: &str = "REDRIVE_EXERCISE";

/// How long one behaviour may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs every behaviour on a fresh store each and panics with the list of those that failed.
///
/// `open` makes an empty store that lives by the clock it is given. Run it on a runtime whose time is not paused.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// redrive_testkit::exercise(|clock| async { redrive_testkit::ModelStore::new(clock) }).await;
/// # }
/// ```
pub async fn exercise<S, F, Fut>(open: F)
where
    F: Fn(ManualClock) -> Fut,
    Fut: Future<Output = S>,
    S: Backend + 'static,
{
    let only = std::env::var(ONLY).unwrap_or_default();
    exercise_only(&only, open).await;
}

/// Runs the behaviours whose `chapter::name` contains `only`, and panics with the list of those that failed.
pub async fn exercise_only<S, F, Fut>(only: &str, open: F)
where
    F: Fn(ManualClock) -> Fut,
    Fut: Future<Output = S>,
    S: Backend + 'static,
{
    let broken = broken(only, open).await;
    let list: Vec<String> = broken.iter().map(Broken::to_string).collect();
    assert!(broken.is_empty(), "{} behaviours failed:\n{}", broken.len(), list.join("\n"));
}

/// Runs the behaviours whose `chapter::name` contains `only`, and returns those that failed.
pub async fn broken<S, F, Fut>(only: &str, open: F) -> Vec<Broken>
where
    F: Fn(ManualClock) -> Fut,
    Fut: Future<Output = S>,
    S: Backend + 'static,
{
    let chosen: Vec<&Behaviour> = all().filter(|b| b.full_name().contains(only)).collect();
    assert!(
        !chosen.is_empty(),
        "no behaviour contains {only:?}; see redrive_testkit::exercise::behaviours()"
    );
    let mut broken = Vec::new();
    for behaviour in chosen {
        let attempt = async {
            let clock = ManualClock::new();
            let store = Arc::new(open(clock.clone()).await);
            (behaviour.run)(Stage::new(store, clock)).await;
        };
        if let Err(message) = watched(attempt).await {
            let behaviour = behaviour.full_name();
            broken.push(Broken { behaviour, message });
        }
    }
    broken
}

/// The `chapter::name` of every behaviour, in the order in which they run.
pub fn behaviours() -> Vec<String> {
    all().map(Behaviour::full_name).collect()
}

/// A behaviour that a store does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Its `chapter::name`.
    pub behaviour: String,
    /// What went wrong.
    pub message: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}: {}", self.behaviour, self.message)
    }
}

/// One thing that a store must do.
struct Behaviour {
    chapter: &'static str,
    name: &'static str,
    run: fn(Stage) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Behaviour {
    fn full_name(&self) -> String {
        format!("{}::{}", self.chapter, self.name)
    }
}

/// Lists the behaviours of a chapter.
macro_rules! chapter {
    ($chapter:literal: $($behaviour:ident),+ $(,)?) => {
        pub(super) const BEHAVIOURS: &[crate::exercise::Behaviour] = &[$(crate::exercise::Behaviour {
            chapter: $chapter,
            name: stringify!($behaviour),
            run: |stage| Box::pin($behaviour(stage)),
        }),+];
    };
}
use chapter;

fn all() -> impl Iterator<Item = &'static Behaviour> {
    [
        enqueue::BEHAVIOURS,
        unique::BEHAVIOURS,
        claim::BEHAVIOURS,
        pause::BEHAVIOURS,
        limits::BEHAVIOURS,
        settle::BEHAVIOURS,
        verdicts::BEHAVIOURS,
        extend::BEHAVIOURS,
        reclaim::BEHAVIOURS,
        cancel::BEHAVIOURS,
        redrive::BEHAVIOURS,
        run_now::BEHAVIOURS,
        follow_ups::BEHAVIOURS,
        discard::BEHAVIOURS,
        steps::BEHAVIOURS,
        signals::BEHAVIOURS,
        resume::BEHAVIOURS,
        get::BEHAVIOURS,
        list::BEHAVIOURS,
        attempts::BEHAVIOURS,
        prune::BEHAVIOURS,
        wait::BEHAVIOURS,
        stats::BEHAVIOURS,
        records::BEHAVIOURS,
        catalog::BEHAVIOURS,
        transfer::BEHAVIOURS,
        transfer_records::BEHAVIOURS,
    ]
    .into_iter()
    .flatten()
}

/// Turns a panic or a hang into a message, so that one broken behaviour does not hide the others.
async fn watched(attempt: impl Future<Output = ()>) -> Result<(), String> {
    match tokio::time::timeout(PATIENCE, caught(attempt)).await {
        Ok(result) => result,
        Err(_) => Err(format!("still not done after {PATIENCE:?}")),
    }
}

async fn caught(attempt: impl Future<Output = ()>) -> Result<(), String> {
    let mut attempt = pin!(attempt);
    poll_fn(|cx| {
        // A store is dropped after a panic and never looked at again, so nothing broken is seen.
        match catch_unwind(AssertUnwindSafe(|| attempt.as_mut().poll(cx))) {
            Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Err(message(panic.as_ref()))),
        }
    })
    .await
}

fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
