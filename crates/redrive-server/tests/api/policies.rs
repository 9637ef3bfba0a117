//! Policies: registering, editing, removing, previewing and replaying them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::catalog::{self, RemoveResult};
use redrive_core::records::{Record, RecordStore, RecordWrite, WriteResult};
use redrive_core::{Policy, PolicyName, Reason, StoreError, Verdict};
use redrive_store_sqlite::SqliteStore;
use serde_json::{Value, json};

use crate::stage::{Answer, Stage};

#[tokio::test]
async fn a_policy_is_registered_once_and_each_edit_adds_a_version() {
    let stage = Stage::open().await;
    let policy = json!({"policyId": "orders", "maxAttempts": 3});
    let created = stage.post("/v1/policies", policy.clone()).await;
    assert_eq!((created.status, created.header("location")), (201, Some("/v1/policies/orders")));
    assert_eq!(created.body["version"], 1);
    assert_eq!(created.body["backoffType"], "exponential");
    assert_eq!(stage.post("/v1/policies", policy).await.status, 200);
    let other = stage.post("/v1/policies", json!({"policyId": "orders", "maxAttempts": 4})).await;
    assert_eq!(other.problem(), (409, "policy_conflict", None));
    let edited = stage.put("/v1/policies/orders", json!({"maxAttempts": 4})).await;
    assert_eq!((edited.status, &edited.body["version"]), (200, &json!(2)));
    assert_eq!(stage.get("/v1/policies/orders").await.body["maxAttempts"], 4);
    let renamed = stage.put("/v1/policies/orders", json!({"policyId": "x"})).await;
    assert_eq!(renamed.problem(), (422, "invalid", Some("policyId")));
    assert_eq!(stage.get("/v1/policies/none").await.problem(), (404, "not_found", None));
}

/// The paths that end with a fixed word in the position where another path has a parameter, for example `/v1/policies/preview` and
/// `/v1/policies/{policyId}`: `(path, method, path with the parameter)` for each method that only the second path has.
async fn paths_with_fixed_words(stage: &Stage) -> Vec<(String, String, String)> {
    let document = stage.get("/openapi.json").await.body;
    let paths = document["paths"].as_object().unwrap();
    let mut found = Vec::new();
    for (path, item) in paths {
        let (parent, word) = path.rsplit_once('/').unwrap();
        for (template, other_item) in paths {
            let (other_parent, parameter) = template.rsplit_once('/').unwrap();
            if other_parent != parent || !parameter.starts_with('{') || word.starts_with('{') {
                continue;
            }
            let methods = other_item.as_object().unwrap().keys().filter(|method| item.get(method).is_none());
            found.extend(methods.map(|method| (path.clone(), method.to_uppercase(), template.clone())));
        }
    }
    found
}

#[tokio::test]
async fn a_fixed_word_in_a_path_is_a_name_for_the_methods_that_its_own_path_lacks() {
    let stage = Stage::open().await;
    let paths = paths_with_fixed_words(&stage).await;
    assert!(paths.iter().any(|(path, method, _)| path == "/v1/policies/replay" && method == "GET"));
    for (path, method, template) in paths {
        // With an escaped character, the router takes the word as a name.
        let (parent, word) = path.rsplit_once('/').unwrap();
        let escaped = format!("{parent}/%{:02x}{}", word.as_bytes()[0], &word[1..]);
        let as_word = stage.send(&method, &path, None, &[]).await;
        let as_name = stage.send(&method, &escaped, None, &[]).await;
        assert_ne!(as_word.status, 405, "{method} {path} is not routed to {template}");
        assert_eq!((as_word.status, &as_word.body), (as_name.status, &as_name.body), "{method} {path}");
    }
}

#[tokio::test]
async fn a_policy_may_be_named_like_a_fixed_word_in_a_path() {
    let stage = Stage::open().await;
    let document = stage.get("/openapi.json").await.body;
    let paths = document["paths"].as_object().unwrap().keys();
    let names: Vec<&str> = paths.filter_map(|path| path.strip_prefix("/v1/policies/")).collect();
    let names: Vec<&&str> = names.iter().filter(|name| !name.starts_with('{')).collect();
    assert!(names.len() >= 2, "{names:?}");
    for name in names {
        let path = format!("/v1/policies/{name}");
        let created = stage.post("/v1/policies", json!({"policyId": name, "maxAttempts": 3})).await;
        assert_eq!((created.status, created.header("location")), (201, Some(path.as_str())));
        assert_eq!(stage.get(&path).await.body["maxAttempts"], 3, "{path}");
        let edited = stage.put(&path, json!({"maxAttempts": 4})).await;
        assert_eq!((edited.status, &edited.body["version"]), (200, &json!(2)), "{path}");
        assert_eq!(stage.get(&format!("{path}?x=y")).await.body["policyId"], **name);
        assert_eq!(stage.delete(&path).await.status, 204, "{path}");
        assert_eq!(stage.get(&path).await.problem(), (404, "not_found", None), "{path}");
        let patched = stage.send("PATCH", &path, None, &[]).await;
        assert_eq!(patched.problem(), (405, "method_not_allowed", None));
        let allow = patched.header("allow").unwrap().to_owned();
        assert!(["GET", "PUT", "DELETE", "POST"].iter().all(|method| allow.contains(method)), "{allow}");
    }
    let preview = stage.post("/v1/policies/preview", json!({"maxAttempts": 3})).await;
    assert_eq!(preview.status, 200, "{}", preview.body);
}

