//! Keys: who may do what.

use redrive_server::Access;
use redrive_server::keys::Scope;
use serde_json::json;
use std::sync::Arc;

use crate::stage::Stage;

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

#[tokio::test]
async fn the_first_key_closes_the_door_and_its_revocation_holds_at_once() {
    let stage = Stage::open().await;
    assert_eq!(stage.get("/retry-tasks").await.status, 200);
    let made = stage.post("/keys", json!({"name": "ops", "scope": "admin"})).await;
    assert_eq!(made.status, 201);
    let key = made.body["key"].as_str().unwrap().to_owned();
    let refused = stage.get("/retry-tasks").await;
    assert_eq!(refused.problem(), (401, "UNAUTHENTICATED", None));
    assert!(refused.header("www-authenticate").unwrap().starts_with("Bearer"));
    let with = async |name: &str, value: &str| stage.send("GET", "/keys", None, &[(name, value)]).await;
    let listed = with("authorization", &bearer(&key)).await;
    assert_eq!(listed.status, 200);
    assert_eq!(listed.body["items"][0]["key"], json!(null), "a secret is shown once");
    assert_eq!(with("x-api-key", &key).await.status, 200);
    for wrong in ["Basic x", "Bearer", "Bearer rdk_0123456789abcdef_x", "x"] {
        assert_eq!(with("authorization", wrong).await.status, 401, "{wrong}");
    }
    let second = stage.key(None, Scope::Admin).await;
    let path = format!("/keys/{}", made.body["keyId"].as_str().unwrap());
    let by_second = bearer(&second);
    let gone = stage.send("DELETE", &path, None, &[("authorization", &by_second)]).await;
    assert_eq!(gone.status, 204);
    assert_eq!(with("authorization", &bearer(&key)).await.status, 401);
}

#[tokio::test]
async fn a_scope_allows_what_it_says_and_no_more() {
    let stage =
        Stage::on(Arc::new(redrive_store_sqlite::SqliteStore::open_in_memory().unwrap()), Access::KeysOnly)
            .await;
    assert_eq!(stage.get("/retry-tasks").await.status, 401, "closed without a key too");
    for path in ["/healthz", "/readyz", "/openapi.json", "/docs"] {
        assert_eq!(stage.get(path).await.status, 200, "{path}");
    }
    let task = json!({"targetUrl": "http://example.com/"});
    for (method, path, body, needs) in [
        ("GET", "/retry-tasks", None, Scope::Read),
        ("GET", "/metrics", None, Scope::Read),
        ("POST", "/retry-policies/preview", Some(json!({})), Scope::Read),
        ("POST", "/retry-tasks", Some(task), Scope::Write),
        ("POST", "/retry-policies", Some(json!({"policyId": "p"})), Scope::Admin),
        ("GET", "/keys", None, Scope::Admin),
        ("GET", "/signing-secrets", None, Scope::Admin),
        ("POST", "/dead-letters/redrive", Some(json!({"dryRun": true})), Scope::Admin),
        ("POST", "/queues/default/pause", None, Scope::Admin),
    ] {
        for scope in Scope::ALL {
            let key = bearer(&stage.key(None, scope).await);
            let answer = stage.send(method, path, body.clone(), &[("authorization", &key)]).await;
            if scope >= needs {
                assert!(answer.status < 300, "{method} {path} as {scope}: {}", answer.body);
            } else {
                assert_eq!(answer.problem(), (403, "FORBIDDEN", None), "{method} {path} as {scope}");
            }
        }
    }
}

#[tokio::test]
async fn an_unbound_key_names_the_tenant_it_creates_for() {
    let stage = Stage::open().await;
    let unbound = bearer(&stage.key(None, Scope::Write).await);
    let bound = bearer(&stage.key(Some("acme"), Scope::Write).await);
    let task = json!({"targetUrl": "http://example.com/"});
    let create = async |key: &str, tenant: &str| {
        let headers = [("authorization", key), ("redrive-tenant", tenant)];
        stage.send("POST", "/retry-tasks", Some(task.clone()), &headers).await
    };
    let created = create(&unbound, "acme").await;
    assert_eq!((created.status, &created.body["tenant"]), (201, &json!("acme")));
    let path = format!("/retry-tasks/{}", created.id());
    assert_eq!(stage.send("GET", &path, None, &[("authorization", &bound)]).await.status, 200);
    assert_eq!(create(&bound, "acme").await.status, 201);
    assert_eq!(create(&bound, "other").await.problem(), (403, "FORBIDDEN", None));
}

