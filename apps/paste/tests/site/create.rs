//! Creating pastes: rejected requests, accepted ones, and no call to the object store.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::setup::{TIMEOUT, TestSite, on_both_databases, text};

on_both_databases!(
    a_paste_is_created_without_the_object_store,
    rejections_name_the_problem,
    large_content_is_returned_unchanged
);

async fn a_paste_is_created_without_the_object_store(site: TestSite) {
    // The object store hangs, so a request that waited for it would get no response.
    site.proxy.set_frozen(true);
    let process = site.start(&[]);
    let began = Instant::now();
    let answer = process.client().post(&json!({"content": text("accepted"), "expiryDays": 30})).await;
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
    // The row and its job exist.
    let jobs = if site.is_postgres() { "redrive.jobs" } else { "redrive_jobs" };
    assert_eq!(site.sql("SELECT count(*) FROM pastes WHERE status = 'IN_PROGRESS'").await, 1);
    assert!(site.sql(&format!("SELECT count(*) FROM {jobs}")).await >= 1);
    site.proxy.set_frozen(false);
    assert_eq!(process.client().final_status(code, TIMEOUT).await, 200);
    assert_eq!(site.sql("SELECT count(*) FROM pastes WHERE s3_url LIKE 's3://%'").await, 1);
    assert_eq!(
        site.sql("SELECT count(*) FROM contents").await,
        0,
        "the content is removed from the database after its upload"
    );
}

async fn rejections_name_the_problem(site: TestSite) {
    let process = site.start(&[]);
    let client = process.client();
    let valid = json!({"content": text("alias"), "expiryDays": 1, "customAlias": "Mine7"});
    assert_eq!(client.post(&valid).await.json()["data"]["shortCode"], "Mine7");
    for (request, status, code) in [
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
        let answer = client.post(&request).await;
        assert_eq!((answer.number(), answer.problem().as_str()), (status, code), "{:?}", answer.body);
        assert!(answer.json()["data"].is_null());
    }
    let too_large = Bytes::from(vec![b' '; 61 * 1024 * 1024]);
    let answer = client.try_call(Method::POST, "/api/v1/pastes", None, too_large).await;
    assert!(answer.is_none_or(|answer| answer.number() == 413), "the site must not accept the body");
    let rows = "SELECT (SELECT count(*) FROM pastes) + (SELECT count(*) FROM blobs)";
    assert_eq!(site.sql(rows).await, 2, "a rejected request must not leave rows behind");
}

async fn large_content_is_returned_unchanged(site: TestSite) {
    let process = site.start(&[]);
    let client = process.client();
    let largest = 10 * 1024 * 1024;
    // The content is streamed in several parts. Quotes and multi-byte characters are where the parts are split.
    let pattern: String = "\"€\\\n".chars().cycle().take(largest / 6 * 4).collect();
    let content = format!("{pattern}{}", "z".repeat(largest - pattern.len()));
    assert_eq!(content.len(), largest);
    let paste = client.paste(&content).await;
    assert_eq!(client.final_status(&paste.code, TIMEOUT).await, 200);
    let raw = client.get(&format!("/raw/{}", paste.code)).await;
    assert_eq!(raw.headers["content-length"], largest.to_string());
    assert!(raw.body == content.as_bytes(), "the raw text differs from the content");
    let json = client.get(&format!("/api/v1/pastes/{}", paste.code)).await.json();
    assert!(json["data"]["content"] == content.as_str(), "the JSON differs from the content");
}
