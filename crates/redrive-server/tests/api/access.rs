//! API keys: their scopes and tenants, and the protection of a service without keys.

use redrive_server::Access;
use redrive_wire::Scope;
use serde_json::{Value, json};
use std::sync::Arc;

use crate::stage::Stage;

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

#[tokio::test]
async fn the_first_key_closes_the_service_and_a_revocation_takes_effect_at_once() {
    let stage = Stage::open().await;
    assert_eq!(stage.get("/v1/tasks").await.status, 200);
    let made = stage.post("/v1/keys", json!({"name": "ops", "scope": "admin"})).await;
    assert_eq!(made.status, 201);
    let key = made.body["key"].as_str().unwrap().to_owned();
    let refused = stage.get("/v1/tasks").await;
    assert_eq!(refused.problem(), (401, "unauthenticated", None));
    assert!(refused.header("www-authenticate").unwrap().starts_with("Bearer"));
    let with = async |name: &str, value: &str| stage.send("GET", "/v1/keys", None, &[(name, value)]).await;
    let listed = with("authorization", &bearer(&key)).await;
    assert_eq!(listed.status, 200);
    assert_eq!(listed.body["items"][0]["key"], json!(null), "the key is shown only when it is created");
    assert_eq!(with("x-api-key", &key).await.status, 200);
    for wrong in ["Basic x", "Bearer", "Bearer rdk_0123456789abcdef_x", "x"] {
        assert_eq!(with("authorization", wrong).await.status, 401, "{wrong}");
    }
    let second = stage.key(None, Scope::Admin).await;
    let path = format!("/v1/keys/{}", made.body["keyId"].as_str().unwrap());
    let by_second = bearer(&second);
    let revoked = stage.send("DELETE", &path, None, &[("authorization", &by_second)]).await;
    assert_eq!(revoked.status, 204);
    assert_eq!(with("authorization", &bearer(&key)).await.status, 401);
}

#[tokio::test]
async fn a_route_accepts_its_scope_and_higher_ones_only() {
    let stage =
        Stage::on(Arc::new(redrive_store_sqlite::SqliteStore::open_in_memory().unwrap()), Access::KeysOnly)
            .await;
    assert_eq!(
        stage.get("/v1/tasks").await.status,
        401,
        "a service that accepts only keys is closed before the first key"
    );
    for path in ["/healthz", "/readyz", "/openapi.json", "/docs"] {
        assert_eq!(stage.get(path).await.status, 200, "{path}");
    }
    let task = json!({"target": "http://example.com/"});
    for (method, path, body, needs) in [
        ("GET", "/v1/tasks", None, Scope::Read),
        ("GET", "/metrics", None, Scope::Read),
        ("POST", "/v1/policies/preview", Some(json!({})), Scope::Read),
        ("POST", "/v1/tasks", Some(task), Scope::Write),
        ("POST", "/v1/policies", Some(json!({"policyId": "p"})), Scope::Admin),
        ("GET", "/v1/keys", None, Scope::Admin),
        ("GET", "/v1/signing-secrets", None, Scope::Admin),
        ("POST", "/v1/operations", Some(json!({"kind": "redrive", "dryRun": true})), Scope::Admin),
        ("POST", "/v1/queues/default/pause", None, Scope::Admin),
    ] {
        for scope in Scope::ALL {
            let key = bearer(&stage.key(None, scope).await);
            let answer = stage.send(method, path, body.clone(), &[("authorization", &key)]).await;
            if scope >= needs {
                assert!(answer.status < 300, "{method} {path} as {scope}: {}", answer.body);
            } else {
                assert_eq!(answer.problem(), (403, "forbidden", None), "{method} {path} as {scope}");
            }
        }
    }
}

