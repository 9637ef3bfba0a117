//! Large bodies: uploads, storage in the object store, and delivery.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::stream;
use http::Method;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::fixtures::{Client, Launch, Reply, Target};

const MIB: usize = 1024 * 1024;

/// Uploads a body in chunks, without a `Content-Length`. Returns its reference.
pub(crate) async fn upload(client: &Client, bytes: &Bytes) -> String {
    let response = try_upload(client, bytes).await;
    assert_eq!(response.status(), 201);
    let json: Value =
        serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!(json["bytes"], bytes.len());
    json["bodyRef"].as_str().unwrap().to_owned()
}

/// Uploads a body and returns the status of the answer.
pub(crate) async fn upload_status(client: &Client, bytes: &Bytes) -> u16 {
    try_upload(client, bytes).await.status().as_u16()
}

async fn try_upload(client: &Client, bytes: &Bytes) -> http::Response<hyper::body::Incoming> {
    let chunks: Vec<_> = bytes.chunks(MIB / 4).map(|chunk| Ok(Frame::data(bytes.slice_ref(chunk)))).collect();
    let body = BodyExt::boxed(StreamBody::new(stream::iter(chunks)));
    client.send(Method::PUT, "/v1/bodies", body).await.unwrap()
}

/// Random bytes, the same in each run.
pub(crate) fn random_bytes(bytes: usize) -> Bytes {
    let mut content = vec![0; bytes];
    fastrand::Rng::with_seed(7).fill(&mut content);
    content.into()
}

/// The files of the object store, except the one with its id.
fn stored_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let entries = entries.filter(|path| !path.ends_with(".redrive-bodies-id"));
    entries.flat_map(|path| if path.is_dir() { stored_files(&path) } else { vec![path] }).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_20_mib_is_uploaded_and_delivered_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    let body = random_bytes(20 * MIB);
    let name = upload(&client, &body).await;
    let id = client.create(&json!({"target": target.url("/"), "bodyRef": name})).await;
    let task = client.wait_for_end(&id).await;
    assert_eq!((&task["state"], &task["bodyRef"]), (&json!("succeeded"), &json!(name)));
    let call = target.wait_for_calls(1).await.pop().unwrap();
    assert_eq!(digest(&SHA256, &call.body).as_ref(), digest(&SHA256, &body).as_ref());
}

#[tokio::test]
async fn a_body_that_is_damaged_or_gone_is_never_sent() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    for damage in [flip_byte as fn(&Path), truncate_file, remove_file] {
        let name = upload(&client, &random_bytes(2 * MIB)).await;
        let id = client.create(&json!({"target": target.url("/"), "bodyRef": name, "delayMs": 60_000})).await;
        let files = stored_files(&folder.path().join("bodies"));
        assert_eq!(files.len(), 1, "{files:?}");
        damage(&files[0]);
        client.post(&format!("/v1/tasks/{id}/run-now"), &json!({})).await.json(200);
        let task = client.wait_for_end(&id).await;
        assert_eq!((&task["state"], &task["reason"]), (&json!("dead"), &json!("body_lost")), "{task}");
        let _ = std::fs::remove_file(&files[0]);
    }
    assert_eq!(target.count(), 0);
}

fn flip_byte(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[MIB] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

fn truncate_file(file: &Path) {
    std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(MIB as u64).unwrap();
}

fn remove_file(file: &Path) {
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn an_inline_body_that_is_too_large_for_a_row_is_kept_in_the_object_store() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    for (bytes, files) in [(1_000, 0), (100 * 1024, 1)] {
        let text = "0123456789".repeat(bytes / 10);
        let id = client.create(&json!({"target": target.url("/"), "body": text, "delayMs": 60_000})).await;
        assert_eq!(client.task(&id).await["bodyRef"].is_string(), files == 1);
        assert_eq!(stored_files(&folder.path().join("bodies")).len(), files);
        client.post(&format!("/v1/tasks/{id}/run-now"), &json!({})).await.json(200);
        assert_eq!(client.wait_for_end(&id).await["state"], "succeeded");
        assert_eq!(target.calls().pop().unwrap().body, text.as_bytes());
    }
}
