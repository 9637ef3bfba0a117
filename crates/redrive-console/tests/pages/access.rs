//! Who gets in, and what they are shown.

use redrive_server::keys::Scope;
use redrive_server::{Access, Peer};
use serde_json::json;

use crate::stage::{HOST, PAGES, Stage};

#[tokio::test]
async fn every_page_carries_what_keeps_other_sites_out() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let mut browser = stage.browser();
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
            "{path} has something inline"
        );
    }
}

#[tokio::test]
async fn style_and_script_are_kept_for_good_under_the_name_of_their_content() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let mut browser = stage.browser();
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
        assert_eq!((other.status, other.header("cache-control")), (200, "no-cache"), "of another version");
    }
    assert_eq!(browser.get("/console/assets/other.css").await.status, 404);
}

#[tokio::test]
async fn keys_cannot_be_guessed_at_the_sign_in_either() {
    let stage = Stage::new(Access::KeysOnly).await;
    let mut attacker = stage.browser();
    attacker.peer = Some(Peer(([192, 0, 2, 1], 1).into()));
    let mut other = stage.browser();
    other.peer = Some(Peer(([192, 0, 2, 2], 1).into()));
    let guess = [("key", "rdk_0123456789abcdef_guess")];
    let page = attacker.get("/console/sign-in").await;
    let mut last = 0;
    for _ in 0..100 {
        last = attacker.submit("/console/sign-in", &page, &guess).await.status;
    }
    assert_eq!(last, 429);
    let page = other.get("/console/sign-in").await;
    assert_eq!(other.submit("/console/sign-in", &page, &guess).await.status, 401, "another peer may try");
}

#[tokio::test]
async fn without_a_key_one_is_led_to_the_sign_in_and_back() {
    let stage = Stage::new(Access::KeysOnly).await;
    let key = stage.key(None, Scope::Admin).await;
    let mut browser = stage.browser();
    let page = browser.get("/console/jobs?state=dead").await;
    assert_eq!(
        (page.status, page.header("location")),
        (303, "/console/sign-in?next=%2Fconsole%2Fjobs%3Fstate%3Ddead")
    );
    let form = browser.get(page.header("location")).await;
    let wrong = browser.submit("/console/sign-in", &form, &[("key", "rdk_0123456789abcdef_x")]).await;
    assert!(wrong.status == 401 && wrong.has("not known"), "{}", wrong.body);
    assert!(!browser.cookies.contains_key("redrive_session"));
    let fields = [("key", key.as_str()), ("next", "/console/jobs?state=dead")];
    let entered = browser.submit("/console/sign-in", &form, &fields).await;
    assert_eq!((entered.status, entered.header("location")), (303, "/console/jobs?state=dead"));
    let cookie =
        entered.headers.get_all("set-cookie").iter().map(|set| set.to_str().unwrap()).collect::<String>();
    assert!(
        cookie.contains("HttpOnly; SameSite=Strict")
            && cookie.contains("Path=/")
            && !cookie.contains("Secure")
    );
    let secret = key.rsplit('_').next().unwrap();
    for (name, value) in &browser.cookies {
        assert!(!value.contains(secret) && !value.contains("rdk_"), "the cookie {name} holds the key");
    }
    assert!(!entered.headers.iter().any(|(_, value)| value.to_str().unwrap().contains(secret)));
    let page = browser.get("/console/jobs?state=dead").await;
    assert_eq!(page.status, 200);
    assert!(!page.has(&key) && !page.has(key.rsplit('_').next().unwrap()), "the key is on the page");
    let stolen = browser.clone();
    let left = browser.submit("/console/sign-out", &page, &[]).await;
    assert_eq!(left.header("location"), "/console/sign-in?done=signed-out");
    assert_eq!(browser.get("/console/jobs").await.status, 303);
    assert_eq!(stolen.clone().get("/console/jobs").await.status, 303, "the session itself has ended");
}

#[tokio::test]
async fn a_session_ends_with_its_key_and_an_api_key_in_the_cookie_opens_nothing() {
    let stage = Stage::new(Access::KeysOnly).await;
    let key = stage.key(None, Scope::Admin).await;
    let mut browser = stage.browser();
    let form = browser.get("/console/sign-in").await;
    browser.submit("/console/sign-in", &form, &[("key", &key)]).await;
    assert_eq!(browser.get("/console/jobs").await.status, 200);
    let mut old = stage.browser();
    for name in ["redrive_key", "redrive_session"] {
        old.cookies.insert(name.to_owned(), key.clone());
    }
    assert_eq!(old.get("/console/jobs").await.status, 303);
    assert_eq!(old.get("/jobs").await.status, 401);
    let page = browser.get("/console/keys").await;
    let path = format!("/console/keys/{}/revoke", key.split('_').nth(1).unwrap());
    assert_eq!(browser.submit(&path, &page, &[]).await.status, 303);
    assert_eq!(
        browser.get("/console/jobs").await.header("location"),
        "/console/sign-in?next=%2Fconsole%2Fjobs"
    );
}

