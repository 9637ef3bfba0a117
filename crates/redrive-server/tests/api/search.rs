//! Jobs are found by text, tenant and count, and dead letters in groups.

use redrive::{Redrive, Task};
use redrive_core::Verdict;
use redrive_core::{Reason, Timestamp};
use redrive_server::keys::Scope;
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

/// The ids on a page, by the name of their field.
async fn ids(stage: &Stage, path: &str, id: &str) -> Vec<String> {
    let page = stage.get(path).await;
    assert_eq!(page.status, 200, "{path}: {}", page.body);
    let items = page.body["items"].as_array().unwrap();
    items.iter().map(|item| item[id].as_str().unwrap().to_owned()).collect()
}

async fn task(stage: &Stage, target: &str, body: &str) -> String {
    let headers = json!({"authorization": "Bearer s3cret"});
    let task = json!({"targetUrl": target, "body": body, "headers": headers});
    stage.post("/retry-tasks", task).await.id().to_string()
}

#[tokio::test]
async fn jobs_are_found_by_a_text_in_what_they_hold() {
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
            ids(&stage, &format!("/jobs?{query}"), "jobId").await,
            found.into_iter().cloned().collect::<Vec<_>>(),
            "{query}"
        );
    }
    assert_eq!(ids(&stage, "/retry-tasks?text=order-7", "taskId").await, [call.as_str()]);
    let first = stage.get("/jobs?text=order-7&limit=1").await.body;
    assert!(first["lookedAt"].as_u64() >= Some(1), "{first}");
    let next = first["nextCursor"].as_str().expect("there is more");
    let rest = ids(&stage, &format!("/jobs?text=order-7&cursor={next}"), "jobId").await;
    assert_eq!(rest, [call]);
    let long = "x".repeat(257);
    let refused = stage.get(&format!("/jobs?text={long}")).await;
    assert_eq!(refused.problem(), (422, "INVALID", Some("text")));
}

#[tokio::test]
async fn a_key_without_a_tenant_may_look_at_one() {
    let stage = Stage::open().await;
    let library = Redrive::on(stage.store.clone());
    for tenant in ["", "acme", "acme", "shop"] {
        library.enqueue(Receipt { note: String::new() }).tenant(tenant).await.unwrap();
    }
    for (query, jobs) in [("?tenant=acme", 2), ("?tenant=", 1), ("?tenant=nobody", 0), ("", 4)] {
        assert_eq!(ids(&stage, &format!("/jobs{query}"), "jobId").await.len(), jobs, "{query}");
        assert_eq!(stage.get(&format!("/jobs/count{query}")).await.body["count"], jobs, "{query}");
    }
    let key = format!("Bearer {}", stage.key(Some("acme"), Scope::Read).await);
    for (path, status) in [
        ("/jobs?tenant=acme", 200),
        ("/jobs?tenant=shop", 403),
        ("/retry-tasks?tenant=shop", 403),
        ("/jobs/count?tenant=", 403),
    ] {
        let answer = stage.send("GET", path, None, &[("authorization", &key)]).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
    }
    let counted = stage.send("GET", "/jobs/count", None, &[("authorization", &key)]).await;
    assert_eq!(counted.body, json!({"count": 2, "atLeast": false}));
}

#[tokio::test]
async fn a_count_is_that_of_the_list() {
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
        ("?subject=http://a.example/", 3),
        ("?subject=http://a.example/1", 1),
        ("?text=order-7", 1),
        ("?finishedAfter=5", 3),
        ("?createdBefore=5", 0),
    ] {
        let counted = stage.get(&format!("/jobs/count{query}")).await.body;
        assert_eq!(counted, json!({"count": count, "atLeast": false}), "{query}");
    }
    assert_eq!(stage.get("/jobs/count?limit=1").await.problem(), (422, "INVALID", Some("limit")));
}

#[tokio::test]
async fn dead_letters_are_in_groups_by_reason_and_target() {
    let stage = Stage::open().await;
    let empty = stage.get("/dead-letters/groups").await.body;
    assert_eq!(empty, json!({"items": [], "lookedAt": 0, "complete": true}));
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
    let groups = stage.get("/dead-letters/groups").await.body;
    assert_eq!((&groups["lookedAt"].as_u64(), &groups["complete"]), (&Some(6), &json!(true)), "{groups}");
    let mut seen: Vec<(&Value, &Value, &Value, &Value)> = Vec::new();
    for group in groups["items"].as_array().unwrap() {
        assert_eq!(group["atLeast"], false);
        let (newest, oldest) = (group["newestAt"].as_i64().unwrap(), group["oldestAt"].as_i64().unwrap());
        assert!(newest >= oldest && oldest > Timestamp::default().as_ms(), "{group}");
        assert_eq!(group["example"]["finishedAt"], newest);
        assert_eq!(group["example"]["error"], "status 503");
        assert_eq!(
            stage.get(&format!("/jobs/{}", group["example"]["jobId"].as_str().unwrap())).await.status,
            200
        );
        seen.push((&group["reason"], &group["kind"], &group["target"], &group["count"]));
    }
    let (three, one) = (json!(3), json!(1));
    let (dead, exhausted) = (json!("NOT_RETRYABLE"), json!("ATTEMPTS_EXHAUSTED"));
    let (a, b) = (json!("http://a.example"), json!("http://b.example:81"));
    let (delivery, receipt) = (json!("delivery"), json!("receipt"));
    assert_eq!(seen[0], (&dead, &delivery, &a, &three), "the largest first");
    for group in
        [(&dead, &delivery, &b, &one), (&dead, &receipt, &receipt, &one), (&exhausted, &delivery, &a, &one)]
    {
        assert!(seen.contains(&group), "{group:?} is not in {seen:?}");
    }
    assert_eq!(seen.len(), 4);
    let key = format!("Bearer {}", stage.key(Some("acme"), Scope::Read).await);
    let theirs = stage.send("GET", "/dead-letters/groups", None, &[("authorization", &key)]).await;
    assert_eq!(theirs.body["items"], json!([]));
}