#[tokio::test]
async fn an_unbound_key_creates_for_the_tenant_in_the_header() {
    let stage = Stage::open().await;
    let unbound = bearer(&stage.key(None, Scope::Write).await);
    let bound = bearer(&stage.key(Some("acme"), Scope::Write).await);
    let task = json!({"target": "http://example.com/"});
    let create = async |key: &str, tenant: &str| {
        let headers = [("authorization", key), ("redrive-tenant", tenant)];
        stage.send("POST", "/v1/tasks", Some(task.clone()), &headers).await
    };
    let created = create(&unbound, "acme").await;
    assert_eq!((created.status, &created.body["tenant"]), (201, &json!("acme")));
    let path = format!("/v1/tasks/{}", created.id());
    assert_eq!(stage.send("GET", &path, None, &[("authorization", &bound)]).await.status, 200);
    assert_eq!(create(&bound, "acme").await.status, 201);
    assert_eq!(create(&bound, "other").await.problem(), (403, "forbidden", None));
}

#[tokio::test]
async fn the_tenant_header_of_an_unbound_key_limits_reads_and_writes_to_that_tenant() {
    let stage = Stage::open().await;
    let unbound = bearer(&stage.key(None, Scope::Admin).await);
    let send = async |method: &str, path: &str, body: Option<Value>, tenant: Option<&str>| {
        let mut headers = vec![("authorization", unbound.as_str())];
        headers.extend(tenant.map(|tenant| ("redrive-tenant", tenant)));
        stage.send(method, path, body, &headers).await
    };
    let task = || Some(json!({"target": "http://example.com/"}));
    let acme = send("POST", "/v1/tasks", task(), Some("acme")).await.id();
    let default = send("POST", "/v1/tasks", task(), None).await.id();
    for (tenant, listed) in [(None, 2), (Some("acme"), 1), (Some(""), 1), (Some("other"), 0)] {
        let page = send("GET", "/v1/tasks", None, tenant).await.body;
        assert_eq!(page["items"].as_array().unwrap().len(), listed, "{tenant:?}");
    }
    let path = format!("/v1/tasks/{acme}");
    assert_eq!(send("GET", &path, None, Some("acme")).await.status, 200);
    assert_eq!(send("GET", &path, None, Some("other")).await.status, 404);
    let cancel = format!("/v1/tasks/{default}/cancel");
    assert_eq!(
        send("POST", &cancel, None, Some("acme")).await.status,
        404,
        "the task belongs to another tenant"
    );
    assert_eq!(
        send("GET", "/v1/queues", None, Some("acme")).await.status,
        200,
        "queues belong to all tenants"
    );
}

#[tokio::test]
async fn me_shows_the_scope_and_the_tenant_of_the_caller() {
    let stage = Stage::open().await;
    let me = stage.get("/v1/me").await.body;
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        me,
        json!({"scope": "admin", "bodies": true, "open": true, "version": version, "node": "node-1"})
    );
    let key = bearer(&stage.key(Some("acme"), Scope::Read).await);
    let me = stage.send("GET", "/v1/me", None, &[("authorization", &key)]).await.body;
    assert_eq!((&me["scope"], &me["tenant"]), (&json!("read"), &json!("acme")));
    let stage =
        Stage::on(Arc::new(redrive_store_sqlite::SqliteStore::open_in_memory().unwrap()), Access::KeysOnly)
            .await;
    let key = bearer(&stage.key(None, Scope::Admin).await);
    let me = stage.send("GET", "/v1/me", None, &[("authorization", &key)]).await.body;
    assert_eq!((&me["open"], &me["tenant"]), (&json!(false), &json!(null)));
    assert_eq!(stage.get("/v1/me").await.status, 401);
}

#[tokio::test]
async fn a_service_without_keys_rejects_requests_from_other_sites() {
    let stage = Stage::open().await;
    let task = json!({"target": "http://example.com/"});
    let send = async |method: &str, path: &str, headers: &[(&str, &str)]| {
        let body = (method == "POST").then(|| task.clone());
        stage.send(method, path, body, headers).await
    };
    let host = ("host", "127.0.0.1:7373");
    for headers in [
        &[host, ("sec-fetch-site", "cross-site")][..],
        &[host, ("origin", "https://evil.example")],
        &[("host", "evil.example:7373")],
    ] {
        let refused = send("POST", "/v1/tasks", headers).await;
        assert_eq!(refused.problem(), (403, "forbidden", None), "{headers:?}");
    }
    let foreign = [("host", "evil.example")];
    assert_eq!(send("GET", "/v1/jobs", &foreign).await.status, 403, "the name may resolve to loopback");
    assert_eq!(send("GET", "/healthz", &foreign).await.status, 200, "health checks are public");
    assert_eq!(stage.get("/v1/jobs").await.body["items"], json!([]), "rejected requests create nothing");
    let own = [host, ("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:7373")];
    assert_eq!(send("POST", "/v1/tasks", &own).await.status, 201);
    let key = bearer(&stage.key(None, Scope::Write).await);
    let keyed =
        [("authorization", key.as_str()), ("host", "public.example"), ("origin", "https://a.example")];
    assert_eq!(send("POST", "/v1/tasks", &keyed).await.status, 201, "a request with a key is accepted");
}