#[tokio::test]
async fn a_form_of_one_session_is_no_form_of_another() {
    let stage = Stage::new(Access::KeysOnly).await;
    let (mut one, mut two) =
        (stage.signed_in(None, Scope::Admin).await, stage.signed_in(None, Scope::Admin).await);
    let page = one.get("/console/queues").await;
    let refused = two.submit("/console/queues/pause", &page, &[("queue", "default")]).await;
    assert!(refused.status == 403 && refused.has("This form is not accepted"), "{}", refused.body);
}

#[tokio::test]
async fn an_open_console_shows_nothing_to_what_a_proxy_passes_on() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let mut browser = stage.browser();
    for path in PAGES.into_iter().filter(|path| *path != "/console/help") {
        assert_eq!(browser.get(path).await.status, 200, "{path}");
        let page = browser.send("GET", path, &[("x-forwarded-for", "203.0.113.7")], "").await;
        assert_eq!(page.status, 403, "{path}: {}", page.body);
    }
}

#[tokio::test]
async fn the_first_key_that_the_console_makes_is_an_admin_key() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let mut browser = stage.browser();
    let page = browser.get("/console/keys").await;
    assert!(page.has("<option value=\"admin\">") && !page.has("<option value=\"read\">"), "{}", page.body);
    let fields = [("name", "ops"), ("scope", "read")];
    let refused = browser.submit("/console/keys", &page, &fields).await;
    assert!(refused.status == 409 && refused.has("the first key must be an admin key"), "{}", refused.body);
    let made = browser.submit("/console/keys", &page, &[("name", "ops"), ("scope", "admin")]).await;
    assert!(made.status == 200 && made.has("rdk_"), "{}", made.body);
}

#[tokio::test]
async fn whoever_may_not_see_bodies_is_told_so() {
    let stage = Stage::new(Access::KeysOnly).await;
    let writer = stage.key(None, Scope::Write).await;
    let headers = json!({"Authorization": "Bearer hush-1"});
    let task = json!({"targetUrl": "http://a.example/", "body": "hush-2", "headers": headers});
    let task = format!("/console/jobs/{}", stage.task(task, Some(&writer)).await);
    let job = format!("/console/jobs/{}", stage.job("charge", &json!({"card": "hush-3"})).await);
    stage.kill("status 503", "hush-4").await;
    let mut reader = stage.signed_in(None, Scope::Read).await;
    for path in PAGES.into_iter().chain([task.as_str(), job.as_str()]) {
        let page = reader.get(path).await;
        assert!(!page.has("hush-"), "{path}: {}", page.body);
    }
    for path in [&task, &job] {
        assert!(reader.get(path).await.has("hidden: this key may not see bodies"), "{path}");
    }
    let mut admin = stage.signed_in(None, Scope::Admin).await;
    assert!(admin.get(&task).await.has("hush-4") && admin.get(&job).await.has("hush-3"));
    assert!(!admin.get(&task).await.has("hush-1"), "credentials are for nobody");
}

#[tokio::test]
async fn over_https_the_cookie_is_for_https_alone() {
    let stage = Stage::new(Access::KeysOnly).await;
    let key = stage.key(None, Scope::Read).await;
    let mut browser = stage.browser();
    let form = browser.get("/console/sign-in").await;
    let origin = format!("https://{HOST}");
    let headers = [("origin", origin.as_str()), ("x-forwarded-proto", "https")];
    let entered = browser.post("/console/sign-in", &headers, Some(form.token()), &[("key", &key)]).await;
    assert!(entered.header("set-cookie").ends_with("; Secure"), "{entered:?}");
}

#[tokio::test]
async fn a_key_that_was_revoked_leads_back_to_the_sign_in() {
    let stage = Stage::new(Access::KeysOnly).await;
    let mut browser = stage.signed_in(None, Scope::Read).await;
    let cookie = browser.cookies.get_mut("redrive_session").unwrap();
    *cookie = format!("{cookie}x");
    let page = browser.get("/console/jobs").await;
    assert!(page.header("location").starts_with("/console/sign-in"), "{page:?}");
    assert!(!browser.cookies.contains_key("redrive_session"), "it would be refused again and again");
}

