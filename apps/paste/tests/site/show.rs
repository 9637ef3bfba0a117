//! Showing pastes: the response depends on the state, and readers do not wait for a failing object store.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::setup::{TIMEOUT, TestSite, on_both_databases, text};

on_both_databases!(each_state_has_its_response, readers_do_not_wait_for_a_failing_object_store);

async fn each_state_has_its_response(site: TestSite) {
    site.proxy.set_frozen(true);
    let process = site.start(&[]);
    let client = process.client();
    let content = format!("{}<script>alert(\"1\")</script>&amp;\u{0}", text("shown"));
    let paste = client.paste(&content).await;
    let paths = |code: &str| [format!("/{code}"), format!("/api/v1/pastes/{code}"), format!("/raw/{code}")];
    for path in paths(&paste.code) {
        let answer = client.get(&path).await;
        assert_eq!((answer.number(), answer.headers["retry-after"].to_str().unwrap()), (503, "1"), "{path}");
    }
    site.proxy.set_frozen(false);
    assert_eq!(client.final_status(&paste.code, TIMEOUT).await, 200);
    let [page, json, raw] = paths(&paste.code);
    let page = client.get(&page).await;
    let html = String::from_utf8_lossy(&page.body).into_owned();
    assert!(html.contains("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;amp;"), "{html}");
    assert!(page.headers["content-security-policy"].to_str().unwrap().contains("default-src 'none'"));
    assert_eq!(client.get(&json).await.json()["data"]["content"], content);
    let raw = client.get(&raw).await;
    assert_eq!((&raw.body[..], raw.number()), (content.as_bytes(), 200));
    assert_eq!(raw.headers["x-content-type-options"], "nosniff");

    // Failed, expired, removed and unknown pastes have the same response.
    let created =
        client.post(&json!({"content": text("ends"), "expiryDays": 1, "customAlias": "gone"})).await;
    assert_eq!(created.number(), 201);
    assert_eq!(client.final_status("gone", TIMEOUT).await, 200);
    for (state, change) in [
        ("failed", "UPDATE pastes SET status = 'FAILED' WHERE code = 'gone'"),
        ("expired", "UPDATE pastes SET status = 'PROCESSED', expires_at = created_at WHERE code = 'gone'"),
        ("removed", "DELETE FROM pastes WHERE code = 'gone'"),
    ] {
        assert_eq!(site.sql(change).await, 1);
        for (path, unknown) in paths("gone").iter().zip(paths("Unknown")) {
            let (answer, other) = (client.get(path).await, client.get(&unknown).await);
            assert_eq!((answer.number(), &answer.body), (404, &other.body), "{state}: {path}");
        }
    }
    assert_eq!(client.get("/no-code!").await.number(), 404);
}

async fn readers_do_not_wait_for_a_failing_object_store(site: TestSite) {
    let process = site.start(&[]);
    let client = process.client();
    let [first, second] = [client.paste(&text("kept")).await, client.paste(&text("read later")).await];
    for paste in [&first, &second] {
        assert_eq!(client.final_status(&paste.code, TIMEOUT).await, 200);
    }
    let path = |code: &str| format!("/raw/{code}");
    assert_eq!(client.get(&path(&first.code)).await.number(), 200);
    site.proxy.set_frozen(true);
    let cached = client.get(&path(&first.code)).await;
    assert_eq!(cached.body, first.content.as_bytes(), "cached content needs no object store");
    for _ in 0..paste::breaker::FAILURES_MAX {
        assert_eq!(client.get(&path(&second.code)).await.number(), 503);
    }
    // The fastest of a few requests counts, because a busy machine may delay single ones.
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        let refused = client.get(&path(&second.code)).await;
        assert_eq!(refused.number(), 503);
        assert!(refused.headers.contains_key("retry-after"));
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < Duration::from_millis(900), "the breaker must answer at once, not after {fastest:?}");
    site.proxy.set_frozen(false);
    let read = async {
        while client.get(&path(&second.code)).await.body != second.content.as_bytes() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, read)
        .await
        .expect("the content is read again once the object store answers");
}
