//! Bodies in a real S3 server: through its end, and after it is back.

use redrive_testkit::servers::S3;
use serde_json::json;

use crate::bodies::{noise, upload, upload_answer};
use crate::stage::{Launch, Reply, Target};

#[tokio::test(flavor = "multi_thread")]
async fn bodies_survive_in_s3_and_wait_out_its_outage() {
    let folder = tempfile::tempdir().unwrap();
    let mut s3 = S3::start();
    s3.create_bucket("bodies");
    let service = Launch::new(folder.path())
        .flags(&["--bodies", "s3://bodies/here"])
        .variable("AWS_ENDPOINT_URL", &format!("http://{}", s3.address()))
        .variable("AWS_ALLOW_HTTP", "true")
        .variable("AWS_REGION", "us-east-1")
        .variable("AWS_ACCESS_KEY_ID", "any")
        .variable("AWS_SECRET_ACCESS_KEY", "any")
        .start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    let body = noise(12 * 1024 * 1024);
    let name = upload(&client, &body).await;
    let id = client.create(&json!({"targetUrl": target.url("/up"), "bodyRef": name})).await;
    assert_eq!(client.ended(&id).await["status"], "SUCCEEDED");
    assert_eq!(target.expect(1).await.pop().unwrap().body, body);

    s3.kill();
    let down = client.create(&json!({"targetUrl": target.url("/down"), "bodyRef": name})).await;
    let small = client.create(&json!({"targetUrl": target.url("/small"), "body": "inline"})).await;
    assert_eq!(client.ended(&small).await["status"], "SUCCEEDED", "what needs no object store goes on");
    let more = upload_answer(&client, &noise(10)).await;
    assert_eq!(more, 503);
    let waits = client.task(&down).await;
    assert_eq!((&waits["status"], &waits["reason"]), (&json!("PENDING"), &json!(null)), "{waits}");

    s3.restart();
    let task = client.ended(&down).await;
    assert_eq!((&task["status"], &task["attemptNumber"]), (&json!("SUCCEEDED"), &json!(1)), "{task}");
    assert_eq!(target.expect(3).await.pop().unwrap().body, body);
}
