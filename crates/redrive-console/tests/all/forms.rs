//! Forms: their effects, and the rejection of forms of other sites.

use redrive_server::Access;
use redrive_wire::Scope;
use serde_json::json;

use crate::fixture::{Fixture, HOST};

#[tokio::test]
async fn a_form_is_accepted_only_from_this_console() {
    for access in [Access::OpenWithoutKeys, Access::KeysOnly] {
        let fixture = Fixture::new(access).await;
        let mut browser = match access {
            Access::OpenWithoutKeys => fixture.browser(),
            Access::KeysOnly => fixture.signed_in(None, Scope::Admin).await,
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
            let rejected = browser.post("/console/queues/pause", headers, token.as_deref(), &pause).await;
            assert_eq!(rejected.status, 403, "{access:?} {headers:?} {token:?}");
            assert!(rejected.has("This form was not accepted"), "{}", rejected.body);
        }
        // A token is valid only in the browser that it was made for.
        let mut other = fixture.browser();
        other.get("/console/sign-in").await;
        let rejected = other.post("/console/queues/pause", &here, Some(&token), &pause).await;
        assert!(matches!(rejected.status, 303 | 403), "{access:?}: {}", rejected.status);
        assert!(
            !browser.get("/console/queues").await.has(">paused</span>"),
            "{access:?}: a rejected form paused the queue"
        );
        let done = browser.post("/console/queues/pause", &here, Some(&token), &pause).await;
        assert_eq!((done.status, done.header("location")), (303, "/console/queues?done=queue-paused"));
        assert!(browser.get("/console/queues").await.has(">paused</span>"));
    }
}

#[tokio::test]
async fn an_action_changes_only_the_selected_jobs() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let mut browser = fixture.browser();
    let mut ids = Vec::new();
    for number in 0..3 {
        ids.push(
            fixture
                .create_task(json!({"target": format!("http://a.example/{number}"), "delayMs": 60_000}), None)
                .await,
        );
    }
    let page = browser.get("/console/tasks?state=pending").await;
    let fields =
        [("action", "cancel"), ("id", &ids[0]), ("id", &ids[1]), ("back", "/console/tasks?state=pending")];
    let done = browser.submit("/console/act", &page, &fields).await;
    assert_eq!(
        done.header("location"),
        "/console/tasks?state=pending&done=selected&action=cancel&count=2&failed=0"
    );
    let list = browser.get(done.header("location")).await;
    assert!(list.has("2 jobs are cancelled.") && list.has(&ids[2]) && !list.has(&ids[0]), "{}", list.body);
    let again = browser.submit("/console/act", &page, &fields).await;
    assert!(again.header("location").ends_with("count=0&failed=2"), "{again:?}");
    let none = browser.submit("/console/act", &page, &[("action", "cancel")]).await;
    assert!(none.status == 422 && none.has("no job is selected"));
}

#[tokio::test]
async fn an_action_on_all_matching_jobs_shows_their_number_first() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let mut browser = fixture.browser();
    for number in 0..3 {
        fixture.create_task(json!({"target": format!("http://a.example/{number}")}), None).await;
    }
    fixture.fail_due_jobs("status 503", "busy").await;
    let confirmation = browser
        .get("/console/bulk?action=discard&state=dead&kind=delivery&target=http%3A%2F%2Fa.example")
        .await;
    assert!(
        confirmation.status == 200 && confirmation.has("<strong id=\"matched\">3</strong> dead tasks"),
        "{}",
        confirmation.body
    );
    let filter =
        [("action", "discard"), ("state", "dead"), ("kind", "delivery"), ("target", "http://a.example")];
    let unconfirmed = browser.submit("/console/bulk", &confirmation, &filter).await;
    assert!(unconfirmed.status == 422 && unconfirmed.has("this cannot be undone"), "{}", unconfirmed.body);
    let confirmed: Vec<_> = filter.into_iter().chain([("sure", "yes"), ("rate", "2")]).collect();
    let started = browser.submit("/console/bulk", &confirmation, &confirmed).await;
    assert!(started.header("location").starts_with("/console/operations/"), "{started:?}");
    let operation = browser.get(started.header("location")).await;
    assert!(operation.has("at most 2 per second") && operation.has("<progress"), "{}", operation.body);
    let cancelled = browser.submit(&format!("{}/cancel", started.header("location")), &operation, &[]).await;
    assert!(browser.get(cancelled.header("location")).await.has(">cancelled</span>"));
}

#[tokio::test]
async fn a_key_is_shown_once_and_after_the_first_one_the_console_needs_a_key() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let mut browser = fixture.browser();
    let page = browser.get("/console/keys").await;
    assert!(page.has("open to everyone on this machine"));
    let created = browser.submit("/console/keys", &page, &[("name", "ops"), ("scope", "admin")]).await;
    assert_eq!(created.status, 200, "{}", created.body);
    let key = created
        .body
        .split("id=\"created\" tabindex=\"0\">")
        .nth(1)
        .unwrap()
        .split('<')
        .next()
        .unwrap()
        .to_owned();
    assert!(key.starts_with("rdk_"), "{key}");
    assert_eq!(browser.get("/console/keys").await.status, 303, "the console must need a key now");
    let form = browser.get("/console/sign-in").await;
    browser.submit("/console/sign-in", &form, &[("key", &key)]).await;
    let page = browser.get("/console/keys").await;
    assert!(page.has("<strong>ops</strong>") && !page.has(&key), "{}", page.body);
    let revoke = format!("/console/keys/{}/revoke", key.split('_').nth(1).unwrap());
    let rejected = browser.submit(&revoke, &page, &[]).await;
    assert!(rejected.status == 409 && rejected.has("create another one first"), "{}", rejected.body);
    browser.submit("/console/keys", &page, &[("name", "second"), ("scope", "admin")]).await;
    assert_eq!(browser.submit(&revoke, &page, &[]).await.status, 303);
}

#[tokio::test]
async fn a_policy_is_previewed_saved_and_removed() {
    let fixture = Fixture::new(Access::OpenWithoutKeys).await;
    let mut browser = fixture.browser();
    let page = browser.get("/console/policies/design").await;
    assert!(
        page.has("Wait before each retry")
            && page.has("name=\"maxAttempts\" inputmode=\"numeric\" value=\"8\"")
    );
    let mut fields = vec![
        ("policyId", "mail"),
        ("maxAttempts", "4"),
        ("backoffType", "schedule"),
        ("delaysMs", "1000, 5000"),
        ("multiplier", "2"),
        ("jitterType", "none"),
        ("totalBudgetMs", ""),
        ("retryableStatusCodes", "503"),
        ("retryableGrpcCodes", "14"),
    ];
    assert!(page.has("to calculate it"), "{}", page.body);
    let whole_page = browser.submit("/console/policies/draw", &page, &fields).await;
    assert!(whole_page.has("<html") && whole_page.has("needed more than one attempt"), "{}", whole_page.body);
    let preview = browser.submit("/console/policies/draw?part=preview", &page, &fields).await;
    assert!(preview.has("<td>5 s</td>") && !preview.has("<html"), "{}", preview.body);
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
