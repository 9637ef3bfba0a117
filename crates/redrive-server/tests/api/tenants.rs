//! Isolation of tenants: a tenant tries the ids of another tenant on every route of the OpenAPI document, so that new routes are
//! covered too.

use redrive_wire::Scope;
use serde_json::{Value, json};

use crate::stage::Stage;

/// Routes that affect all tenants. A key that is bound to a tenant may not use them.
const SHARED: [&str; 16] = [
    "POST /v1/policies",
    "PUT /v1/policies/{policyId}",
    "DELETE /v1/policies/{policyId}",
    "GET /v1/origins",
    "GET /v1/origins/series",
    "GET /v1/nodes",
    "GET /v1/queues",
    "POST /v1/queues/{name}/pause",
    "POST /v1/queues/{name}/resume",
    "GET /v1/queues/{name}/limits",
    "PUT /v1/queues/{name}/limits",
    "DELETE /v1/queues/{name}/limits",
    "GET /metrics",
    "POST /v1/schedules/{name}/pause",
    "POST /v1/schedules/{name}/resume",
    "POST /v1/schedules/{name}/run-now",
];
/// Routes whose response is the same for every caller.
const SAME_FOR_ALL: [&str; 7] = [
    "GET /v1/policies",
    "GET /v1/policies/{policyId}",
    "POST /v1/policies/preview",
    "GET /healthz",
    "GET /readyz",
    "GET /openapi.json",
    "GET /docs",
];
/// Routes that create a name within the tenant. Another tenant can use the same name for something else.
const OWN_NAMESPACE: [&str; 1] = ["PUT /v1/signing-secrets/{name}"];
/// Routes that act on the session of the request. They return 404 to a request with a key.
const SESSION_ONLY: [&str; 1] = ["DELETE /v1/sessions/current"];
/// Streams without an end.
const ENDLESS: [&str; 1] = ["GET /v1/events"];

/// The ids of everything that a tenant owns.
struct Owned {
    task: String,
    key_id: String,
    operation: String,
    secret: String,
    body_ref: String,
}

/// Creates one of each thing that a tenant can own.
async fn create_owned(stage: &Stage, key: &str) -> Owned {
    let send = async |method: &str, path: &str, body: Option<Value>| {
        let answer = stage.send(method, path, body, &[("authorization", key)]).await;
        assert!(answer.status < 300, "{method} {path}: {}", answer.body);
        answer.body
    };
    let task = send("POST", "/v1/tasks", Some(json!({"target": "http://mine.example/"}))).await;
    let made = send("POST", "/v1/keys", Some(json!({"name": "mine"}))).await;
    let operation = send("POST", "/v1/operations", Some(json!({"kind": "redrive"}))).await;
    send("PUT", "/v1/signing-secrets/owned-secret", Some(json!({}))).await;
    let body = send("PUT", "/v1/bodies", None).await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    Owned {
        task: text(&task["taskId"]),
        key_id: text(&made["keyId"]),
        operation: text(&operation["operationId"]),
        secret: "owned-secret".into(),
        body_ref: text(&body["bodyRef"]),
    }
}

#[tokio::test]
async fn a_tenant_can_neither_see_nor_change_anything_of_another() {
    let stage = Stage::open().await;
    let admin = async |tenant| format!("Bearer {}", stage.key(Some(tenant), Scope::Admin).await);
    let (ours, theirs) = (admin("ours").await, admin("theirs").await);
    let owned = create_owned(&stage, &ours).await;
    let secrets = [&owned.task, &owned.key_id, &owned.operation, &owned.secret, &owned.body_ref];
    let document = stage.get("/openapi.json").await.body;
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            let route = format!("{method} {path}");
            if ENDLESS.contains(&route.as_str()) {
                continue;
            }
            tried += 1;
            let own_name = OWN_NAMESPACE.contains(&route.as_str());
            let name = if path.starts_with("/v1/queues") { "default" } else { &owned.secret };
            let real = path
                .replace("{taskId}", &owned.task)
                .replace("{jobId}", &owned.task)
                .replace("{keyId}", &owned.key_id)
                .replace("{operationId}", &owned.operation)
                .replace("{policyId}", "default")
                .replace("{name}", if own_name { "another" } else { name });
            assert!(!real.contains('{'), "{route} has a parameter that this test does not know");
            let body = body_of(&route, &owned);
            let real = if route == "GET /v1/origins/series" { format!("{real}?origin=x") } else { real };
            let answer = stage.send(&method, &real, body, &[("authorization", &theirs)]).await;
            let shown = answer.body.to_string();
            if SHARED.contains(&route.as_str()) {
                assert_eq!(answer.status, 403, "{route}: {shown}");
            } else if SAME_FOR_ALL.contains(&route.as_str()) || own_name {
                assert!(answer.status < 300, "{route}: {shown}");
            } else if path.contains('{') || SESSION_ONLY.contains(&route.as_str()) {
                assert_eq!(answer.status, 404, "{route}: {shown}");
            } else if route == "POST /v1/tasks" {
                assert_eq!(
                    answer.problem(),
                    (422, "unknown_body", Some("bodyRef")),
                    "a body of another tenant"
                );
            } else {
                assert!(answer.status < 300, "{route}: {shown}");
                let leaked =
                    secrets.iter().filter(|_| method == "GET").find(|id| shown.contains(id.as_str()));
                assert_eq!(leaked, None, "{route} shows an id of another tenant: {shown}");
            }
        }
    }
    assert!(tried > 30, "only {tried} routes were tried");
    for path in [format!("/v1/tasks/{}", owned.task), format!("/v1/operations/{}", owned.operation)] {
        let still = stage.send("GET", &path, None, &[("authorization", &ours)]).await;
        assert_eq!(still.status, 200, "{path} still exists");
        assert_ne!(still.body["state"], "cancelled");
    }
    let keys = stage.send("GET", "/v1/keys", None, &[("authorization", &ours)]).await.body;
    assert!(keys.to_string().contains(&owned.key_id));
    let secrets = stage.send("GET", "/v1/signing-secrets", None, &[("authorization", &ours)]).await.body;
    assert!(secrets.to_string().contains("owned-secret"));
}