#[tokio::test]
async fn a_policy_as_the_api_shows_it_can_be_registered_again() {
    let stage = Stage::open().await;
    for (number, policy) in [
        json!({"backoffType": "schedule", "delaysMs": [1, 900000], "totalBudgetMs": null}),
        json!({"multiplier": 1.1, "jitterType": "proportional", "jitterFraction": 0.3}),
        json!({"backoffType": "fixed", "initialDelayMs": 7, "leaseMs": 1500, "signingSecret": "s"}),
    ]
    .into_iter()
    .enumerate()
    {
        let mut named = policy.clone();
        named["policyId"] = Value::String(format!("p{number}"));
        assert_eq!(stage.post("/v1/policies", named).await.status, 201);
        let shown = stage.get(&format!("/v1/policies/p{number}")).await.body;
        assert_eq!(stage.post("/v1/policies", shown.clone()).await.status, 200, "{shown}");
    }
}

#[tokio::test]
async fn policies_are_listed_in_pages() {
    let stage = Stage::open().await;
    for id in ["a", "b"] {
        stage.post("/v1/policies", json!({"policyId": id})).await;
    }
    let mut seen = Vec::new();
    let mut path = "/v1/policies?limit=1".to_owned();
    loop {
        let page = stage.get(&path).await.body;
        seen.push(page["items"][0]["policyId"].as_str().unwrap().to_owned());
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/v1/policies?limit=1&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ["a", "b", "default"]);
}

#[tokio::test]
async fn a_policy_that_live_tasks_use_cannot_be_removed() {
    let stage = Stage::open().await;
    stage.post("/v1/policies", json!({"policyId": "orders"})).await;
    let task = json!({"target": "http://example.com/", "policyId": "orders"});
    assert_eq!(stage.post("/v1/tasks", task.clone()).await.status, 201);
    let used = stage.delete("/v1/policies/orders").await;
    assert_eq!(used.problem(), (409, "policy_in_use", None));
    stage.complete().await;
    assert_eq!(stage.delete("/v1/policies/orders").await.status, 204);
    assert_eq!(stage.delete("/v1/policies/orders").await.status, 404);
    assert_eq!(stage.post("/v1/tasks", task).await.problem(), (422, "unknown_policy", Some("policyId")));
    assert_eq!(stage.delete("/v1/policies/default").await.problem(), (409, "policy_in_use", None));
}

#[tokio::test]
async fn a_preview_shows_the_range_and_the_mean_of_each_wait_and_of_the_total() {
    let stage = Stage::open().await;
    let policy = json!({"maxAttempts": 3, "initialDelayMs": 100, "jitterType": "equal"});
    let preview = stage.post("/v1/policies/preview", policy).await;
    assert_eq!(preview.status, 200);
    let first = &preview.body["retries"][0];
    assert_eq!(
        (&first["attemptNumber"], &first["earliestMs"], &first["meanMs"], &first["latestMs"]),
        (&json!(2), &json!(50), &json!(75), &json!(100))
    );
    assert_eq!(preview.body["total"], json!({"earliestMs": 150, "meanMs": 225, "latestMs": 300}));
}

/// A node whose store has a clock that only the test advances.
async fn with_manual_clock() -> (Stage, redrive_testkit::ManualClock) {
    let clock = redrive_testkit::ManualClock::new();
    let options = redrive_store_sqlite::Options::default().with_clock(clock.clone());
    let store = redrive_store_sqlite::SqliteStore::open_in_memory_with(options).unwrap();
    (Stage::on(std::sync::Arc::new(store), redrive_server::Access::OpenWithoutKeys).await, clock)
}

