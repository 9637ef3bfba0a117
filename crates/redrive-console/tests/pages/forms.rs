//! What forms do, and that only this console's own are taken.

use redrive_server::Access;
use redrive_server::keys::Scope;
use serde_json::json;

use crate::stage::{HOST, Stage};

#[tokio::test]
async fn a_form_is_taken_from_this_console_and_from_nowhere_else() {
    for access in [Access::OpenWithoutKeys, Access::KeysOnly] {
        let stage = Stage::new(access).await;
        let mut browser = match access {
            Access::OpenWithoutKeys => stage.browser(),
            Access::KeysOnly => stage.signed_in(None, Scope::Admin).await,
        };
        let page = browser.get("/console/queues").await;
        let (token, origin) = (page.token().to_owned(), format!("http://{HOST}"));
        let here = [("origin", origin.as_str())];
        let pause = [("queue", "default")];
        for (headers, token) in [
            (&here[..], None),
            (&here[..], Some("0".repeat(64))),
            (&[("origin", "http://evil.example")][..], Some(token.clone())),
            (&[("origin", "null")][..], Some(token.clone())),
            (&[][..], Some(token.clone())),
        ] {
            let refused = browser.post("/console/queues/pause", headers, token.as_deref(), &pause).await;
            assert_eq!(refused.status, 403, "{access:?} {headers:?} {token:?}");
            assert!(refused.has("This form is not accepted"), "{}", refused.body);
        }
        // Another browser's token is of no use, and one without cookies has none.
        let mut stranger = stage.browser();
        stranger.get("/console/sign-in").await;
        let refused = stranger.post("/console/queues/pause", &here, Some(&token), &pause).await;
        assert!(matches!(refused.status, 303 | 403), "{access:?}: {}", refused.status);
        assert!(
            !browser.get("/console/queues").await.has(">paused</span>"),
            "{access:?}: something was done"
        );
        let done = browser.post("/console/queues/pause", &here, Some(&token), &pause).await;
        assert_eq!((done.status, done.header("location")), (303, "/console/queues?done=queue-paused"));
        assert!(browser.get("/console/queues").await.has(">paused</span>"));
    }
}

#[tokio::test]
async fn those_selected_are_acted_on_and_the_rest_is_left_alone() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let mut browser = stage.browser();
    let mut ids = Vec::new();
    for number in 0..3 {
        ids.push(
            stage
                .task(json!({"targetUrl": format!("http://a.example/{number}"), "delayMs": 60_000}), None)
                .await,
        );
    }
    let page = browser.get("/console/tasks?state=pending").await;
    let fields =
        [("verb", "cancel"), ("id", &ids[0]), ("id", &ids[1]), ("back", "/console/tasks?state=pending")];
    let done = browser.submit("/console/act", &page, &fields).await;
    assert_eq!(
        done.header("location"),
        "/console/tasks?state=pending&done=selected&verb=cancel&count=2&failed=0"
    );
    let list = browser.get(done.header("location")).await;
    assert!(list.has("2 jobs are cancelled.") && list.has(&ids[2]) && !list.has(&ids[0]), "{}", list.body);
    let again = browser.submit("/console/act", &page, &fields).await;
    assert!(again.header("location").ends_with("count=0&failed=2"), "{again:?}");
    let none = browser.submit("/console/act", &page, &[("verb", "cancel")]).await;
    assert!(none.status == 422 && none.has("nothing is selected"));
}

#[tokio::test]
async fn all_that_match_are_counted_first_and_then_operated_on() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let mut browser = stage.browser();
    for number in 0..3 {
        stage.task(json!({"targetUrl": format!("http://a.example/{number}")}), None).await;
    }
    stage.kill("status 503", "busy").await;
    let ask = browser
        .get("/console/bulk?verb=DISCARD&state=dead&kind=delivery&subject=http%3A%2F%2Fa.example")
        .await;
    assert!(ask.status == 200 && ask.has("<strong id=\"matched\">3</strong> dead tasks"), "{}", ask.body);
    let filter =
        [("verb", "DISCARD"), ("state", "dead"), ("kind", "delivery"), ("subject", "http://a.example")];
    let unsure = browser.submit("/console/bulk", &ask, &filter).await;
    assert!(unsure.status == 422 && unsure.has("tick that you are sure"), "{}", unsure.body);
    let sure: Vec<_> = filter.into_iter().chain([("sure", "yes"), ("rate", "2")]).collect();
    let begun = browser.submit("/console/bulk", &ask, &sure).await;
    assert!(begun.header("location").starts_with("/console/operations/"), "{begun:?}");
    let operation = browser.get(begun.header("location")).await;
    assert!(operation.has("at most 2 a second") && operation.has("<progress"), "{}", operation.body);
    let stopped = browser.submit(&format!("{}/stop", begun.header("location")), &operation, &[]).await;
    assert!(browser.get(stopped.header("location")).await.has(">stopped</span>"));
}

