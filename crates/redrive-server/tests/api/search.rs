//! Searches for jobs by text and tenant, counts of jobs, and groups of dead letters.

use redrive::{Redrive, Task};
use redrive_core::Verdict;
use redrive_core::{Reason, Timestamp};
use redrive_wire::Scope;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::stage::Stage;

#[derive(Serialize, Deserialize)]
struct Receipt {
    note: String,
}

impl Task for Receipt {
    const KIND: &'static str = "receipt";
    type Output = ();
}

/// The ids on a page; `field` is the name of the field with the id.
async fn ids(stage: &Stage, path: &str, field: &str) -> Vec<String> {
    let page = stage.get(path).await;
    assert_eq!(page.status, 200, "{path}: {}", page.body);
    let items = page.body["items"].as_array().unwrap();
    items.iter().map(|item| item[field].as_str().unwrap().to_owned()).collect()
}

async fn task(stage: &Stage, target: &str, body: &str) -> String {
    let headers = json!({"authorization": "Bearer s3cret"});
    let task = json!({"target": target, "body": body, "headers": headers});
    stage.post("/v1/tasks", task).await.id().to_string()
}

#[tokio::test]
async fn jobs_are_found_by_text_in_their_payload_metadata_error_or_target() {
    let stage = Stage::open().await;
    let call = task(&stage, "http://a.example/hook", "Order-7, please").await;
    let failed = task(&stage, "http://b.example/", "").await;
    for job in stage.claim().await {
        if job.id.to_string() == failed {
            stage.settle(&job, Verdict::DeadLetter(Reason::NotRetryable)).await;
        }
    }
    let library = Redrive::on(stage.store.clone());
    let receipt = library.enqueue(Receipt { note: "for ORDER-7".into() }).metadata("from the shop").await;
    let receipt = receipt.unwrap().id().to_string();
    for (query, found) in [
        ("text=order-7", vec![&receipt, &call]),
        ("text=order-7&kind=delivery", vec![&call]),
        ("text=FROM%20THE", vec![&receipt]),
        ("text=status%20503", vec![&failed]),
        ("text=b.example", vec![&failed]),
        ("text=s3cret", vec![]),
        ("text=order-7&limit=1", vec![&receipt]),
        ("text=", vec![&receipt, &failed, &call]),
    ] {
        assert_eq!(
            ids(&stage, &format!("/v1/jobs?{query}"), "jobId").await,
            found.into_iter().cloned().collect::<Vec<_>>(),
            "{query}"
        );
    }
    assert_eq!(ids(&stage, "/v1/tasks?text=order-7", "taskId").await, [call.as_str()]);
    let first = stage.get("/v1/jobs?text=order-7&limit=1").await.body;
    assert!(first["examined"].as_u64() >= Some(1), "{first}");
    let next = first["nextCursor"].as_str().expect("there is more");
    let rest = ids(&stage, &format!("/v1/jobs?text=order-7&cursor={next}"), "jobId").await;
    assert_eq!(rest, [call]);
    let long = "x".repeat(257);
    let refused = stage.get(&format!("/v1/jobs?text={long}")).await;
    assert_eq!(refused.problem(), (422, "invalid", Some("text")));
}

#[tokio::test]
async fn an_unbound_key_can_filter_by_tenant() {
    let stage = Stage::open().await;
    let library = Redrive::on(stage.store.clone());
    for tenant in ["", "acme", "acme", "shop"] {
        library.enqueue(Receipt { note: String::new() }).tenant(tenant).await.unwrap();
    }
    for (query, jobs) in [("?tenant=acme", 2), ("?tenant=", 1), ("?tenant=nobody", 0), ("", 4)] {
        assert_eq!(ids(&stage, &format!("/v1/jobs{query}"), "jobId").await.len(), jobs, "{query}");
        assert_eq!(stage.get(&format!("/v1/jobs/count{query}")).await.body["count"], jobs, "{query}");
    }
    let key = format!("Bearer {}", stage.key(Some("acme"), Scope::Read).await);
    for (path, status) in [
        ("/v1/jobs?tenant=acme", 200),
        ("/v1/jobs?tenant=shop", 403),
        ("/v1/tasks?tenant=shop", 403),
        ("/v1/jobs/count?tenant=", 403),
    ] {
        let answer = stage.send("GET", path, None, &[("authorization", &key)]).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
    }
    let counted = stage.send("GET", "/v1/jobs/count", None, &[("authorization", &key)]).await;
    assert_eq!(counted.body, json!({"count": 2, "atLeast": false}));
}