/// A node with three ended tasks under a policy of eight attempts: one succeeded at the third attempt, one is dead, and one
/// succeeded at the first attempt.
async fn with_recent_failures() -> (Stage, redrive_testkit::ManualClock) {
    let (stage, clock) = with_manual_clock().await;
    let policy = json!({"policyId": "p", "maxAttempts": 8, "backoffType": "fixed", "initialDelayMs": 10000,
        "jitterType": "none"});
    assert_eq!(stage.post("/v1/policies", policy).await.status, 201);
    let task = async || {
        let task = json!({"target": "http://example.com/", "policyId": "p"});
        stage.post("/v1/tasks", task).await.id()
    };
    let (at_third, never, at_first) = (task().await, task().await, task().await);
    for attempt in 1..=4 {
        for job in stage.claim().await {
            let verdict = if job.id == at_first || (job.id == at_third && attempt == 3) {
                Verdict::Complete(None)
            } else if job.id == never && attempt == 4 {
                Verdict::DeadLetter(Reason::AttemptsExhausted)
            } else {
                Verdict::Retry(Duration::from_secs(10))
            };
            stage.settle(&job, verdict).await;
        }
        clock.advance(Duration::from_secs(10));
    }
    (stage, clock)
}

async fn replay(stage: &Stage, policy: Value, more: Value) -> Answer {
    let mut request = json!({"policy": policy});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    stage.post("/v1/policies/replay", request).await
}

fn fixed(attempts: u32, delay: u32) -> Value {
    json!({"maxAttempts": attempts, "backoffType": "fixed", "initialDelayMs": delay, "jitterType": "none"})
}

#[tokio::test]
async fn recent_failures_are_replayed_under_another_policy() {
    let (stage, clock) = with_recent_failures().await;
    // The two tasks that failed at least once made three and four attempts. The one that succeeded took 20 s.
    let actual = json!({"attempts": 7, "dead": 1, "succeeded": 1, "meanMsToSuccess": 20_000});
    // A replayed attempt takes 12 ms, like each real one.
    for (policy, replayed) in [
        (fixed(8, 10_000), json!({"attempts": 11, "dead": 1, "succeeded": 1, "meanMsToSuccess": 20_036})),
        (fixed(2, 10_000), json!({"attempts": 4, "dead": 2, "succeeded": 0})),
        (fixed(3, 30_000), json!({"attempts": 5, "dead": 1, "succeeded": 1, "meanMsToSuccess": 30_024})),
        (
            json!({"maxAttempts": 5, "retryableStatusCodes": [500]}),
            json!({"attempts": 2, "dead": 2, "succeeded": 0}),
        ),
    ] {
        let shown = replay(&stage, policy.clone(), json!({})).await.body;
        assert_eq!(
            (&shown["examined"], &shown["complete"], &shown["tasks"]),
            (&json!(3), &json!(true), &json!(2))
        );
        assert_eq!((&shown["actual"], &shown["replayed"]), (&actual, &replayed), "{policy}");
    }
    let others = replay(&stage, fixed(8, 1), json!({"policyId": "other"})).await.body;
    assert_eq!((&others["tasks"], &others["examined"]), (&json!(0), &json!(0)));
    for (policy, more, field) in [
        (json!({"maxAttempts": 0}), json!({}), "policy.maxAttempts"),
        (json!({}), json!({"days": 31}), "days"),
        (json!({}), json!({"days": 0}), "days"),
        (json!({}), json!({"weeks": 1}), "weeks"),
    ] {
        let refused = replay(&stage, policy, more).await;
        assert_eq!(refused.problem(), (422, "invalid", Some(field)), "{}", refused.body);
    }
    clock.advance(Duration::from_secs(8 * 24 * 60 * 60));
    assert_eq!(
        replay(&stage, fixed(8, 1), json!({})).await.body["tasks"],
        0,
        "the tasks ended more than a week ago"
    );
    assert_eq!(replay(&stage, fixed(8, 1), json!({"days": 30})).await.body["tasks"], 2);
}

/// Old logs contain the HTTP status of a gRPC call, which is always 200, beside its gRPC code.
#[tokio::test]
async fn a_grpc_failure_is_replayed_and_shown_by_its_grpc_code() {
    let (stage, clock) = with_manual_clock().await;
    let task = json!({"target": "grpc://example.com/shop.Orders/Take", "policy": fixed(8, 10_000)});
    let id = stage.post("/v1/tasks", task).await.id();
    let evidence = |code: u16| json!({"phase": "ANSWERED", "status": 200, "grpcCode": code});
    for _ in 1..=2 {
        let job = stage.claim().await.pop().unwrap();
        stage.settle_with(&job, Verdict::Retry(Duration::from_secs(10)), "failed", &evidence(14)).await;
        clock.advance(Duration::from_secs(10));
    }
    let job = stage.claim().await.pop().unwrap();
    stage.settle_with(&job, Verdict::Complete(None), "done", &evidence(0)).await;

    let log = stage.get(&format!("/v1/tasks/{id}/attempts")).await.body;
    let shown: Vec<_> = log["items"].as_array().unwrap().iter().rev().collect();
    let status = |at: usize| (&shown[at]["responseStatus"], &shown[at]["grpcStatus"]);
    assert_eq!(status(0), (&json!(14), &json!("UNAVAILABLE")), "{log}");
    assert_eq!(status(2), (&json!(0), &json!("OK")), "{log}");

    for (codes, replayed) in [
        (json!([14]), json!({"attempts": 3, "dead": 0, "succeeded": 1, "meanMsToSuccess": 20_036})),
        (json!([8]), json!({"attempts": 1, "dead": 1, "succeeded": 0})),
    ] {
        let mut policy = fixed(8, 10_000);
        policy["retryableGrpcCodes"] = codes;
        let shown = replay(&stage, policy, json!({})).await.body;
        assert_eq!(shown["replayed"], replayed, "{shown}");
    }
}