#[tokio::test]
async fn a_key_is_shown_once_and_the_first_one_closes_the_door() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let mut browser = stage.browser();
    let page = browser.get("/console/keys").await;
    assert!(page.has("open to everyone on this machine"));
    let made = browser.submit("/console/keys", &page, &[("name", "ops"), ("scope", "admin")]).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let key =
        made.body.split("id=\"made\" tabindex=\"0\">").nth(1).unwrap().split('<').next().unwrap().to_owned();
    assert!(key.starts_with("rdk_"), "{key}");
    assert_eq!(browser.get("/console/keys").await.status, 303, "a key is needed now");
    let form = browser.get("/console/sign-in").await;
    browser.submit("/console/sign-in", &form, &[("key", &key)]).await;
    let page = browser.get("/console/keys").await;
    assert!(page.has("<strong>ops</strong>") && !page.has(&key), "{}", page.body);
    let revoke = format!("/console/keys/{}/revoke", key.split('_').nth(1).unwrap());
    let refused = browser.submit(&revoke, &page, &[]).await;
    assert!(refused.status == 409 && refused.has("create another one first"), "{}", refused.body);
    browser.submit("/console/keys", &page, &[("name", "second"), ("scope", "admin")]).await;
    assert_eq!(browser.submit(&revoke, &page, &[]).await.status, 303);
}

#[tokio::test]
async fn a_policy_is_drawn_saved_and_removed() {
    let stage = Stage::new(Access::OpenWithoutKeys).await;
    let mut browser = stage.browser();
    let page = browser.get("/console/policies/design").await;
    assert!(
        page.has("Wait before each retry")
            && page.has("name=\"maxAttempts\" inputmode=\"numeric\" value=\"8\"")
    );
    let mut fields = vec![
        ("policyId", "mail"),
        ("maxAttempts", "4"),
        ("backoffType", "SCHEDULE"),
        ("delaysMs", "1000, 5000"),
        ("multiplier", "2"),
        ("jitterType", "NONE"),
        ("totalBudgetMs", ""),
        ("retryableStatusCodes", "503"),
        ("retryableGrpcCodes", "14"),
    ];
    assert!(page.has("Press Draw to work it out"), "{}", page.body);
    let all = browser.submit("/console/policies/draw", &page, &fields).await;
    assert!(all.has("<html") && all.has("needed more than one attempt"), "{}", all.body);
    let drawn = browser.submit("/console/policies/draw?part=preview", &page, &fields).await;
    assert!(drawn.has("<td>5 s</td>") && !drawn.has("<html"), "{}", drawn.body);
    let saved = browser.submit("/console/policies/save", &page, &fields).await;
    assert_eq!(saved.header("location"), "/console/policies/design?policy=mail&done=saved");
    let known = browser.get(saved.header("location")).await;
    assert!(known.has("value=\"1000, 5000\"") && known.has("Save as a new version"), "{}", known.body);
    fields[1] = ("maxAttempts", "0");
    let wrong = browser.submit("/console/policies/draw?part=preview", &page, &fields).await;
    assert!(wrong.status == 200 && wrong.has("maxAttempts"), "{}", wrong.body);
    fields[1] = ("maxAttempts", "many");
    let wrong = browser.submit("/console/policies/save", &page, &fields).await;
    assert!(wrong.status == 422 && wrong.has("maxAttempts"), "{}", wrong.body);
    let list = browser.get("/console/policies").await;
    assert!(list.has("4 attempts, waits of 1 s, 5 s"), "{}", list.body);
    browser.submit("/console/policies/remove", &list, &[("policyId", "mail")]).await;
    assert!(!browser.get("/console/policies").await.has("<strong>mail</strong>"));
}
