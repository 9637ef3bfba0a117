//! Makes random calls on a store and on the reference model. Their results and their content must agree.

mod call;
mod content;
mod strategy;

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use proptest_state_machine::ReferenceStateMachine;
use redrive_core::store::Backend;

use crate::clock::ManualClock;
use crate::epoch_translator::EpochTranslator;
use call::{Call, ModelRun};
use strategy::Machine;

/// The number of calls in the longest sequence.
const CALLS_MAX: usize = 80;

/// Makes `cases` random sequences of calls on stores from `open` and on the reference model. Panics with the shortest
/// sequence after which they disagree.
///
/// `PROPTEST_CASES` sets another number of cases, `PROPTEST_RNG_SEED` repeats a run. Wake-ups are not compared, because
/// each store numbers its own. Epochs are compared by their counts of leases.
///
/// ```
/// redrive_testkit::check_against_model(4, |clock| async { redrive_testkit::ModelStore::new(clock) });
/// ```
pub fn check_against_model<S, F, Fut>(cases: u32, open: F)
where
    F: Fn(ManualClock) -> Fut,
    Fut: Future<Output = S>,
    S: Backend + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut runner = TestRunner::new(config(cases));
    let outcome = runner.run(&Machine::sequential_strategy(1..CALLS_MAX), |(start, calls, seen)| {
        runtime.block_on(async {
            let clock = ManualClock::new();
            let store = EpochTranslator::new(Arc::new(open(clock.clone()).await));
            make_calls(start, &calls, seen.as_deref(), &store, &clock).await.map_err(TestCaseError::fail)
        })
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, (_, calls, _))) => {
            panic!("the store and the model disagree: {reason}\nafter these calls:\n{}", list_calls(&calls))
        }
        Err(TestError::Abort(reason)) => panic!("could not generate calls: {reason}"),
    }
}

fn config(cases: u32) -> Config {
    let requested = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    Config {
        cases: requested.unwrap_or(cases),
        failure_persistence: None,
        max_shrink_iters: 4_000,
        // In milliseconds. On a server, thousands of replays would take an hour.
        max_shrink_time: 60_000,
        ..Config::default()
    }
}

/// Makes the calls on the model and on the store, and compares the two after each call.
async fn make_calls(
    mut model_run: ModelRun,
    calls: &[Call],
    seen: Option<&AtomicUsize>,
    store: &dyn Backend,
    clock: &ManualClock,
) -> Result<(), String> {
    for (step, call) in calls.iter().enumerate() {
        // The counter lets proptest first drop the calls after the one that failed.
        if let Some(seen) = seen {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        for call in call.split_by_partition(&model_run.model) {
            let expected = model_run.make(&call);
            clock.set(model_run.now);
            let actual = call.on_store(store).await;
            check_equal(&format!("answer to call {step}, {call:?}"), &expected, &actual)?;
        }
        content::compare(&model_run.model, store, clock.now(), step).await?;
    }
    content::compare_all(&model_run.model, store, clock.now()).await
}

/// Returns an error with both values unless they are equal.
fn check_equal<T: PartialEq + Debug>(what: &str, expected: &T, actual: &T) -> Result<(), String> {
    if expected == actual {
        Ok(())
    } else {
        Err(format!("{what}\n  model: {expected:?}\n  store: {actual:?}"))
    }
}

fn list_calls(calls: &[Call]) -> String {
    calls.iter().enumerate().map(|(step, call)| format!("  {step}: {call:?}\n")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::strategy::{Strategy, ValueTree};

    use super::*;

    /// Results that random calls must reach, given by the start and a part of their text.
    const WANTED: [(&str, &str); 54] = [
        ("Enqueued", "Created"),
        ("Enqueued", "Existing"),
        ("Enqueued", "Conflict"),
        ("Claimed", "attempt: 2"),
        ("Claimed", "run: 2"),
        ("Claimed", "cancel_requested: true"),
        ("Claimed", "next_due: Some"),
        ("Settled", "Applied(Succeeded)"),
        ("Settled", "Applied(Retrying)"),
        ("Settled", "Applied(Pending)"),
        ("Settled", "Applied(Waiting)"),
        ("Settled", "Applied(Dead)"),
        ("Settled", "Applied(Cancelled)"),
        ("Settled", "LeaseLost"),
        ("Extended", "Renewed"),
        ("Extended", "CancelRequested"),
        ("Extended", "LeaseLost"),
        ("Cancelled", "Done"),
        ("Cancelled", "Requested"),
        ("Cancelled", "Ended"),
        ("Redriven", "Done"),
        ("Redriven", "NotDead"),
        ("MadeDue", "Done"),
        ("MadeDue", "NotWaiting"),
        ("Discarded", "Done"),
        ("Listed", "last_status: Some"),
        ("Claimed", "lease: Some"),
        ("Listed", "next: Some"),
        ("Attempted", "next: Some"),
        ("Enqueued", "Replaced"),
        ("Claimed", "partition: Some"),
        ("Listed", "awaits: Some(FreeSlot)"),
        ("Listed", "awaits: Some(Children"),
        ("Recalled", "Step {"),
        ("Remembered", "AlreadyStored"),
        ("Remembered", "kind: Signal"),
        ("Remembered", "CancelRequested"),
        ("Listed", "awaits: Some(Any"),
        ("Pending", "Signal {"),
        ("SkipSignals", "true"),
        ("Signalled", "Ended"),
        ("Resumed", "true"),
        ("Swept", "resumed: [JobId"),
        ("Paused", "Done(Waiting)"),
        ("Forgotten", "Done"),
        ("Pruned", "2"),
        ("Written", "Done(3)"),
        ("Written", "Conflict(Some"),
        ("Imported", "Created"),
        ("Imported", "Replaced"),
        ("Imported", "Kept"),
        ("Imported", "Conflict"),
        ("Refused", "runAt"),
        ("Refused", "cursor"),
    ];

    #[test]
    fn random_calls_reach_every_result() {
        let mut runner = TestRunner::deterministic();
        let mut missing: Vec<_> = WANTED.to_vec();
        for _ in 0..12_288 {
            if missing.is_empty() {
                break;
            }
            let tree = Machine::sequential_strategy(1..CALLS_MAX).new_tree(&mut runner).unwrap();
            let (mut model_run, calls, _) = tree.current();
            for call in &calls {
                let answer = format!("{:?}", model_run.make(call));
                missing.retain(|(start, part)| !(answer.starts_with(start) && answer.contains(part)));
            }
        }
        assert!(missing.is_empty(), "{missing:?}");
    }
}