/// An attempt fails although the response has status 200 if the connection breaks or the timeout ends before the whole response.
#[tokio::test]
async fn a_failed_attempt_with_status_200_is_not_replayed_as_a_success() {
    let ok = json!({"phase": "ANSWERED", "status": 200});
    for outcome in ["failed", "timeout"] {
        let (stage, clock) = with_manual_clock().await;
        let task = json!({"target": "http://example.com/", "policy": fixed(8, 10_000)});
        stage.post("/v1/tasks", task).await;
        let job = stage.claim().await.pop().unwrap();
        stage.settle_with(&job, Verdict::Retry(Duration::from_secs(10)), outcome, &ok).await;
        clock.advance(Duration::from_secs(10));
        let job = stage.claim().await.pop().unwrap();
        stage.settle_with(&job, Verdict::Complete(None), "done", &ok).await;
        let shown = replay(&stage, fixed(8, 10_000), json!({})).await.body;
        assert_eq!((&shown["replayed"]["attempts"], &shown["replayed"]["succeeded"]), (&json!(2), &json!(1)));
    }
}

#[tokio::test]
async fn if_match_allows_a_change_only_from_the_version_that_it_names() {
    let stage = Stage::open().await;
    let path = "/v1/policies/orders";
    let send = async |method: &str, attempts: u32, etag: &str| {
        let body = (method == "PUT").then(|| json!({"maxAttempts": attempts}));
        stage.send(method, path, body, &[("if-match", etag)]).await
    };
    assert_eq!(
        send("PUT", 1, "*").await.problem(),
        (412, "precondition_failed", None),
        "the policy does not exist yet"
    );
    assert_eq!(stage.put(path, json!({"maxAttempts": 1})).await.header("etag"), Some("\"1\""));
    assert_eq!(stage.get(path).await.header("etag"), Some("\"1\""));
    assert_eq!(send("PUT", 2, "\"1\"").await.header("etag"), Some("\"2\""));
    assert_eq!(send("PUT", 3, "\"1\"").await.problem(), (412, "precondition_failed", None));
    assert_eq!(stage.get(path).await.body["maxAttempts"], 2, "the stale change has no effect");
    assert_eq!(send("DELETE", 0, "\"1\"").await.problem(), (412, "precondition_failed", None));
    assert_eq!(send("PUT", 3, "\"7\", \"2\"").await.status, 200);
    assert_eq!(send("DELETE", 0, "*").await.status, 204);
}

/// A store in which someone makes a new version of a policy just before its removal is written.
struct ConcurrentEditStore {
    store: SqliteStore,
    has_edited: AtomicBool,
}

#[async_trait]
impl RecordStore for ConcurrentEditStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.store.read(kind, id).await
    }

    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError> {
        if change.value.is_none() && !self.has_edited.swap(true, Ordering::Relaxed) {
            let policy = Policy::default().with_max_attempts(9).unwrap();
            catalog::put(&self.store, &PolicyName::new(change.id.as_str())?, &policy).await?;
        }
        self.store.write(change).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.store.scan(kind, after, limit).await
    }
}

#[tokio::test]
async fn a_policy_that_changes_during_its_removal_is_checked_again() {
    let (store, name) = (SqliteStore::open_in_memory().unwrap(), PolicyName::new("orders").unwrap());
    let first = catalog::put(&store, &name, &Policy::default()).await.unwrap();
    let store = ConcurrentEditStore { store, has_edited: AtomicBool::new(false) };
    let removed = catalog::remove_if(&store, &name, |current| *current == first).await.unwrap();
    assert_eq!(removed, RemoveResult::Refused);
    let current = catalog::latest(&store, &name).await.unwrap().unwrap();
    assert_eq!(current.version.get(), 2, "the new version stays");
    let removed = catalog::remove_if(&store, &name, |version| *version == current).await.unwrap();
    assert_eq!(removed, RemoveResult::Removed);
    let again = catalog::remove_if(&store, &name, |_| true).await.unwrap();
    assert_eq!(again, RemoveResult::NotFound);
}
