//! Two tenants try each other's ids on every route that the document lists, so that a new route cannot be forgotten.

use redrive_server::keys::Scope;
use serde_json::{Value, json};

use crate::stage::Stage;

/// Routes that all tenants share: a bound key may not use them.
const SHARED: [&str; 15] = [
    "POST /retry-policies",
    "PUT /retry-policies/{policyId}",
    "DELETE /retry-policies/{policyId}",
    "GET /origins",
    "GET /origins/series",
    "GET /nodes",
    "GET /queues",
    "POST /queues/{name}/pause",
    "POST /queues/{name}/resume",
    "PUT /queues/{name}/quota",
    "DELETE /queues/{name}/quota",
    "GET /metrics",
    "POST /schedules/{name}/pause",
    "POST /schedules/{name}/resume",
    "POST /schedules/{name}/run-now",
];
/// Routes whose answer is the same for everyone.
const SAME_FOR_ALL: [&str; 7] = [
    "GET /retry-policies",
    "GET /retry-policies/{policyId}",
    "POST /retry-policies/preview",
    "GET /healthz",
    "GET /readyz",
    "GET /openapi.json",
    "GET /docs",
];
/// Routes that make a name of their own: the same name of another tenant is another thing.
const OWN_NAMESPACE: [&str; 1] = ["PUT /signing-secrets/{name}"];
/// Streams without an end.
const ENDLESS: [&str; 1] = ["GET /events"];

struct Owned {
    task: String,
    key_id: String,
    operation: String,
    secret: String,
    body_ref: String,
}

async fn own(stage: &Stage, key: &str) -> Owned {
    let send = async |method: &str, path: &str, body: Option<Value>| {
        let answer = stage.send(method, path, body, &[("authorization", key)]).await;
        assert!(answer.status < 300, "{method} {path}: {}", answer.body);
        answer.body
    };
    let task = send("POST", "/retry-tasks", Some(json!({"targetUrl": "http://mine.example/"}))).await;
    let made = send("POST", "/keys", Some(json!({"name": "mine"}))).await;
    let operation = send("POST", "/dead-letters/redrive", Some(json!({}))).await;
    send("PUT", "/signing-secrets/mine", Some(json!({}))).await;
    let body = send("PUT", "/bodies", None).await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    Owned {
        task: text(&task["taskId"]),
        key_id: text(&made["keyId"]),
        operation: text(&operation["operationId"]),
        secret: "mine".into(),
        body_ref: text(&body["bodyRef"]),
    }
}

#[tokio::test]
async fn nobody_sees_or_touches_what_is_anothers() {
    let stage = Stage::open().await;
    let admin = async |tenant| format!("Bearer {}", stage.key(Some(tenant), Scope::Admin).await);
    let (ours, theirs) = (admin("ours").await, admin("theirs").await);
    let owned = own(&stage, &ours).await;
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
            let name = if path.starts_with("/queues") { "default" } else { &owned.secret };
            let real = path
                .replace("{taskId}", &owned.task)
                .replace("{jobId}", &owned.task)
                .replace("{keyId}", &owned.key_id)
                .replace("{operationId}", &owned.operation)
                .replace("{policyId}", "default")
                .replace("{name}", if own_name { "another" } else { name });
            assert!(!real.contains('{'), "{route} has a parameter that this test does not know");
            let body = body_of(&route, &owned);
            let real = if route == "GET /origins/series" { format!("{real}?origin=x") } else { real };
            let answer = stage.send(&method, &real, body, &[("authorization", &theirs)]).await;
            let shown = answer.body.to_string();
            if SHARED.contains(&route.as_str()) {
                assert_eq!(answer.status, 403, "{route}: {shown}");
            } else if SAME_FOR_ALL.contains(&route.as_str()) || own_name {
                assert!(answer.status < 300, "{route}: {shown}");
            } else if path.contains('{') {
                assert_eq!(answer.status, 404, "{route}: {shown}");
            } else if route == "POST /retry-tasks" {
                assert_eq!(answer.problem(), (422, "UNKNOWN_BODY", Some("bodyRef")), "another's body");
            } else {
                assert!(answer.status < 300, "{route}: {shown}");
                let leaked =
                    secrets.iter().filter(|_| method == "GET").find(|id| shown.contains(id.as_str()));
                assert_eq!(leaked, None, "{route} shows what is another's: {shown}");
            }
        }
    }
    assert!(tried > 30, "only {tried} routes were tried");
    for path in [format!("/retry-tasks/{}", owned.task), format!("/operations/{}", owned.operation)] {
        let still = stage.send("GET", &path, None, &[("authorization", &ours)]).await;
        assert_eq!(still.status, 200, "{path} is as it was");
        assert_ne!(still.body["status"], "CANCELLED");
        assert_ne!(still.body["state"], "STOPPED");
    }
    let keys = stage.send("GET", "/keys", None, &[("authorization", &ours)]).await.body;
    assert!(keys.to_string().contains(&owned.key_id));
    let secrets = stage.send("GET", "/signing-secrets", None, &[("authorization", &ours)]).await.body;
    assert!(secrets.to_string().contains("mine"));
}

fn body_of(route: &str, owned: &Owned) -> Option<Value> {
    match route {
        "POST /retry-tasks" => Some(json!({"targetUrl": "http://x.example/", "bodyRef": owned.body_ref})),
        "POST /retry-tasks/batch" => Some(json!({"items": [{"targetUrl": "http://x.example/"}]})),
        "POST /jobs/{jobId}/signals" => Some(json!({"name": "x"})),
        "POST /keys" => Some(json!({"name": "theirs"})),
        "POST /retry-policies/replay" => Some(json!({"policy": {}})),
        "POST /operations" => Some(json!({"kind": "CANCEL"})),
        "POST /retry-policies" => Some(json!({"policyId": "p"})),
        route if route.starts_with("GET") || route.starts_with("DELETE") => None,
        _ => Some(json!({})),
    }
}
