//! Checks the results that all processes received against the content of the store.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::store::{Backend, PageRequest};
use redrive_core::{Lease, Queue, State, Store};
use redrive_testkit::History;
use redrive_testkit::checks::{FinalState, check_all};
use redrive_testkit::history::{HistoryEvent, SettledAttempt};

/// Runs the five checks, and returns the content of the store. All jobs must have ended.
pub(crate) async fn check(store: &dyn Backend, history: &History) -> FinalState {
    let end = FinalState::read(store, history).await.expect("the store can be read");
    add_unreported_settlements(history, store, &end).await;
    check_all(history, &end, std::time::Duration::ZERO).unwrap_or_else(|violation| {
        let events = violation.job.map(|job| history.describe_job(job).join("\n")).unwrap_or_default();
        panic!("{violation}\n{events}");
    });
    let mut counts: BTreeMap<(Queue, State), u64> = BTreeMap::new();
    end.jobs.values().for_each(|job| *counts.entry((job.queue.clone(), job.state)).or_default() += 1);
    assert_eq!(store.stats().await.expect("stats").counts, counts, "the counts differ from the jobs");
    end
}

/// How many jobs were acknowledged.
pub(crate) fn count_acknowledged(history: &History) -> usize {
    let ids = history.all().into_iter().filter_map(|(_, event)| match event {
        HistoryEvent::Acknowledged(id) => Some(id),
        _ => None,
    });
    ids.collect::<BTreeSet<_>>().len()
}

/// Adds the settlements from the attempt log that are missing in the history: the process was killed after the commit and before it
/// received the result.
async fn add_unreported_settlements(history: &History, store: &dyn Store, end: &FinalState) {
    let reported: BTreeSet<Lease> = history
        .all()
        .into_iter()
        .filter_map(
            |(_, event)| {
                if let HistoryEvent::Settled(settled) = event { Some(settled.lease) } else { None }
            },
        )
        .collect();
    for id in end.jobs.keys() {
        let log = store.attempts(*id, PageRequest::first(1000)).await.expect("the log can be read");
        for attempt in log.items.into_iter().rev() {
            let lease = Lease { id: *id, epoch: attempt.epoch };
            let refund =
                u32::from(["snoozed", "released", "waiting"].contains(&attempt.entry.outcome.as_str()));
            if !reported.contains(&lease) {
                history.add(HistoryEvent::Settled(SettledAttempt {
                    lease,
                    led_to: attempt.led_to,
                    refund,
                    logged: true,
                }));
            }
        }
    }
}
