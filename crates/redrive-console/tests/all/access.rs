//! Sign-in, sessions and permissions.

use redrive_server::Access;
use redrive_wire::Peer;
use redrive_wire::Scope;
use serde_json::json;

use crate::fixture::{Fixture, HOST, PAGES};

#[tokio::test]
async fn every_page_has_the_security_headers() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let mut browser = fixture.browser();
    let more = ["/console/sign-in", "/console/nowhere", "/console/jobs/nobody", "/console/bulk"];
    for path in PAGES.into_iter().chain(more) {
        let page = browser.get(path).await;
        let policy = page.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"),
            "{path}: {policy}"
        );
        assert!(policy.contains("frame-ancestors 'none'") && policy.contains("form-action 'self'"), "{path}");
        assert_eq!(page.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(page.header("referrer-policy"), "same-origin", "{path}");
        assert_eq!(page.header("cache-control"), "no-store", "{path}");
        assert!(
            !page.has(" style=") && !page.has("<script>") && !page.has(" onclick"),
            "{path} has an inline style or script"
        );
    }
}

#[tokio::test]
async fn browsers_may_cache_style_and_script_forever() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let mut browser = fixture.browser();
    let page = browser.get("/console/help").await;
    for ending in ["css", "js", "svg"] {
        let (before, _) = page.body.split_once(&format!(".{ending}\"")).unwrap();
        let path = format!("{}.{ending}", &before[before.rfind('"').unwrap() + 1..]);
        let asset = browser.get(&path).await;
        assert_eq!(
            (asset.status, asset.header("cache-control")),
            (200, "public, max-age=31536000, immutable")
        );
        let stem = path.split('.').next().unwrap();
        let other = browser.get(&format!("{stem}.0000.{ending}")).await;
        assert_eq!(
            (other.status, other.header("cache-control")),
            (200, "no-cache"),
            "another version must not be cached"
        );
    }
    assert_eq!(browser.get("/console/assets/other.css").await.status, 404);
}

#[tokio::test]
async fn failed_sign_ins_are_limited_for_each_peer() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let mut attacker = fixture.browser();
    attacker.peer = Some(Peer(([192, 0, 2, 1], 1).into()));
    let mut other = fixture.browser();
    other.peer = Some(Peer(([192, 0, 2, 2], 1).into()));
    let guess = [("key", "rdk_0123456789abcdef_guess")];
    let page = attacker.get("/console/sign-in").await;
    let mut last = 0;
    for _ in 0..100 {
        last = attacker.submit("/console/sign-in", &page, &guess).await.status;
    }
    assert_eq!(last, 429);
    let page = other.get("/console/sign-in").await;
    assert_eq!(
        other.submit("/console/sign-in", &page, &guess).await.status,
        401,
        "the limit must not apply to another peer"
    );
}

#[tokio::test]
async fn a_page_without_a_session_leads_to_the_sign_in_and_back() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let key = fixture.create_key(None, Scope::Admin).await;
    let mut browser = fixture.browser();
    let page = browser.get("/console/jobs?state=dead").await;
    assert_eq!(
        (page.status, page.header("location")),
        (303, "/console/sign-in?next=%2Fconsole%2Fjobs%3Fstate%3Ddead")
    );
    let form = browser.get(page.header("location")).await;
    let wrong = browser.submit("/console/sign-in", &form, &[("key", "rdk_0123456789abcdef_x")]).await;
    assert!(wrong.status == 401 && wrong.has("unknown or was revoked"), "{}", wrong.body);
    assert!(!browser.cookies.contains_key("redrive_session"));
    let fields = [("key", key.as_str()), ("next", "/console/jobs?state=dead")];
    let signed_in = browser.submit("/console/sign-in", &form, &fields).await;
    assert_eq!((signed_in.status, signed_in.header("location")), (303, "/console/jobs?state=dead"));
    let cookie =
        signed_in.headers.get_all("set-cookie").iter().map(|set| set.to_str().unwrap()).collect::<String>();
    assert!(
        cookie.contains("HttpOnly; SameSite=Strict")
            && cookie.contains("Path=/")
            && !cookie.contains("Secure")
    );
    let secret = key.rsplit('_').next().unwrap();
    for (name, value) in &browser.cookies {
        assert!(!value.contains(secret) && !value.contains("rdk_"), "the cookie {name} contains the key");
    }
    assert!(!signed_in.headers.iter().any(|(_, value)| value.to_str().unwrap().contains(secret)));
    let page = browser.get("/console/jobs?state=dead").await;
    assert_eq!(page.status, 200);
    assert!(!page.has(&key) && !page.has(key.rsplit('_').next().unwrap()), "the key is on the page");
    let stolen = browser.clone();
    let signed_out = browser.submit("/console/sign-out", &page, &[]).await;
    assert_eq!(signed_out.header("location"), "/console/sign-in?done=signed-out");
    assert_eq!(browser.get("/console/jobs").await.status, 303);
    assert_eq!(
        stolen.clone().get("/console/jobs").await.status,
        303,
        "the session must end, not only its cookie"
    );
}