/// A list ends after a bounded number of examined jobs, which includes the jobs of other tenants. The response must not reveal it.
#[tokio::test]
async fn responses_do_not_reveal_how_many_jobs_other_tenants_have() {
    let (quiet, busy) = (Stage::open().await, Stage::open().await);
    let mut responses = Vec::new();
    for (stage, others) in [(&quiet, 0), (&busy, 300)] {
        let ours = format!("Bearer {}", stage.key(Some("ours"), Scope::Read).await);
        let admin = format!("Bearer {}", stage.key(None, Scope::Admin).await);
        let create = async |tenant: &str, count: usize| {
            let items = vec![json!({"target": "http://x.example/", "body": "needle"}); count.max(1)];
            let headers = [("authorization", admin.as_str()), ("redrive-tenant", tenant)];
            let answer = stage.send("POST", "/v1/tasks/batch", Some(json!({"items": items})), &headers).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            answer.body["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["task"]["taskId"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        create("ours", 3).await;
        let theirs = if others > 0 { create("theirs", others).await } else { Vec::new() };
        create("ours", 2).await;
        let mut numbers = Vec::new();
        for path in [
            "/v1/tasks?limit=3",
            "/v1/jobs?limit=3",
            "/v1/jobs?state=pending&limit=3",
            "/v1/jobs?state=dead",
            "/v1/jobs?text=http",
            "/v1/jobs/count",
            "/v1/jobs/count?text=http",
            "/v1/dead-letters",
            "/v1/dead-letters/groups",
        ] {
            let answer = stage.send("GET", path, None, &[("authorization", &ours)]).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            let shown = answer.body.to_string();
            let leaked = theirs
                .iter()
                .find(|id| shown.contains(id.replace('-', "").as_str()) || shown.contains(id.as_str()));
            assert_eq!(leaked, None, "{path} names a job of another tenant: {shown}");
            let body = &answer.body;
            numbers.push((
                path,
                body["examined"].clone(),
                body["count"].clone(),
                body["items"].as_array().map(Vec::len),
            ));
            if let Some(cursor) = body["nextCursor"].as_str() {
                let rest = stage
                    .send("GET", &format!("{path}&cursor={cursor}"), None, &[("authorization", &ours)])
                    .await;
                assert_eq!(rest.body["items"].as_array().map(Vec::len), Some(2), "{path}: {}", rest.body);
            }
        }
        responses.push(numbers);
    }
    assert_eq!(responses[0], responses[1], "a response depends on the number of jobs of other tenants");
}

/// A search may stop at a job of another tenant. The cursor must not contain the id of that job.
#[tokio::test]
async fn a_cursor_does_not_name_the_job_of_another_tenant() {
    let stage = Stage::open().await;
    let ours = format!("Bearer {}", stage.key(Some("ours"), Scope::Read).await);
    let theirs = format!("Bearer {}", stage.key(Some("theirs"), Scope::Write).await);
    let items = vec![json!({"target": "http://x.example/"}); 1000];
    let mut ids = Vec::new();
    for _ in 0..3 {
        let body = Some(json!({"items": items}));
        let made = stage.send("POST", "/v1/tasks/batch", body, &[("authorization", &theirs)]).await.body;
        let made = made["items"].as_array().unwrap().iter();
        ids.extend(made.map(|item| item["task"]["taskId"].as_str().unwrap().replace('-', "")));
    }
    let mut path = "/v1/jobs?limit=5".to_owned();
    for _ in 0..50 {
        let page = stage.send("GET", &path, None, &[("authorization", &ours)]).await.body;
        assert_eq!((&page["items"], &page["examined"]), (&json!([]), &json!(0)), "{page}");
        let shown = page.to_string();
        assert!(!ids.iter().any(|id| shown.contains(id.as_str())), "{shown}");
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/v1/jobs?limit=5&cursor={cursor}"),
            None => return,
        }
    }
    panic!("the list does not end");
}

fn body_of(route: &str, owned: &Owned) -> Option<Value> {
    match route {
        "POST /v1/tasks" => Some(json!({"target": "http://x.example/", "bodyRef": owned.body_ref})),
        "POST /v1/tasks/batch" => Some(json!({"items": [{"target": "http://x.example/"}]})),
        "POST /v1/jobs/{jobId}/signals" => Some(json!({"name": "x"})),
        "POST /v1/keys" => Some(json!({"name": "theirs"})),
        "POST /v1/policies/replay" => Some(json!({"policy": {}})),
        "POST /v1/operations" => Some(json!({"kind": "cancel"})),
        "POST /v1/policies" => Some(json!({"policyId": "p"})),
        route if route.starts_with("GET") || route.starts_with("DELETE") => None,
        _ => Some(json!({})),
    }
}
