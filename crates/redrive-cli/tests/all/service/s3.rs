//! Bodies in a real S3 server, which goes down and comes back.

use redrive_testkit::servers::S3;
use serde_json::json;

use crate::fixtures::{Launch, Reply, Target};
use crate::service::bodies::{random_bytes, upload, upload_status};

#[tokio::test(flavor = "multi_thread")]
async fn tasks_with_a_body_in_s3_wait_until_its_outage_ends() {
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
    let body = random_bytes(12 * 1024 * 1024);
    let name = upload(&client, &body).await;
    let id = client.create(&json!({"target": target.url("/up"), "bodyRef": name})).await;
    assert_eq!(client.wait_for_end(&id).await["state"], "succeeded");
    assert_eq!(target.wait_for_calls(1).await.pop().unwrap().body, body);

    s3.kill();
    let down = client.create(&json!({"target": target.url("/down"), "bodyRef": name})).await;
    let small = client.create(&json!({"target": target.url("/small"), "body": "inline"})).await;
    assert_eq!(
        client.wait_for_end(&small).await["state"],
        "succeeded",
        "tasks without a stored body are delivered"
    );
    assert_eq!(upload_status(&client, &random_bytes(10)).await, 503);
    let waiting = client.task(&down).await;
    assert_eq!((&waiting["state"], &waiting["reason"]), (&json!("pending"), &json!(null)), "{waiting}");

    s3.restart();
    let task = client.wait_for_end(&down).await;
    assert_eq!((&task["state"], &task["attemptNumber"]), (&json!("succeeded"), &json!(1)), "{task}");
    assert_eq!(target.wait_for_calls(3).await.pop().unwrap().body, body);
}
