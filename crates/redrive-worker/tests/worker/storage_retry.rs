//! Storage retry and dequeue retry: which calls are retried, how often, after which waits, and what ends the retries.

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::records::{Precondition, RecordWrite};
use redrive_core::store::{
    ClaimRequest, Filter, PageRequest, ReclaimRequest, Retention, Settlement, Store, StoreError,
};
use redrive_core::{Backoff, Invalid, Jitter, Policy, RecordStore, Steps, Verdict, WorkerId};
use redrive_worker::{RetryingStore, Settings};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::faulty_store::{Fault, FaultyStore};
use crate::fixture::{Fixture, MS, S, id, unavailable};

const STORAGE_VERBS: [&str; 8] =
    ["settle", "extend", "reclaim", "prune", "recall", "remember", "resume", "sweep"];
const VERBS_WITHOUT_RETRY: [&str; 17] = [
    "enqueue", "cancel", "redrive", "run_now", "discard", "get", "list", "search", "attempts", "stats",
    "signal", "pause", "unpause", "forget", "read", "write", "scan",
];

/// Calls a method of the store and ignores its result.
async fn call(store: &RetryingStore, verb: &str) -> Result<(), StoreError> {
    let worker = WorkerId::new("w").unwrap();
    let page = PageRequest::first(1);
    match verb {
        "claim" => store
            .claim(ClaimRequest { worker, queues: vec![], kinds: vec![], limit: 1, lease: S })
            .await
            .map(drop),
        "settle" => {
            let lease = redrive_core::Lease { id: id(1), epoch: 1 };
            let settlement = Settlement::new(lease, Verdict::Release);
            store.settle(vec![settlement]).await.map(drop)
        }
        "extend" => store.extend(vec![], S).await.map(drop),
        "reclaim" => store
            .reclaim(ReclaimRequest { kinds: Vec::new(), limit: 1, lease: S, held: Vec::new() })
            .await
            .map(drop),
        "prune" => store.prune(Retention::default(), 1).await.map(drop),
        "enqueue" => store.enqueue(vec![]).await.map(drop),
        "cancel" => store.cancel(vec![]).await.map(drop),
        "redrive" => store.redrive(vec![]).await.map(drop),
        "run_now" => store.run_now(vec![]).await.map(drop),
        "recall" => store.recall(id(1), 0, 1).await.map(drop),
        "remember" => store.remember(vec![]).await.map(drop),
        "resume" => store.resume(vec![]).await.map(drop),
        "sweep" => store.sweep(None, 1).await.map(drop),
        "signal" => store.signal(vec![]).await.map(drop),
        "pause" => store.pause(vec![]).await.map(drop),
        "unpause" => store.unpause(vec![]).await.map(drop),
        "forget" => store.forget(vec![]).await.map(drop),
        "discard" => store.discard(vec![]).await.map(drop),
        "get" => store.get(vec![]).await.map(drop),
        "list" => store.list(Filter::default(), page).await.map(drop),
        "search" => store.search(Filter::default(), page, 1).await.map(drop),
        "attempts" => store.attempts(id(1), page).await.map(drop),
        "stats" => store.stats().await.map(drop),
        "read" => store.read("k", "i").await.map(drop),
        "write" => {
            let change =
                RecordWrite { kind: "k".into(), id: "i".into(), expect: Precondition::Any, value: None };
            store.write(change).await.map(drop)
        }
        "scan" => store.scan("k", None, 1).await.map(drop),
        other => panic!("no verb {other}"),
    }
}

fn wrap(fixture: &Fixture, settings: &Settings) -> RetryingStore {
    RetryingStore::new(fixture.store.clone(), settings.storage_retry.clone(), settings.dequeue_retry.clone())
        .with_seed(1)
}

/// Returns the times between the calls of `verb`.
fn waits(store: &FaultyStore, verb: &str) -> Vec<Duration> {
    store.calls(verb).windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}

