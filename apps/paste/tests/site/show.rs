//! Showing pastes: each state has its answer, and a failing object store is not waited for.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::stage::{SOON, World, on_both, text};

on_both!(each_state_has_its_answer, a_failing_object_store_is_not_waited_for);

async fn each_state_has_its_answer(world: World) {
    world.proxy.freeze(true);
    let site = world.start(&[]);
    let client = site.client();
    let content = format!("{}<script>alert(\"1\")</script>&amp;\u{0}", text("shown"));
    let made = client.paste(&content).await;
    let paths = |code: &str| [format!("/{code}"), format!("/api/v1/pastes/{code}"), format!("/raw/{code}")];
    for path in paths(&made.code) {
        let answer = client.get(&path).await;
        assert_eq!((answer.number(), answer.headers["retry-after"].to_str().unwrap()), (503, "1"), "{path}");
    }
    world.proxy.freeze(false);
    assert_eq!(client.ended(&made.code, SOON).await, 200);
    let [page, json, raw] = paths(&made.code);
    let page = client.get(&page).await;
    let html = String::from_utf8_lossy(&page.body).into_owned();
    assert!(html.contains("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;amp;"), "{html}");
    assert!(page.headers["content-security-policy"].to_str().unwrap().contains("default-src 'none'"));
    assert_eq!(client.get(&json).await.json()["data"]["content"], content);
    let raw = client.get(&raw).await;
    assert_eq!((&raw.body[..], raw.number()), (content.as_bytes(), 200));
    assert_eq!(raw.headers["x-content-type-options"], "nosniff");

    // Whatever is not there is not there in the same words.
    let ended = client.post(&json!({"content": text("ends"), "expiryDays": 1, "customAlias": "gone"})).await;
    assert_eq!(ended.number(), 201);
    assert_eq!(client.ended("gone", SOON).await, 200);
    for (now, change) in [
        ("failed", "UPDATE pastes SET status = 'FAILED' WHERE code = 'gone'"),
        ("expired", "UPDATE pastes SET status = 'PROCESSED', expires_at = created_at WHERE code = 'gone'"),
        ("removed", "DELETE FROM pastes WHERE code = 'gone'"),
    ] {
        assert_eq!(world.sql(change).await, 1);
        for (path, unknown) in paths("gone").iter().zip(paths("Unknown")) {
            let (answer, other) = (client.get(path).await, client.get(&unknown).await);
            assert_eq!((answer.number(), &answer.body), (404, &other.body), "{now}: {path}");
        }
    }
    assert_eq!(client.get("/no-code!").await.number(), 404);
}

async fn a_failing_object_store_is_not_waited_for(world: World) {
    let site = world.start(&[]);
    let client = site.client();
    let [first, second] = [client.paste(&text("kept")).await, client.paste(&text("read later")).await];
    for made in [&first, &second] {
        assert_eq!(client.ended(&made.code, SOON).await, 200);
    }
    let path = |code: &str| format!("/raw/{code}");
    assert_eq!(client.get(&path(&first.code)).await.number(), 200);
    world.proxy.freeze(true);
    let cached = client.get(&path(&first.code)).await;
    assert_eq!(cached.body, first.content.as_bytes(), "what is in memory needs no object store");
    for _ in 0..paste::breaker::FAILURES_MAX {
        assert_eq!(client.get(&path(&second.code)).await.number(), 503);
    }
    // The quickest of a few: a busy machine may hold any one of them up.
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        let refused = client.get(&path(&second.code)).await;
        assert_eq!(refused.number(), 503);
        assert!(refused.headers.contains_key("retry-after"));
        quickest = quickest.min(began.elapsed());
    }
    assert!(quickest < Duration::from_millis(900), "at once, not after {quickest:?}");
    world.proxy.freeze(false);
    let read = async {
        while client.get(&path(&second.code)).await.body != second.content.as_bytes() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(SOON, read).await.expect("it is read again once the object store answers");
}