#[tokio::test]
async fn a_caller_is_told_who_they_are() {
    let stage = Stage::open().await;
    let me = stage.get("/me").await.body;
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        me,
        json!({"scope": "admin", "bodies": true, "open": true, "version": version, "node": "node-1"})
    );
    let key = bearer(&stage.key(Some("acme"), Scope::Read).await);
    let me = stage.send("GET", "/me", None, &[("authorization", &key)]).await.body;
    assert_eq!((&me["scope"], &me["tenant"]), (&json!("read"), &json!("acme")));
    let stage =
        Stage::on(Arc::new(redrive_store_sqlite::SqliteStore::open_in_memory().unwrap()), Access::KeysOnly)
            .await;
    let key = bearer(&stage.key(None, Scope::Admin).await);
    let me = stage.send("GET", "/me", None, &[("authorization", &key)]).await.body;
    assert_eq!((&me["open"], &me["tenant"]), (&json!(false), &json!(null)));
    assert_eq!(stage.get("/me").await.status, 401);
}

#[tokio::test]
async fn a_service_without_keys_refuses_what_another_site_sends() {
    let stage = Stage::open().await;
    let task = json!({"targetUrl": "http://example.com/"});
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
        let refused = send("POST", "/retry-tasks", headers).await;
        assert_eq!(refused.problem(), (403, "FORBIDDEN", None), "{headers:?}");
    }
    assert_eq!(send("GET", "/jobs", &[("host", "evil.example")]).await.status, 403, "names may lie");
    assert_eq!(send("GET", "/healthz", &[("host", "evil.example")]).await.status, 200, "everyone may know");
    assert_eq!(stage.get("/jobs").await.body["items"], json!([]), "nothing came of them");
    let own = [host, ("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:7373")];
    assert_eq!(send("POST", "/retry-tasks", &own).await.status, 201);
    let key = bearer(&stage.key(None, Scope::Write).await);
    let keyed =
        [("authorization", key.as_str()), ("host", "public.example"), ("origin", "https://a.example")];
    assert_eq!(send("POST", "/retry-tasks", &keyed).await.status, 201, "a key says who it is");
}

#[tokio::test]
async fn an_open_service_answers_local_requests_alone() {
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
                    assert_eq!(answer.problem(), (403, "FORBIDDEN", None), "{method} {path} {headers:?}");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 150, "only {tried} requests were tried");
    let request = axum::http::Request::get("/jobs").body(axum::body::Body::empty()).unwrap();
    assert_eq!(stage.raw(request).await.status, 403, "without Host");
    let key = bearer(&stage.key(None, Scope::Read).await);
    let proxied = [("host", "redrive.example"), ("x-forwarded-for", "203.0.113.7"), ("authorization", &key)];
    assert_eq!(stage.send("GET", "/jobs", None, &proxied).await.status, 200, "a key says who it is");
}

#[tokio::test]
async fn the_first_key_is_an_admin_key_of_no_tenant() {
    let stage = Stage::open().await;
    for refused in [
        json!({"name": "ci"}),
        json!({"name": "ci", "scope": "read"}),
        json!({"name": "ci", "scope": "write"}),
        json!({"name": "ci", "scope": "admin", "tenant": "acme"}),
    ] {
        let answer = stage.post("/keys", refused.clone()).await;
        assert_eq!(answer.problem(), (409, "FIRST_KEY_NOT_ADMIN", None), "{refused}");
        assert!(answer.body["detail"].as_str().unwrap().contains("scope admin"), "{}", answer.body);
    }
    assert_eq!(stage.get("/me").await.body["open"], true, "nobody is locked out");
    assert_eq!(stage.post("/keys", json!({"name": "ops", "scope": "admin"})).await.status, 201);
}

#[tokio::test]
async fn the_last_admin_key_stays_and_a_service_that_had_keys_stays_closed() {
    let stage = Stage::open().await;
    let made = stage.post("/keys", json!({"name": "ops", "scope": "admin"})).await.body;
    let key = bearer(made["key"].as_str().unwrap());
    let path = format!("/keys/{}", made["keyId"].as_str().unwrap());
    let refused = stage.send("DELETE", &path, None, &[("authorization", &key)]).await;
    assert_eq!(refused.problem(), (409, "LAST_ADMIN_KEY", None));
    assert!(refused.body["detail"].as_str().unwrap().contains("create another one first"));
    // Someone empties the list of keys in the store itself.
    let record = redrive_core::records::Change {
        kind: "key".into(),
        id: made["keyId"].as_str().unwrap().into(),
        expect: redrive_core::records::Expect::Any,
        value: None,
    };
    redrive_core::Records::write(&*stage.store, record).await.unwrap();
    for node in [stage.another("node-2").await, stage] {
        assert_eq!(node.get("/jobs").await.status, 401, "an empty list of keys opens nothing");
        assert_eq!(node.post("/keys", json!({"name": "mine", "scope": "admin"})).await.status, 401);
    }
}
