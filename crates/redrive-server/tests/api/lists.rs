//! Lists: each has pages with the same parameters and the same envelope. It is sorted by time, newest first, or by name.

use std::time::Duration;

use redrive::{Redrive, Schedule, Task};
use redrive_core::{Reason, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::stage::Stage;

#[derive(Serialize, Deserialize)]
struct Report;

impl Task for Report {
    const KIND: &'static str = "report";
    type Output = ();
}

/// The schema that a reference leads to, or the schema itself.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

#[tokio::test]
async fn every_list_in_the_document_has_pages() {
    let stage = Stage::open().await;
    let document = stage.get("/openapi.json").await.body;
    let mut lists = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let schema = &item["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        let fields = &resolved(&document, schema)["properties"];
        if fields["items"].is_null() {
            continue;
        }
        assert!(!fields["nextCursor"].is_null(), "{path} has no nextCursor");
        let parameters = item["get"]["parameters"].as_array().unwrap();
        for name in ["limit", "cursor"] {
            let is_there = parameters.iter().any(|one| one["in"] == "query" && one["name"] == name);
            assert!(is_there, "{path} has no {name}");
        }
        lists.push(path.as_str());
    }
    for path in
        ["/v1/tasks", "/v1/queues", "/v1/schedules", "/v1/origins", "/v1/nodes", "/v1/signing-secrets"]
    {
        assert!(lists.contains(&path), "{path} is not among the lists: {lists:?}");
    }
    for path in lists.iter().filter(|path| !path.contains('{')) {
        let refused = stage.get(&format!("{path}?limit=0")).await;
        assert_eq!(refused.problem(), (422, "invalid", Some("limit")), "{path}");
        let refused = stage.get(&format!("{path}?cursor=%25")).await;
        assert_eq!(refused.problem(), (422, "invalid", Some("cursor")), "{path}");
    }
}

/// The values of `field`, page by page with one item each.
async fn page_by_page(stage: &Stage, path: &str, field: &str) -> Vec<Value> {
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = stage.get(&format!("{path}?limit=1{cursor}")).await;
        assert_eq!(page.status, 200, "{}", page.body);
        let items = page.body["items"].as_array().unwrap();
        assert!(items.len() <= 1, "{}", page.body);
        seen.extend(items.iter().map(|item| item[field].clone()));
        match page.body["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return seen,
        }
    }
}

async fn check(stage: &Stage, path: &str, field: &str, expected: Value) {
    assert_eq!(Value::from(page_by_page(stage, path, field).await), expected, "{path}");
}

#[tokio::test]
async fn things_without_a_time_are_listed_by_name() {
    let stage = Stage::open().await;
    let library = Redrive::on(stage.store.clone());
    for name in ["b", "c", "a"] {
        let hourly = Schedule::every(Duration::from_secs(3_600)).unwrap();
        library.schedule(name, hourly, Report).await.unwrap();
        assert_eq!(stage.post(&format!("/v1/queues/{name}/pause"), json!({})).await.status, 204);
        stage.block_gate(&format!("http://{name}.example:80"));
        assert_eq!(stage.post("/v1/policies", json!({"policyId": name})).await.status, 201);
    }
    check(&stage, "/v1/schedules", "name", json!(["a", "b", "c"])).await;
    check(&stage, "/v1/queues", "name", json!(["a", "b", "c"])).await;
    check(&stage, "/v1/policies", "policyId", json!(["a", "b", "c", "default"])).await;
    let origins = json!(["http://a.example:80", "http://b.example:80", "http://c.example:80"]);
    check(&stage, "/v1/origins", "origin", origins).await;
}

#[tokio::test]
async fn things_with_a_time_are_listed_with_the_newest_first() {
    let stage = Stage::open().await;
    let mut keys = Vec::new();
    for name in ["b", "c", "a"] {
        stage.put(&format!("/v1/signing-secrets/{name}"), json!({})).await;
        // The lists order by the millisecond.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    check(&stage, "/v1/signing-secrets", "name", json!(["a", "c", "b"])).await;
    let mut operations = Vec::new();
    for _ in 0..3 {
        let begun = stage.post("/v1/operations", json!({"kind": "redrive"})).await.body;
        operations.insert(0, begun["operationId"].clone());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    check(&stage, "/v1/operations", "operationId", operations.into()).await;
    let admin = stage.post("/v1/keys", json!({"name": "1", "scope": "admin"})).await.body;
    let authorization = format!("Bearer {}", admin["key"].as_str().unwrap());
    let headers = [("authorization", authorization.as_str())];
    for name in ["2", "3"] {
        tokio::time::sleep(Duration::from_millis(2)).await;
        stage.send("POST", "/v1/keys", Some(json!({"name": name})), &headers).await;
    }
    let mut cursor = String::new();
    for _ in 0..3 {
        let page = stage.send("GET", &format!("/v1/keys?limit=1{cursor}"), None, &headers).await.body;
        keys.push(page["items"][0]["name"].clone());
        cursor = format!("&cursor={}", page["nextCursor"].as_str().unwrap_or_default());
    }
    assert_eq!(keys, ["3", "2", "1"]);
}

#[tokio::test]
async fn the_group_with_the_newest_dead_letter_comes_first() {
    let stage = Stage::open().await;
    for host in ["b", "a", "c"] {
        stage.post("/v1/tasks", json!({"target": format!("http://{host}.example/")})).await;
        for job in stage.claim().await {
            stage.settle(&job, Verdict::DeadLetter(Reason::NotRetryable)).await;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let expected = json!(["http://c.example", "http://a.example", "http://b.example"]);
    check(&stage, "/v1/dead-letters/groups", "target", expected).await;
}

#[tokio::test]
async fn nodes_have_pages() {
    let stage = Stage::open().await;
    stage.post("/v1/tasks", json!({"target": "http://a.example/"})).await;
    stage.claim().await;
    let whole = stage.get("/v1/nodes").await.body;
    let names: Vec<Value> =
        whole["items"].as_array().unwrap().iter().map(|node| node["name"].clone()).collect();
    assert!(!names.is_empty(), "{whole}");
    check(&stage, "/v1/nodes", "name", names.into()).await;
}