#[tokio::test]
async fn a_session_ends_with_its_key_and_an_api_key_in_a_cookie_is_ignored() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let key = fixture.create_key(None, Scope::Admin).await;
    let mut browser = fixture.browser();
    let form = browser.get("/console/sign-in").await;
    browser.submit("/console/sign-in", &form, &[("key", &key)]).await;
    assert_eq!(browser.get("/console/jobs").await.status, 200);
    let mut old = fixture.browser();
    for name in ["redrive_key", "redrive_session"] {
        old.cookies.insert(name.to_owned(), key.clone());
    }
    assert_eq!(old.get("/console/jobs").await.status, 303);
    assert_eq!(old.get("/v1/jobs").await.status, 401);
    let page = browser.get("/console/keys").await;
    let path = format!("/console/keys/{}/revoke", key.split('_').nth(1).unwrap());
    assert_eq!(browser.submit(&path, &page, &[]).await.status, 303);
    assert_eq!(
        browser.get("/console/jobs").await.header("location"),
        "/console/sign-in?next=%2Fconsole%2Fjobs"
    );
}

#[tokio::test]
async fn a_form_of_another_session_is_rejected() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let (mut one, mut two) =
        (fixture.signed_in(None, Scope::Admin).await, fixture.signed_in(None, Scope::Admin).await);
    let page = one.get("/console/queues").await;
    let rejected = two.submit("/console/queues/pause", &page, &[("queue", "default")]).await;
    assert!(rejected.status == 403 && rejected.has("This form was not accepted"), "{}", rejected.body);
}

#[tokio::test]
async fn an_open_console_rejects_requests_that_a_proxy_forwarded() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let mut browser = fixture.browser();
    for path in PAGES.into_iter().filter(|path| *path != "/console/help") {
        assert_eq!(browser.get(path).await.status, 200, "{path}");
        let page = browser.send("GET", path, &[("x-forwarded-for", "203.0.113.7")], "").await;
        assert_eq!(page.status, 403, "{path}: {}", page.body);
    }
}

#[tokio::test]
async fn the_first_key_must_be_an_admin_key() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let mut browser = fixture.browser();
    let page = browser.get("/console/keys").await;
    assert!(page.has("<option value=\"admin\">") && !page.has("<option value=\"read\">"), "{}", page.body);
    let fields = [("name", "ops"), ("scope", "read")];
    let rejected = browser.submit("/console/keys", &page, &fields).await;
    assert!(
        rejected.status == 409 && rejected.has("the first key must be an admin key"),
        "{}",
        rejected.body
    );
    let created = browser.submit("/console/keys", &page, &[("name", "ops"), ("scope", "admin")]).await;
    assert!(created.status == 200 && created.has("rdk_"), "{}", created.body);
}

#[tokio::test]
async fn a_key_without_bodies_sees_no_content() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let writer = fixture.create_key(None, Scope::Write).await;
    let headers = json!({"Authorization": "Bearer hush-1"});
    let task = json!({"target": "http://a.example/", "body": "hush-2", "headers": headers});
    let task = format!("/console/jobs/{}", fixture.create_task(task, Some(&writer)).await);
    let job = format!("/console/jobs/{}", fixture.enqueue_job("charge", &json!({"card": "hush-3"})).await);
    fixture.fail_due_jobs("status 503", "hush-4").await;
    let mut reader = fixture.signed_in(None, Scope::Read).await;
    for path in PAGES.into_iter().chain([task.as_str(), job.as_str()]) {
        let page = reader.get(path).await;
        assert!(!page.has("hush-"), "{path}: {}", page.body);
    }
    for path in [&task, &job] {
        assert!(reader.get(path).await.has("hidden: your API key may not read bodies"), "{path}");
    }
    let mut admin = fixture.signed_in(None, Scope::Admin).await;
    assert!(admin.get(&task).await.has("hush-4") && admin.get(&job).await.has("hush-3"));
    assert!(!admin.get(&task).await.has("hush-1"), "credentials must be hidden even from an admin");
}

#[tokio::test]
async fn the_cookie_is_secure_over_https() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let key = fixture.create_key(None, Scope::Read).await;
    let mut browser = fixture.browser();
    let form = browser.get("/console/sign-in").await;
    let origin = format!("https://{HOST}");
    let headers = [("origin", origin.as_str()), ("x-forwarded-proto", "https")];
    let signed_in = browser.post("/console/sign-in", &headers, Some(form.token()), &[("key", &key)]).await;
    assert!(signed_in.header("set-cookie").contains("; Secure"), "{signed_in:?}");
}

