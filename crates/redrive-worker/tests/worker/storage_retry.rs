//! Storage retry and dequeue retry: what is retried, how often, after which waits, and what ends it.

use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::records::{Change, Expect};
use redrive_core::store::{
    ClaimRequest, Filter, PageRequest, ReclaimRequest, Retention, Settlement, Store, StoreError,
};
use redrive_core::{Backoff, Invalid, Jitter, Policy, Records, Steps, Verdict, WorkerId};
use redrive_worker::{RetryingStore, Settings};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::rigged::{Fault, Rigged};
use crate::stage::{MS, S, Stage, id, unavailable};

const STORAGE: [&str; 8] = ["settle", "extend", "reclaim", "prune", "recall", "remember", "resume", "sweep"];
const PASSED_ON: [&str; 17] = [
    "enqueue", "cancel", "redrive", "run_now", "discard", "get", "list", "look", "attempts", "stats",
    "signal", "hold", "unhold", "forget", "read", "write", "scan",
];

/// Calls a verb and forgets what it brings.
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
        "hold" => store.hold(vec![]).await.map(drop),
        "unhold" => store.unhold(vec![]).await.map(drop),
        "forget" => store.forget(vec![]).await.map(drop),
        "discard" => store.discard(vec![]).await.map(drop),
        "get" => store.get(vec![]).await.map(drop),
        "list" => store.list(Filter::default(), page).await.map(drop),
        "look" => store.look(Filter::default(), page, 1).await.map(drop),
        "attempts" => store.attempts(id(1), page).await.map(drop),
        "stats" => store.stats().await.map(drop),
        "read" => store.read("k", "i").await.map(drop),
        "write" => {
            let change = Change { kind: "k".into(), id: "i".into(), expect: Expect::Any, value: None };
            store.write(change).await.map(drop)
        }
        "scan" => store.scan("k", None, 1).await.map(drop),
        other => panic!("no verb {other}"),
    }
}

fn wrap(stage: &Stage, settings: &Settings) -> RetryingStore {
    RetryingStore::new(stage.store.clone(), settings.storage_retry.clone(), settings.dequeue_retry.clone())
        .with_seed(1)
}

/// The times between the calls of `verb`.
fn waits(store: &Rigged, verb: &str) -> Vec<Duration> {
    store.calls(verb).windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}

/// Lets `verb` fail for good and checks that it is called as often as `policy` allows, within the bounds of its waits.
async fn check_waits(settings: &Settings, verb: &'static str, policy: &Policy) {
    let stage = Stage::new().await;
    stage.store.fail(verb, usize::MAX, unavailable);
    let error = call(&wrap(&stage, settings), verb).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{verb}: {error}");
    let (actual, expected) = (waits(&stage.store, verb), policy.preview().retries);
    assert_eq!(actual.len(), expected.len(), "{verb}");
    for (actual, bounds) in actual.iter().zip(expected) {
        // A timer may fire up to a millisecond late, twice over as the test's clock stands between ticks.
        assert!(
            *actual >= bounds.earliest && *actual <= bounds.latest + 2 * MS,
            "{verb}: {actual:?} {bounds:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn each_operation_waits_by_its_own_policy() {
    let settings = Settings::default();
    for verb in STORAGE {
        check_waits(&settings, verb, &presets::storage()).await;
    }
    check_waits(&settings, "claim", &presets::dequeue()).await;
    for verb in PASSED_ON {
        check_waits(&settings, verb, &presets::once()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_jitter_the_waits_are_those_of_the_document() {
    let exact =
        |policy: Policy, attempts| policy.with_jitter(Jitter::None).with_max_attempts(attempts).unwrap();
    let settings = Settings::default()
        .with_storage_retry(exact(presets::storage(), 9))
        .with_dequeue_retry(exact(presets::dequeue(), 7));
    let stage = Stage::new().await;
    let store = wrap(&stage, &settings);
    for (verb, documented) in [
        ("settle", [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000].as_slice()),
        ("claim", [500, 1_000, 2_000, 4_000, 8_000, 10_000].as_slice()),
    ] {
        stage.store.fail(verb, usize::MAX, unavailable);
        call(&store, verb).await.unwrap_err();
        let waits: Vec<_> = waits(&stage.store, verb).iter().map(Duration::as_millis).collect();
        assert_eq!(waits, documented, "{verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_setting_changes_what_it_names() {
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
        for verb in STORAGE {
            check_waits(&settings, verb, &storage).await;
        }
        check_waits(&settings, "claim", &dequeue).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_passes_is_not_seen() {
    let busy: Fault = || StoreError::Busy("deadlock".into());
    for (verb, failures, fault) in [
        ("settle", 4, busy),
        ("extend", 4, unavailable),
        ("reclaim", 4, busy),
        ("prune", 4, busy),
        ("claim", 2, busy),
    ] {
        let stage = Stage::new().await;
        stage.store.fail(verb, failures, fault);
        call(&wrap(&stage, &Settings::default()), verb).await.unwrap();
        assert_eq!(stage.store.calls(verb).len(), failures + 1, "{verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_will_not_pass_is_not_retried() {
    let faults: [Fault; 5] = [
        || StoreError::Full("disk".into()),
        || StoreError::Refused("read only".into()),
        || StoreError::Invalid(Invalid::new("batch", "too large")),
        || StoreError::Corrupt("page 7".into()),
        || StoreError::Failed("bug".into()),
    ];
    for fault in faults {
        for verb in STORAGE.into_iter().chain(["claim"]) {
            let stage = Stage::new().await;
            stage.store.fail(verb, usize::MAX, fault);
            let error = call(&wrap(&stage, &Settings::default()), verb).await.unwrap_err();
            assert_eq!(error.to_string(), fault().to_string());
            assert_eq!(stage.store.calls(verb).len(), 1, "{verb}: {error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cancellation_ends_a_wait_at_once_and_is_not_retried() {
    for verb in STORAGE.into_iter().chain(["claim"]) {
        let stage = Stage::new().await;
        stage.store.fail(verb, usize::MAX, unavailable);
        let token = CancellationToken::new();
        let store = wrap(&stage, &Settings::default()).cancel_on(token.clone());
        let began = Instant::now();
        let cancel = async {
            tokio::time::sleep(40 * MS).await;
            token.cancel();
        };
        let (result, ()) = tokio::join!(call(&store, verb), cancel);
        assert!(matches!(result, Err(StoreError::Unavailable(_))), "{verb}");
        assert_eq!((began.elapsed(), stage.store.calls(verb).len()), (40 * MS, 1), "{verb}");
        // From now on there is one try and no wait.
        call(&store, verb).await.unwrap_err();
        assert_eq!((began.elapsed(), stage.store.calls(verb).len()), (40 * MS, 2), "{verb}");
    }
}

#[tokio::test]
async fn it_is_a_store_like_any_other() {
    redrive_testkit::exercise(|clock| async {
        let model = std::sync::Arc::new(redrive_testkit::ModelStore::new(clock));
        RetryingStore::new(model, presets::storage(), presets::dequeue())
    })
    .await;
}
