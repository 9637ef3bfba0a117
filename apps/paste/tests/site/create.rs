//! Taking pastes: what is refused, what is promised, and that the object store has no part in it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::stage::{SOON, World, on_both, text};

on_both!(a_paste_is_taken_without_the_object_store, refusals_name_what_is_wrong, large_content_comes_back);

async fn a_paste_is_taken_without_the_object_store(world: World) {
    // It hangs: whoever waited for it would not answer.
    world.proxy.freeze(true);
    let site = world.start(&[]);
    let began = Instant::now();
    let answer = site.client().post(&json!({"content": text("taken"), "expiryDays": 30})).await;
    assert_eq!(answer.number(), 201);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let body = answer.json();
    let data = &body["data"];
    assert_eq!((&data["status"], &body["error"]), (&json!("IN_PROGRESS"), &json!(null)));
    let code = data["shortCode"].as_str().unwrap();
    assert!(code.len() >= 6 && code.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{code}");
    assert!(data["ownerToken"].as_str().unwrap().len() >= 32);
    let expires: jiff::Timestamp = data["expiresAt"].as_str().unwrap().parse().unwrap();
    let days = (expires - jiff::Timestamp::now()).total(jiff::Unit::Second).unwrap() / 86_400.0;
    assert!((29.9..30.1).contains(&days), "{expires}");
    // The row and its job are there together.
    let jobs = if world.is_postgres() { "redrive.jobs" } else { "redrive_jobs" };
    assert_eq!(world.sql("SELECT count(*) FROM pastes WHERE status = 'IN_PROGRESS'").await, 1);
    assert!(world.sql(&format!("SELECT count(*) FROM {jobs}")).await >= 1);
    world.proxy.freeze(false);
    assert_eq!(site.client().ended(code, SOON).await, 200);
    assert_eq!(world.sql("SELECT count(*) FROM pastes WHERE s3_url LIKE 's3://%'").await, 1);
    assert_eq!(world.sql("SELECT count(*) FROM contents").await, 0, "it is in the object store now");
}

async fn refusals_name_what_is_wrong(world: World) {
    let site = world.start(&[]);
    let client = site.client();
    let fine = json!({"content": text("alias"), "expiryDays": 1, "customAlias": "Mine7"});
    assert_eq!(client.post(&fine).await.json()["data"]["shortCode"], "Mine7");
    for (ask, number, code) in [
        (json!({"content": "", "expiryDays": 7}), 400, "EMPTY"),
        (json!({"content": "x", "expiryDays": 2}), 400, "EXPIRY"),
        (json!({"content": "x"}), 400, "MALFORMED"),
        (json!({"content": 7, "expiryDays": 7}), 400, "MALFORMED"),
        (json!({"content": "x", "expiryDays": 7, "customAlias": "123456789"}), 400, "ALIAS"),
        (json!({"content": "x", "expiryDays": 7, "customAlias": "a-b"}), 400, "ALIAS"),
        (json!({"content": "x", "expiryDays": 7, "customAlias": "Raw"}), 400, "ALIAS_RESERVED"),
        (json!({"content": "x", "expiryDays": 7, "customAlias": "Mine7"}), 409, "ALIAS_TAKEN"),
        (json!({"content": "y".repeat(10 * 1024 * 1024 + 1), "expiryDays": 7}), 413, "TOO_LARGE"),
    ] {
        let answer = client.post(&ask).await;
        assert_eq!((answer.number(), answer.problem().as_str()), (number, code), "{:?}", answer.body);
        assert!(answer.json()["data"].is_null());
    }
    let endless = Bytes::from(vec![b' '; 61 * 1024 * 1024]);
    let answer = client.try_call(Method::POST, "/api/v1/pastes", None, endless).await;
    assert!(answer.is_none_or(|answer| answer.number() == 413), "refused before or while it comes in");
    let rows = "SELECT (SELECT count(*) FROM pastes) + (SELECT count(*) FROM blobs)";
    assert_eq!(world.sql(rows).await, 2, "what was refused has left nothing");
}

async fn large_content_comes_back(world: World) {
    let site = world.start(&[]);
    let client = site.client();
    let largest = 10 * 1024 * 1024;
    // Streamed in several parts, with quotes and characters of several bytes where they are cut.
    let most: String = "\"€\\\n".chars().cycle().take(largest / 6 * 4).collect();
    let content = format!("{most}{}", "z".repeat(largest - most.len()));
    assert_eq!(content.len(), largest);
    let made = client.paste(&content).await;
    assert_eq!(client.ended(&made.code, SOON).await, 200);
    let raw = client.get(&format!("/raw/{}", made.code)).await;
    assert_eq!(raw.headers["content-length"], largest.to_string());
    assert!(raw.body == content.as_bytes(), "the text is another");
    let json = client.get(&format!("/api/v1/pastes/{}", made.code)).await.json();
    assert!(json["data"]["content"] == content.as_str(), "the JSON is another");
}