#[tokio::test]
async fn a_link_from_elsewhere_is_tried_again_with_the_cookie() {
    let stage = Stage::new(Access::KeysOnly).await;
    let mut browser = stage.signed_in(None, Scope::Read).await;
    let mut elsewhere = stage.browser();
    let page =
        elsewhere.send("GET", "/console/jobs?state=dead", &[("sec-fetch-site", "cross-site")], "").await;
    assert!(page.status == 200 && page.has("content=\"0;url=/console/jobs?state=dead\""), "{}", page.body);
    assert_eq!(
        browser.send("GET", "/console/jobs", &[("sec-fetch-site", "same-origin")], "").await.status,
        200
    );
}

#[tokio::test]
async fn the_cookie_opens_the_api_for_looking_and_for_nothing_else() {
    let stage = Stage::new(Access::KeysOnly).await;
    let mut browser = stage.signed_in(None, Scope::Admin).await;
    assert_eq!(browser.get("/jobs").await.status, 200);
    assert_eq!(browser.get("/openapi.json").await.status, 200);
    for (method, path) in
        [("POST", "/queues/default/pause"), ("DELETE", "/keys/x"), ("PUT", "/retry-policies/a")]
    {
        let refused = browser.send(method, path, &[("content-type", "application/json")], "{}").await;
        assert_eq!(refused.status, 401, "{method} {path}: {}", refused.body);
    }
    assert_eq!(stage.browser().get("/jobs").await.status, 401);
    let own = browser.send("GET", "/jobs", &[("authorization", "Bearer rdk_0123456789abcdef_x")], "").await;
    assert_eq!(own.status, 401, "a header goes before the cookie");
}

#[tokio::test]
async fn whoever_may_only_look_is_shown_no_button() {
    let stage = Stage::new(Access::KeysOnly).await;
    let writer = stage.key(None, Scope::Write).await;
    let id = stage.task(json!({"targetUrl": "http://a.example/"}), Some(&writer)).await;
    stage.kill("status 503", "busy").await;
    let mut reader = stage.signed_in(None, Scope::Read).await;
    let mut admin = stage.signed_in(None, Scope::Admin).await;
    let job = format!("/console/jobs/{id}");
    let paths = PAGES.into_iter().filter(|path| *path != "/console/keys").chain([job.as_str()]);
    for path in paths {
        let page = reader.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        let main = page.body.split("<main").nth(1).unwrap();
        let buttons = main.matches("<button").count();
        // Looking at a list and drawing a policy changes nothing.
        let harmless = main.matches("<button class=\"main\">Show</button>").count()
            + main.matches("<button>Draw</button>").count();
        assert_eq!(buttons, harmless, "{path}: {main}");
    }
    let refused = reader.get("/console/keys").await;
    assert!(
        refused.status == 403 && refused.has(">Sign out</button>"),
        "another key may do: {}",
        refused.body
    );
    assert!(admin.get(&job).await.has("<button class=\"main\">Redrive</button>"));
    let page = reader.get(&job).await;
    let forged = reader.submit(&format!("{job}/redrive"), &page, &[]).await;
    assert!(forged.status == 403 && forged.has("scope write"), "{}", forged.body);
}

#[tokio::test]
async fn a_tenant_sees_its_own_and_is_told_kindly_what_it_may_not() {
    let stage = Stage::new(Access::KeysOnly).await;
    let (shop, other) =
        (stage.key(Some("shop"), Scope::Write).await, stage.key(Some("other"), Scope::Write).await);
    let own = stage.task(json!({"targetUrl": "http://own.example/"}), Some(&shop)).await;
    let foreign = stage.task(json!({"targetUrl": "http://foreign.example/"}), Some(&other)).await;
    let mut browser = stage.signed_in(Some("shop"), Scope::Admin).await;
    let list = browser.get("/console/tasks").await;
    assert!(list.has("http://own.example/") && !list.has("foreign.example"), "{}", list.body);
    assert!(!list.has("name=\"tenant\""), "there is but one tenant for it");
    assert_eq!(browser.get(&format!("/console/jobs/{own}")).await.status, 200);
    let page = browser.get(&format!("/console/jobs/{foreign}")).await;
    assert!(page.status == 404 && page.has("There is nothing here") && page.has("href=\"/console/tasks\""));
    for path in ["/console/queues", "/console/nodes"] {
        let page = browser.get(path).await;
        assert!(page.status == 403 && page.has("Your key does not show this"), "{path}: {}", page.body);
    }
    let keys = browser.get("/console/keys").await;
    assert!(keys.has("value=\"shop\" readonly"), "it makes keys of its own tenant alone");
}
