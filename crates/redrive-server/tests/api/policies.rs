//! Registering, editing and removing policies.

use std::time::Duration;

use redrive_core::{Reason, Verdict};
use serde_json::{Value, json};

use crate::stage::{Answer, Stage};

#[tokio::test]
async fn a_policy_is_registered_once_and_edited_by_versions() {
    let stage = Stage::open().await;
    let policy = json!({"policyId": "orders", "maxAttempts": 3});
    let created = stage.post("/retry-policies", policy.clone()).await;
    assert_eq!((created.status, created.header("location")), (201, Some("/retry-policies/orders")));
    assert_eq!(created.body["version"], 1);
    assert_eq!(created.body["backoffType"], "EXPONENTIAL");
    assert_eq!(stage.post("/retry-policies", policy).await.status, 200);
    let other = stage.post("/retry-policies", json!({"policyId": "orders", "maxAttempts": 4})).await;
    assert_eq!(other.problem(), (409, "POLICY_CONFLICT", None));
    let edited = stage.put("/retry-policies/orders", json!({"maxAttempts": 4})).await;
    assert_eq!((edited.status, &edited.body["version"]), (200, &json!(2)));
    assert_eq!(stage.get("/retry-policies/orders").await.body["maxAttempts"], 4);
    let renamed = stage.put("/retry-policies/orders", json!({"policyId": "x"})).await;
    assert_eq!(renamed.problem(), (422, "INVALID", Some("policyId")));
    assert_eq!(stage.get("/retry-policies/none").await.problem(), (404, "NOT_FOUND", None));
}

/// The paths of the document that end with a word where another one ends with a name: `(word, method, name's path)` for each
/// method that only the name's path has.
async fn words_beside_names(stage: &Stage) -> Vec<(String, String, String)> {
    let document = stage.get("/openapi.json").await.body;
    let paths = document["paths"].as_object().unwrap();
    let mut words = Vec::new();
    for (path, item) in paths {
        let (folder, word) = path.rsplit_once('/').unwrap();
        for (template, names) in paths {
            let (under, name) = template.rsplit_once('/').unwrap();
            if under != folder || !name.starts_with('{') || word.starts_with('{') {
                continue;
            }
            let methods = names.as_object().unwrap().keys().filter(|method| item.get(method).is_none());
            words.extend(methods.map(|method| (path.clone(), method.to_uppercase(), template.clone())));
        }
    }
    words
}

#[tokio::test]
async fn a_word_in_a_path_is_a_name_for_the_methods_that_the_word_does_not_have() {
    let stage = Stage::open().await;
    let words = words_beside_names(&stage).await;
    assert!(words.iter().any(|(path, method, _)| path == "/retry-policies/replay" && method == "GET"));
    for (path, method, template) in words {
        // Escaped, the word is a name and nothing else.
        let (folder, word) = path.rsplit_once('/').unwrap();
        let escaped = format!("{folder}/%{:02x}{}", word.as_bytes()[0], &word[1..]);
        let as_word = stage.send(&method, &path, None, &[]).await;
        let as_name = stage.send(&method, &escaped, None, &[]).await;
        assert_ne!(as_word.status, 405, "{method} {path} is no {template}");
        assert_eq!((as_word.status, &as_word.body), (as_name.status, &as_name.body), "{method} {path}");
    }
}

#[tokio::test]
async fn a_policy_may_have_the_name_of_a_word_in_a_path() {
    let stage = Stage::open().await;
    let document = stage.get("/openapi.json").await.body;
    let paths = document["paths"].as_object().unwrap().keys();
    let words: Vec<&str> = paths.filter_map(|path| path.strip_prefix("/retry-policies/")).collect();
    let words: Vec<&&str> = words.iter().filter(|word| !word.starts_with('{')).collect();
    assert!(words.len() >= 2, "{words:?}");
    for word in words {
        let path = format!("/retry-policies/{word}");
        let created = stage.post("/retry-policies", json!({"policyId": word, "maxAttempts": 3})).await;
        assert_eq!((created.status, created.header("location")), (201, Some(path.as_str())));
        assert_eq!(stage.get(&path).await.body["maxAttempts"], 3, "{path}");
        let edited = stage.put(&path, json!({"maxAttempts": 4})).await;
        assert_eq!((edited.status, &edited.body["version"]), (200, &json!(2)), "{path}");
        assert_eq!(stage.get(&format!("{path}?x=y")).await.body["policyId"], **word);
        assert_eq!(stage.delete(&path).await.status, 204, "{path}");
        assert_eq!(stage.get(&path).await.problem(), (404, "NOT_FOUND", None), "{path}");
        let patched = stage.send("PATCH", &path, None, &[]).await;
        assert_eq!(patched.problem(), (405, "METHOD_NOT_ALLOWED", None));
        let allow = patched.header("allow").unwrap().to_owned();
        assert!(["GET", "PUT", "DELETE", "POST"].iter().all(|method| allow.contains(method)), "{allow}");
    }
    let preview = stage.post("/retry-policies/preview", json!({"maxAttempts": 3})).await;
    assert_eq!(preview.status, 200, "{}", preview.body);
}