#[tokio::test]
async fn a_count_takes_the_same_filters_as_the_list() {
    let stage = Stage::open().await;
    for n in 0..3 {
        task(&stage, &format!("http://a.example/{n}"), "x").await;
    }
    stage.kill().await;
    task(&stage, "http://b.example/", "order-7").await;
    for (query, count) in [
        ("", 4),
        ("?state=dead", 3),
        ("?state=dead&queue=default", 3),
        ("?queue=mail", 0),
        ("?kind=delivery", 4),
        ("?kind=delivery&state=pending", 1),
        ("?target=http://a.example/", 3),
        ("?target=http://a.example/1", 1),
        ("?text=order-7", 1),
        ("?finishedAfter=5", 3),
        ("?createdBefore=5", 0),
    ] {
        let counted = stage.get(&format!("/v1/jobs/count{query}")).await.body;
        assert_eq!(counted, json!({"count": count, "atLeast": false}), "{query}");
    }
    assert_eq!(stage.get("/v1/jobs/count?limit=1").await.problem(), (422, "invalid", Some("limit")));
}

/// Checks which groups each filter selects, by their counts.
async fn check_filters_of_groups(stage: &Stage) {
    for (query, expected) in [
        ("reason=attempts_exhausted", vec![1]),
        ("kind=receipt", vec![1]),
        ("kind=delivery", vec![1, 1, 3]),
        ("target=http://a.example/", vec![1, 3]),
        ("target=http://a.example/d", vec![1]),
        ("state=dead&reason=not_retryable&kind=delivery", vec![1, 3]),
        ("state=pending", vec![]),
        ("text=status", vec![1, 1, 1, 3]),
        ("text=nothing+like+it", vec![]),
        ("queue=other", vec![]),
        ("finishedBefore=5", vec![]),
    ] {
        let found = stage.get(&format!("/v1/dead-letters/groups?{query}")).await.body;
        let items = found["items"].as_array().unwrap();
        let mut counts: Vec<u64> = items.iter().map(|group| group["count"].as_u64().unwrap()).collect();
        counts.sort_unstable();
        assert_eq!(counts, expected, "{query}: {found}");
    }
}

#[tokio::test]
async fn dead_letters_are_grouped_by_reason_kind_and_target() {
    let stage = Stage::open().await;
    let empty = stage.get("/v1/dead-letters/groups").await.body;
    assert_eq!(empty, json!({"items": [], "nextCursor": null, "examined": 0, "complete": true}));
    for path in ["a", "b", "c"] {
        task(&stage, &format!("http://a.example/{path}"), "").await;
    }
    stage.kill().await;
    task(&stage, "http://a.example/d", "").await;
    for job in stage.claim().await {
        stage.settle(&job, Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
    }
    let library = Redrive::on(stage.store.clone());
    library.enqueue(Receipt { note: String::new() }).await.unwrap();
    task(&stage, "http://b.example:81/", "").await;
    stage.kill().await;
    let groups = stage.get("/v1/dead-letters/groups").await.body;
    assert_eq!((&groups["examined"].as_u64(), &groups["complete"]), (&Some(6), &json!(true)), "{groups}");
    let mut found: Vec<(&Value, &Value, &Value, &Value)> = Vec::new();
    for group in groups["items"].as_array().unwrap() {
        assert_eq!(group["atLeast"], false);
        let (newest, oldest) = (group["newestAt"].as_i64().unwrap(), group["oldestAt"].as_i64().unwrap());
        assert!(newest >= oldest && oldest > Timestamp::default().as_ms(), "{group}");
        assert_eq!(group["example"]["finishedAt"], newest);
        assert_eq!(group["example"]["error"], "status 503");
        assert_eq!(
            stage.get(&format!("/v1/jobs/{}", group["example"]["jobId"].as_str().unwrap())).await.status,
            200
        );
        found.push((&group["reason"], &group["kind"], &group["target"], &group["count"]));
    }
    let (three, one) = (json!(3), json!(1));
    let (dead, exhausted) = (json!("not_retryable"), json!("attempts_exhausted"));
    let (a, b) = (json!("http://a.example"), json!("http://b.example:81"));
    let (delivery, receipt) = (json!("delivery"), json!("receipt"));
    for group in [
        (&dead, &delivery, &a, &three),
        (&dead, &delivery, &b, &one),
        (&dead, &receipt, &receipt, &one),
        (&exhausted, &delivery, &a, &one),
    ] {
        assert!(found.contains(&group), "{group:?} is not in {found:?}");
    }
    assert_eq!(found.len(), 4);
    check_filters_of_groups(&stage).await;
    let refused = stage.get("/v1/dead-letters/groups?other=1").await;
    assert_eq!(refused.problem(), (422, "invalid", Some("other")));
    let key = format!("Bearer {}", stage.key(Some("acme"), Scope::Read).await);
    let theirs = stage.send("GET", "/v1/dead-letters/groups", None, &[("authorization", &key)]).await;
    assert_eq!(theirs.body["items"], json!([]));
}