#[tokio::test]
async fn an_invalid_session_leads_to_the_sign_in() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let mut browser = fixture.signed_in(None, Scope::Read).await;
    let cookie = browser.cookies.get_mut("redrive_session").unwrap();
    *cookie = format!("{cookie}x");
    let page = browser.get("/console/jobs").await;
    assert!(page.header("location").starts_with("/console/sign-in"), "{page:?}");
    assert!(!browser.cookies.contains_key("redrive_session"), "the invalid cookie must be removed");
}

#[tokio::test]
async fn a_link_on_another_site_is_reloaded_with_the_cookie() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let mut browser = fixture.signed_in(None, Scope::Read).await;
    let mut without_cookie = fixture.browser();
    let page =
        without_cookie.send("GET", "/console/jobs?state=dead", &[("sec-fetch-site", "cross-site")], "").await;
    assert!(page.status == 200 && page.has("content=\"0;url=/console/jobs?state=dead\""), "{}", page.body);
    assert_eq!(
        browser.send("GET", "/console/jobs", &[("sec-fetch-site", "same-origin")], "").await.status,
        200
    );
}

#[tokio::test]
async fn the_session_cookie_may_only_read_the_api() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let mut browser = fixture.signed_in(None, Scope::Admin).await;
    assert_eq!(browser.get("/v1/jobs").await.status, 200);
    assert_eq!(browser.get("/openapi.json").await.status, 200);
    for (method, path) in
        [("POST", "/v1/queues/default/pause"), ("DELETE", "/v1/keys/x"), ("PUT", "/v1/policies/a")]
    {
        let rejected = browser.send(method, path, &[("content-type", "application/json")], "{}").await;
        assert_eq!(rejected.status, 401, "{method} {path}: {}", rejected.body);
    }
    assert_eq!(fixture.browser().get("/v1/jobs").await.status, 401);
    let with_header =
        browser.send("GET", "/v1/jobs", &[("authorization", "Bearer rdk_0123456789abcdef_x")], "").await;
    assert_eq!(with_header.status, 401, "a header must win over the cookie");
}

#[tokio::test]
async fn a_read_only_key_sees_no_buttons() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let writer = fixture.create_key(None, Scope::Write).await;
    let id = fixture.create_task(json!({"target": "http://a.example/"}), Some(&writer)).await;
    fixture.fail_due_jobs("status 503", "busy").await;
    let mut reader = fixture.signed_in(None, Scope::Read).await;
    let mut admin = fixture.signed_in(None, Scope::Admin).await;
    let job = format!("/console/jobs/{id}");
    let paths = PAGES.into_iter().filter(|path| *path != "/console/keys").chain([job.as_str()]);
    for path in paths {
        let page = reader.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        let main = page.body.split("<main").nth(1).unwrap();
        let buttons = main.matches("<button").count();
        // These two buttons change nothing.
        let read_only = main.matches("<button class=\"main\">Show</button>").count()
            + main.matches("<button>Update preview</button>").count();
        assert_eq!(buttons, read_only, "{path}: {main}");
    }
    let rejected = reader.get("/console/keys").await;
    assert!(
        rejected.status == 403 && rejected.has(">Sign out</button>"),
        "the user must be able to sign in with another key: {}",
        rejected.body
    );
    assert!(admin.get(&job).await.has("<button class=\"main\">Redrive</button>"));
    let page = reader.get(&job).await;
    let forged = reader.submit(&format!("{job}/redrive"), &page, &[]).await;
    assert!(forged.status == 403 && forged.has("scope write"), "{}", forged.body);
}

#[tokio::test]
async fn a_key_of_a_tenant_sees_only_its_own_jobs() {
    let fixture = Fixture::new(Access::KeysOnly).await;
    let (shop, other) = (
        fixture.create_key(Some("shop"), Scope::Write).await,
        fixture.create_key(Some("other"), Scope::Write).await,
    );
    let own = fixture.create_task(json!({"target": "http://own.example/"}), Some(&shop)).await;
    let foreign = fixture.create_task(json!({"target": "http://foreign.example/"}), Some(&other)).await;
    let mut browser = fixture.signed_in(Some("shop"), Scope::Admin).await;
    let list = browser.get("/console/tasks").await;
    assert!(list.has("http://own.example/") && !list.has("foreign.example"), "{}", list.body);
    assert!(!list.has("name=\"tenant\""), "the filter must not offer other tenants");
    assert_eq!(browser.get(&format!("/console/jobs/{own}")).await.status, 200);
    let page = browser.get(&format!("/console/jobs/{foreign}")).await;
    assert!(page.status == 404 && page.has("Not found") && page.has("href=\"/console/tasks\""));
    for path in ["/console/queues", "/console/nodes"] {
        let page = browser.get(path).await;
        assert!(page.status == 403 && page.has("Your API key does not allow this"), "{path}: {}", page.body);
    }
    let keys = browser.get("/console/keys").await;
    assert!(keys.has("value=\"shop\" readonly"), "a tenant must create keys only for itself");
}
