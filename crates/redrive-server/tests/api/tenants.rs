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
/// Routes that act on what the request itself is sent with, and not with a key.
const OF_THE_REQUEST: [&str; 1] = ["DELETE /sessions/current"];
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
            } else if path.contains('{') || OF_THE_REQUEST.contains(&route.as_str()) {
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

/// A list stops after so many jobs that it looked at, whoever they belong to; none of that may show.
#[tokio::test]
async fn a_tenant_learns_nothing_of_how_many_jobs_others_have() {
    let (quiet, busy) = (Stage::open().await, Stage::open().await);
    let mut seen = Vec::new();
    for (stage, others) in [(&quiet, 0), (&busy, 300)] {
        let ours = format!("Bearer {}", stage.key(Some("ours"), Scope::Read).await);
        let admin = format!("Bearer {}", stage.key(None, Scope::Admin).await);
        let create = async |tenant: &str, count: usize| {
            let items = vec![json!({"targetUrl": "http://x.example/", "body": "needle"}); count.max(1)];
            let headers = [("authorization", admin.as_str()), ("redrive-tenant", tenant)];
            let answer =
                stage.send("POST", "/retry-tasks/batch", Some(json!({"items": items})), &headers).await;
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
            "/retry-tasks?limit=3",
            "/jobs?limit=3",
            "/jobs?state=pending&limit=3",
            "/jobs?state=dead",
            "/jobs?text=http",
            "/jobs/count",
            "/jobs/count?text=http",
            "/dead-letters",
            "/dead-letters/groups",
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
                body["lookedAt"].clone(),
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
        seen.push(numbers);
    }
    assert_eq!(seen[0], seen[1], "what a tenant is shown depends on how many jobs others have");
}

/// A look may stop at another tenant's job: its id must not be the cursor.
#[tokio::test]
async fn a_cursor_does_not_name_the_job_of_another_tenant() {
    let stage = Stage::open().await;
    let ours = format!("Bearer {}", stage.key(Some("ours"), Scope::Read).await);
    let theirs = format!("Bearer {}", stage.key(Some("theirs"), Scope::Write).await);
    let items = vec![json!({"targetUrl": "http://x.example/"}); 1000];
    let mut ids = Vec::new();
    for _ in 0..3 {
        let body = Some(json!({"items": items}));
        let made = stage.send("POST", "/retry-tasks/batch", body, &[("authorization", &theirs)]).await.body;
        let made = made["items"].as_array().unwrap().iter();
        ids.extend(made.map(|item| item["task"]["taskId"].as_str().unwrap().replace('-', "")));
    }
    let mut path = "/jobs?limit=5".to_owned();
    for _ in 0..50 {
        let page = stage.send("GET", &path, None, &[("authorization", &ours)]).await.body;
        assert_eq!((&page["items"], &page["lookedAt"]), (&json!([]), &json!(0)), "{page}");
        let shown = page.to_string();
        assert!(!ids.iter().any(|id| shown.contains(id.as_str())), "{shown}");
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/jobs?limit=5&cursor={cursor}"),
            None => return,
        }
    }
    panic!("the list does not end");
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