#[tokio::test]
async fn what_is_shown_can_be_registered_again() {
    let stage = Stage::open().await;
    for (number, policy) in [
        json!({"backoffType": "SCHEDULE", "delaysMs": [1, 900000], "totalBudgetMs": null}),
        json!({"multiplier": 1.1, "jitterType": "PROPORTIONAL", "jitterFraction": 0.3}),
        json!({"backoffType": "FIXED", "initialDelayMs": 7, "visibilityTimeoutMs": 1500, "signingSecret": "s"}),
    ]
    .into_iter()
    .enumerate()
    {
        let mut named = policy.clone();
        named["policyId"] = Value::String(format!("p{number}"));
        assert_eq!(stage.post("/retry-policies", named).await.status, 201);
        let shown = stage.get(&format!("/retry-policies/p{number}")).await.body;
        assert_eq!(stage.post("/retry-policies", shown.clone()).await.status, 200, "{shown}");
    }
}

#[tokio::test]
async fn policies_are_listed_in_pages() {
    let stage = Stage::open().await;
    for id in ["a", "b"] {
        stage.post("/retry-policies", json!({"policyId": id})).await;
    }
    let mut seen = Vec::new();
    let mut path = "/retry-policies?limit=1".to_owned();
    loop {
        let page = stage.get(&path).await.body;
        seen.push(page["items"][0]["policyId"].as_str().unwrap().to_owned());
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/retry-policies?limit=1&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ["a", "b", "default"]);
}

#[tokio::test]
async fn a_policy_that_live_tasks_use_stays() {
    let stage = Stage::open().await;
    stage.post("/retry-policies", json!({"policyId": "orders"})).await;
    let task = json!({"targetUrl": "http://example.com/", "policyId": "orders"});
    assert_eq!(stage.post("/retry-tasks", task.clone()).await.status, 201);
    let used = stage.delete("/retry-policies/orders").await;
    assert_eq!(used.problem(), (409, "POLICY_IN_USE", None));
    stage.complete().await;
    assert_eq!(stage.delete("/retry-policies/orders").await.status, 204);
    assert_eq!(stage.delete("/retry-policies/orders").await.status, 404);
    assert_eq!(stage.post("/retry-tasks", task).await.problem(), (422, "UNKNOWN_POLICY", Some("policyId")));
    assert_eq!(stage.delete("/retry-policies/default").await.problem(), (409, "POLICY_IN_USE", None));
}

#[tokio::test]
async fn a_preview_shows_bounds_mean_and_totals() {
    let stage = Stage::open().await;
    let policy = json!({"maxAttempts": 3, "initialDelayMs": 100, "jitterType": "EQUAL"});
    let preview = stage.post("/retry-policies/preview", policy).await;
    assert_eq!(preview.status, 200);
    let first = &preview.body["retries"][0];
    assert_eq!(
        (&first["attemptNumber"], &first["earliestMs"], &first["meanMs"], &first["latestMs"]),
        (&json!(2), &json!(50), &json!(75), &json!(100))
    );
    assert_eq!(preview.body["total"], json!({"earliestMs": 150, "meanMs": 225, "latestMs": 300}));
}

/// A stage whose store has a clock that stands still.
async fn empty() -> (Stage, redrive_testkit::ManualClock) {
    let clock = redrive_testkit::ManualClock::new();
    let options = redrive_store_sqlite::Options::default().with_clock(clock.clone());
    let store = redrive_store_sqlite::SqliteStore::open_in_memory_with(options).unwrap();
    (Stage::on(std::sync::Arc::new(store), redrive_server::Access::OpenWithoutKeys).await, clock)
}

