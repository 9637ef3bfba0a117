//! The conformance suite: the behaviours that every store must have, each with a name.

mod attempts;
mod cancel;
mod catalog;
mod claim;
mod discard;
mod enqueue;
mod extend;
mod fixture;
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
use fixture::StoreFixture;

/// The environment variable that limits [`exercise`] to the behaviours whose `chapter::name` contains its value.
pub const ONLY: &str = "REDRIVE_EXERCISE";

/// How long one behaviour may take before it counts as failed.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Runs every behaviour, each on a new store, and panics with the list of those that failed.
///
/// `open` creates an empty store that uses the given clock. The time of the runtime must not be paused.
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
    let failed = failed_behaviours(only, open).await;
    let list: Vec<String> = failed.iter().map(FailedBehaviour::to_string).collect();
    assert!(failed.is_empty(), "{} behaviours failed:\n{}", failed.len(), list.join("\n"));
}

/// Runs the behaviours whose `chapter::name` contains `only`, and returns those that failed.
pub async fn failed_behaviours<S, F, Fut>(only: &str, open: F) -> Vec<FailedBehaviour>
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
    let mut failed = Vec::new();
    for behaviour in chosen {
        let run = async {
            let clock = ManualClock::new();
            let store = Arc::new(open(clock.clone()).await);
            (behaviour.run)(StoreFixture::new(store, clock)).await;
        };
        if let Err(message) = run_with_timeout(run).await {
            let behaviour = behaviour.full_name();
            failed.push(FailedBehaviour { behaviour, message });
        }
    }
    failed
}

/// The `chapter::name` of every behaviour, in the order in which they run.
pub fn behaviours() -> Vec<String> {
    all().map(Behaviour::full_name).collect()
}

/// A behaviour that failed on a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedBehaviour {
    /// Its `chapter::name`.
    pub behaviour: String,
    /// What went wrong.
    pub message: String,
}

impl fmt::Display for FailedBehaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}: {}", self.behaviour, self.message)
    }
}

/// One behaviour that a store must have.
struct Behaviour {
    chapter: &'static str,
    name: &'static str,
    run: fn(StoreFixture) -> Pin<Box<dyn Future<Output = ()> + Send>>,
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
            run: |fixture| Box::pin($behaviour(fixture)),
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

/// Turns a panic or a timeout into a message, so that one failed behaviour does not hide the others.
async fn run_with_timeout(run: impl Future<Output = ()>) -> Result<(), String> {
    match tokio::time::timeout(WAIT_MAX, catch_panic(run)).await {
        Ok(result) => result,
        Err(_) => Err(format!("did not end within {WAIT_MAX:?}")),
    }
}

async fn catch_panic(run: impl Future<Output = ()>) -> Result<(), String> {
    let mut run = pin!(run);
    poll_fn(|cx| {
        // The store is dropped after a panic, so that no code can see a broken invariant.
        match catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(cx))) {
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
