//! The books: everything that any process was told, against what the store holds.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::store::{Backend, PageRequest};
use redrive_core::{Lease, Queue, State, Store};
use redrive_testkit::History;
use redrive_testkit::checks::{End, check_all};
use redrive_testkit::history::{Happening, Settlement};

/// Runs the five checks, and returns what the store holds. Nothing may be left to do.
pub(crate) async fn check(store: &dyn Backend, history: &History) -> End {
    let end = End::of(store, history).await.expect("the store can be read");
    add_what_nobody_was_told(history, store, &end).await;
    check_all(history, &end, std::time::Duration::ZERO).unwrap_or_else(|violation| {
        let story = violation.job.map(|job| history.of_job(job).join("\n")).unwrap_or_default();
        panic!("{violation}\n{story}");
    });
    let mut counts: BTreeMap<(Queue, State), u64> = BTreeMap::new();
    end.jobs.values().for_each(|job| *counts.entry((job.queue.clone(), job.state)).or_default() += 1);
    assert_eq!(store.stats().await.expect("stats").counts, counts, "the counts are not those of the jobs");
    end
}

/// How many jobs were acknowledged.
pub(crate) fn acknowledged(history: &History) -> usize {
    let ids = history.all().into_iter().filter_map(|(_, happening)| match happening {
        Happening::Acknowledged(id) => Some(id),
        _ => None,
    });
    ids.collect::<BTreeSet<_>>().len()
}

/// A process that is killed between a commit and its answer was told nothing of it; the store's own log knows.
async fn add_what_nobody_was_told(history: &History, store: &dyn Store, end: &End) {
    let told: BTreeSet<Lease> = history
        .all()
        .into_iter()
        .filter_map(
            |(_, happening)| {
                if let Happening::Settled(settled) = happening { Some(settled.lease) } else { None }
            },
        )
        .collect();
    for id in end.jobs.keys() {
        let log = store.attempts(*id, PageRequest::first(1000)).await.expect("the log can be read");
        for attempt in log.items {
            let lease = Lease { id: *id, epoch: attempt.epoch };
            let refund =
                u32::from(["snoozed", "released", "waiting"].contains(&attempt.entry.outcome.as_str()));
            if !told.contains(&lease) {
                history.add(Happening::Settled(Settlement {
                    lease,
                    led_to: attempt.led_to,
                    refund,
                    logged: true,
                }));
            }
        }
    }
}