/// Three tasks under a policy of eight attempts: one that the target took at the third attempt, one it never took, and one it
/// took at once.
async fn failures_of_late() -> (Stage, redrive_testkit::ManualClock) {
    let (stage, clock) = empty().await;
    let policy = json!({"policyId": "p", "maxAttempts": 8, "backoffType": "FIXED", "initialDelayMs": 10000,
        "jitterType": "NONE"});
    assert_eq!(stage.post("/retry-policies", policy).await.status, 201);
    let task = async || {
        let task = json!({"targetUrl": "http://example.com/", "policyId": "p"});
        stage.post("/retry-tasks", task).await.id()
    };
    let (taken, refused, at_once) = (task().await, task().await, task().await);
    for attempt in 1..=4 {
        for job in stage.claim().await {
            let verdict = if job.id == at_once || (job.id == taken && attempt == 3) {
                Verdict::Complete(None)
            } else if job.id == refused && attempt == 4 {
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
    stage.post("/retry-policies/replay", request).await
}

fn fixed(attempts: u32, delay: u32) -> Value {
    json!({"maxAttempts": attempts, "backoffType": "FIXED", "initialDelayMs": delay, "jitterType": "NONE"})
}

#[tokio::test]
async fn failures_of_late_are_driven_again_on_paper() {
    let (stage, clock) = failures_of_late().await;
    // Really: three attempts, then four; the one that worked took 20 s.
    let actual = json!({"attempts": 7, "exhausted": 1, "succeeded": 1, "meanMsToSuccess": 20_000});
    // On paper each attempt takes the 12 ms that it really took.
    for (policy, replayed) in [
        (
            fixed(8, 10_000),
            json!({"attempts": 11, "exhausted": 1, "succeeded": 1, "meanMsToSuccess": 20_036}),
        ),
        (fixed(2, 10_000), json!({"attempts": 4, "exhausted": 2, "succeeded": 0})),
        (fixed(3, 30_000), json!({"attempts": 5, "exhausted": 1, "succeeded": 1, "meanMsToSuccess": 30_024})),
        (
            json!({"maxAttempts": 5, "retryableStatusCodes": [500]}),
            json!({"attempts": 2, "exhausted": 2, "succeeded": 0}),
        ),
    ] {
        let shown = replay(&stage, policy.clone(), json!({})).await.body;
        assert_eq!(
            (&shown["lookedAt"], &shown["complete"], &shown["tasks"]),
            (&json!(3), &json!(true), &json!(2))
        );
        assert_eq!((&shown["actual"], &shown["replayed"]), (&actual, &replayed), "{policy}");
    }
    let others = replay(&stage, fixed(8, 1), json!({"policyId": "other"})).await.body;
    assert_eq!((&others["tasks"], &others["lookedAt"]), (&json!(0), &json!(0)));
    for (policy, more, field) in [
        (json!({"maxAttempts": 0}), json!({}), "policy.maxAttempts"),
        (json!({}), json!({"days": 31}), "days"),
        (json!({}), json!({"days": 0}), "days"),
        (json!({}), json!({"weeks": 1}), "weeks"),
    ] {
        let refused = replay(&stage, policy, more).await;
        assert_eq!(refused.problem(), (422, "INVALID", Some(field)), "{}", refused.body);
    }
    clock.advance(Duration::from_secs(8 * 24 * 60 * 60));
    assert_eq!(replay(&stage, fixed(8, 1), json!({})).await.body["tasks"], 0, "a week ago");
    assert_eq!(replay(&stage, fixed(8, 1), json!({"days": 30})).await.body["tasks"], 2);
}

/// Old logs have the HTTP status of a gRPC call beside its code, and it was always 200.
#[tokio::test]
async fn a_grpc_failure_is_replayed_and_shown_as_the_failure_it_was() {
    let (stage, clock) = empty().await;
    let task = json!({"targetUrl": "grpc://example.com/shop.Orders/Take", "policy": fixed(8, 10_000)});
    let id = stage.post("/retry-tasks", task).await.id();
    let evidence = |code: u16| json!({"phase": "ANSWERED", "status": 200, "grpcCode": code});
    for _ in 1..=2 {
        let job = stage.claim().await.pop().unwrap();
        stage.settle_with(&job, Verdict::Retry(Duration::from_secs(10)), "failed", &evidence(14)).await;
        clock.advance(Duration::from_secs(10));
    }
    let job = stage.claim().await.pop().unwrap();
    stage.settle_with(&job, Verdict::Complete(None), "done", &evidence(0)).await;

    let log = stage.get(&format!("/retry-tasks/{id}/attempts")).await.body;
    let shown: Vec<_> = log["items"].as_array().unwrap().iter().collect();
    let status = |at: usize| (&shown[at]["responseStatus"], &shown[at]["grpcStatus"]);
    assert_eq!(status(0), (&json!(14), &json!("UNAVAILABLE")), "{log}");
    assert_eq!(status(2), (&json!(0), &json!("OK")), "{log}");

    for (codes, replayed) in [
        (json!([14]), json!({"attempts": 3, "exhausted": 0, "succeeded": 1, "meanMsToSuccess": 20_036})),
        (json!([8]), json!({"attempts": 1, "exhausted": 1, "succeeded": 0})),
    ] {
        let mut policy = fixed(8, 10_000);
        policy["retryableGrpcCodes"] = codes;
        let shown = replay(&stage, policy, json!({})).await.body;
        assert_eq!(shown["replayed"], replayed, "{shown}");
    }
}

/// Evidence of attempts that failed although the answer began well.
#[tokio::test]
async fn an_answer_that_began_well_is_not_replayed_as_a_success() {
    let ok = json!({"phase": "ANSWERED", "status": 200});
    for outcome in ["failed", "timeout"] {
        let (stage, clock) = empty().await;
        let task = json!({"targetUrl": "http://example.com/", "policy": fixed(8, 10_000)});
        stage.post("/retry-tasks", task).await;
        let job = stage.claim().await.pop().unwrap();
        stage.settle_with(&job, Verdict::Retry(Duration::from_secs(10)), outcome, &ok).await;
        clock.advance(Duration::from_secs(10));
        let job = stage.claim().await.pop().unwrap();
        stage.settle_with(&job, Verdict::Complete(None), "done", &ok).await;
        let shown = replay(&stage, fixed(8, 10_000), json!({})).await.body;
        assert_eq!((&shown["replayed"]["attempts"], &shown["replayed"]["succeeded"]), (&json!(2), &json!(1)));
    }
}