/// Makes every call of `verb` fail, and checks that the number of calls and the waits follow `policy`.
async fn check_waits(settings: &Settings, verb: &'static str, policy: &Policy) {
    let fixture = Fixture::new().await;
    fixture.store.fail(verb, usize::MAX, unavailable);
    let error = call(&wrap(&fixture, settings), verb).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{verb}: {error}");
    let (actual, expected) = (waits(&fixture.store, verb), policy.preview().retries);
    assert_eq!(actual.len(), expected.len(), "{verb}");
    for (actual, bounds) in actual.iter().zip(expected) {
        // A timer may fire up to a millisecond late, and the test's clock may stand between two ticks.
        assert!(
            *actual >= bounds.earliest && *actual <= bounds.latest + 2 * MS,
            "{verb}: {actual:?} {bounds:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_is_retried_by_its_own_policy() {
    let settings = Settings::default();
    for verb in STORAGE_VERBS {
        check_waits(&settings, verb, &presets::storage()).await;
    }
    check_waits(&settings, "claim", &presets::dequeue()).await;
    for verb in VERBS_WITHOUT_RETRY {
        check_waits(&settings, verb, &presets::once()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_jitter_the_waits_are_as_documented() {
    let exact =
        |policy: Policy, attempts| policy.with_jitter(Jitter::None).with_max_attempts(attempts).unwrap();
    let settings = Settings::default()
        .with_storage_retry(exact(presets::storage(), 9))
        .with_dequeue_retry(exact(presets::dequeue(), 7));
    let fixture = Fixture::new().await;
    let store = wrap(&fixture, &settings);
    for (verb, documented) in [
        ("settle", [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000].as_slice()),
        ("claim", [500, 1_000, 2_000, 4_000, 8_000, 10_000].as_slice()),
    ] {
        fixture.store.fail(verb, usize::MAX, unavailable);
        call(&store, verb).await.unwrap_err();
        let waits: Vec<_> = waits(&fixture.store, verb).iter().map(Duration::as_millis).collect();
        assert_eq!(waits, documented, "{verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_setting_changes_only_its_own_policy() {
    let quick = presets::once().with_max_attempts(3).unwrap().with_backoff(Backoff::fixed(7 * MS).unwrap());
    let new = Settings::default;
    let ten = presets::storage().with_max_attempts(10).unwrap();
    let cases = [
        (new().with_storage_retry(quick.clone()), quick.clone(), presets::dequeue()),
        (new().with_dequeue_retry(quick.clone()), presets::storage(), quick),
        (new().with_retry_attempts(10).unwrap(), ten, presets::dequeue()),
        (new().disable_retry(), presets::once(), presets::once()),
    ];
    for (settings, storage, dequeue) in cases {
        for verb in STORAGE_VERBS {
            check_waits(&settings, verb, &storage).await;
        }
        check_waits(&settings, "claim", &dequeue).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_transient_failure_is_hidden_from_the_caller() {
    let busy: Fault = || StoreError::Busy("deadlock".into());
    for (verb, failures, fault) in [
        ("settle", 4, busy),
        ("extend", 4, unavailable),
        ("reclaim", 4, busy),
        ("prune", 4, busy),
        ("claim", 2, busy),
    ] {
        let fixture = Fixture::new().await;
        fixture.store.fail(verb, failures, fault);
        call(&wrap(&fixture, &Settings::default()), verb).await.unwrap();
        assert_eq!(fixture.store.calls(verb).len(), failures + 1, "{verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_not_retried() {
    let faults: [Fault; 5] = [
        || StoreError::Full("disk".into()),
        || StoreError::Refused("read only".into()),
        || StoreError::Invalid(Invalid::new("batch", "too large")),
        || StoreError::Corrupt("page 7".into()),
        || StoreError::Failed("bug".into()),
    ];
    for fault in faults {
        for verb in STORAGE_VERBS.into_iter().chain(["claim"]) {
            let fixture = Fixture::new().await;
            fixture.store.fail(verb, usize::MAX, fault);
            let error = call(&wrap(&fixture, &Settings::default()), verb).await.unwrap_err();
            assert_eq!(error.to_string(), fault().to_string());
            assert_eq!(fixture.store.calls(verb).len(), 1, "{verb}: {error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cancellation_ends_a_wait_at_once_and_no_call_follows() {
    for verb in STORAGE_VERBS.into_iter().chain(["claim"]) {
        let fixture = Fixture::new().await;
        fixture.store.fail(verb, usize::MAX, unavailable);
        let token = CancellationToken::new();
        let store = wrap(&fixture, &Settings::default()).cancel_on(token.clone());
        let began = Instant::now();
        let cancel = async {
            tokio::time::sleep(40 * MS).await;
            token.cancel();
        };
        let (result, ()) = tokio::join!(call(&store, verb), cancel);
        assert!(matches!(result, Err(StoreError::Unavailable(_))), "{verb}");
        assert_eq!((began.elapsed(), fixture.store.calls(verb).len()), (40 * MS, 1), "{verb}");
        // From now on there is one try and no wait.
        call(&store, verb).await.unwrap_err();
        assert_eq!((began.elapsed(), fixture.store.calls(verb).len()), (40 * MS, 2), "{verb}");
    }
}

#[tokio::test]
async fn the_retrying_store_conforms() {
    redrive_testkit::exercise(|clock| async {
        let model = std::sync::Arc::new(redrive_testkit::ModelStore::new(clock));
        RetryingStore::new(model, presets::storage(), presets::dequeue())
    })
    .await;
}