#[tokio::test]
async fn an_open_service_answers_only_local_requests_on_every_route() {
    let stage = Stage::open().await;
    let document = stage.get("/openapi.json").await.body;
    let public = ["/healthz", "/readyz", "/openapi.json", "/docs"];
    let foreign: [&[(&str, &str)]; 4] = [
        &[("host", "")],
        &[("host", "redrive.example")],
        &[("host", "localhost"), ("x-forwarded-for", "203.0.113.7")],
        &[("host", "localhost"), ("via", "1.1 proxy")],
    ];
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            for headers in foreign {
                let answer = stage.send(&method, path, None, headers).await;
                if public.contains(&path.as_str()) {
                    assert_eq!(answer.status, 200, "{method} {path} {headers:?}");
                } else {
                    assert_eq!(answer.problem(), (403, "forbidden", None), "{method} {path} {headers:?}");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 150, "only {tried} requests were tried");
    let request = axum::http::Request::get("/v1/jobs").body(axum::body::Body::empty()).unwrap();
    assert_eq!(stage.raw(request).await.status, 403, "without Host");
    let key = bearer(&stage.key(None, Scope::Read).await);
    let proxied = [("host", "redrive.example"), ("x-forwarded-for", "203.0.113.7"), ("authorization", &key)];
    let answer = stage.send("GET", "/v1/jobs", None, &proxied).await;
    assert_eq!(answer.status, 200, "a request with a key is accepted");
}

#[tokio::test]
async fn the_first_key_must_be_an_admin_key_without_a_tenant() {
    let stage = Stage::open().await;
    for refused in [
        json!({"name": "ci"}),
        json!({"name": "ci", "scope": "read"}),
        json!({"name": "ci", "scope": "write"}),
        json!({"name": "ci", "scope": "admin", "tenant": "acme"}),
    ] {
        let answer = stage.post("/v1/keys", refused.clone()).await;
        assert_eq!(answer.problem(), (409, "first_key_not_admin", None), "{refused}");
        assert!(answer.body["detail"].as_str().unwrap().contains("scope admin"), "{}", answer.body);
    }
    assert_eq!(stage.get("/v1/me").await.body["open"], true, "a rejected key does not close the service");
    assert_eq!(stage.post("/v1/keys", json!({"name": "ops", "scope": "admin"})).await.status, 201);
}

#[tokio::test]
async fn the_last_admin_key_cannot_be_revoked_and_a_service_that_had_keys_stays_closed() {
    let stage = Stage::open().await;
    let made = stage.post("/v1/keys", json!({"name": "ops", "scope": "admin"})).await.body;
    let key = bearer(made["key"].as_str().unwrap());
    let path = format!("/v1/keys/{}", made["keyId"].as_str().unwrap());
    let refused = stage.send("DELETE", &path, None, &[("authorization", &key)]).await;
    assert_eq!(refused.problem(), (409, "last_admin_key", None));
    assert!(refused.body["detail"].as_str().unwrap().contains("create another one first"));
    // Someone removes the key directly in the store.
    let record = redrive_core::records::RecordWrite {
        kind: "key".into(),
        id: made["keyId"].as_str().unwrap().into(),
        expect: redrive_core::records::Precondition::Any,
        value: None,
    };
    redrive_core::RecordStore::write(&*stage.store, record).await.unwrap();
    for node in [stage.another("node-2").await, stage] {
        assert_eq!(node.get("/v1/jobs").await.status, 401, "a service that had keys stays closed");
        assert_eq!(node.post("/v1/keys", json!({"name": "mine", "scope": "admin"})).await.status, 401);
    }
}
