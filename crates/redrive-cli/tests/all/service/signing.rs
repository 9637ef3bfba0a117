//! Signed deliveries: the receiver can verify them, and the secret is in no file and no answer.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use serde_json::json;

use crate::fixtures::{Call, Client, Launch, Reply, Target};
use crate::service::startup::any_file_contains;

#[tokio::test]
async fn deliveries_have_standard_webhooks_signatures_of_both_secrets_after_a_rotation() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    let no_body = json!({});
    let created = client.put("/v1/signing-secrets/main", &no_body).await.json(201);
    let first = created["secret"].as_str().unwrap().to_owned();

    let call = deliver(&client, &target).await;
    assert_eq!(verified(&call, &[&first]), [true]);
    assert_eq!(call.header("webhook-signature").split(' ').count(), 1);
    let forged = Call { body: b"something else".to_vec(), ..call };
    assert_eq!(verified(&forged, &[&first]), [false]);

    let second = client.put("/v1/signing-secrets/main", &no_body).await.json(200);
    let second = second["secret"].as_str().unwrap().to_owned();
    assert_ne!(first, second);
    assert_eq!(verified(&deliver(&client, &target).await, &[&first, &second]), [true, true]);
    assert_eq!(client.delete("/v1/signing-secrets/main/previous").await.status, 204);
    assert_eq!(verified(&deliver(&client, &target).await, &[&first, &second]), [false, true]);

    for secret in [&first, &second] {
        check_hidden(&client, folder.path(), secret).await;
    }
}

async fn deliver(client: &Client, target: &Target) -> Call {
    let before = target.count();
    let task = json!({"target": target.url("/"), "signingSecret": "main", "body": "{\"order\": 7}"});
    let id = client.create(&task).await;
    let call = target.wait_for_calls(before + 1).await.pop().unwrap();
    assert_eq!(client.wait_for_end(&id).await["state"], "succeeded");
    call
}

/// Whether each secret has signed a call, verified according to the specification of Standard Webhooks.
fn verified(call: &Call, secrets: &[&String]) -> Vec<bool> {
    let (id, at) = (call.header("webhook-id"), call.header("webhook-timestamp"));
    let age = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() - at.parse::<u64>().unwrap();
    assert!(age < 300, "signed {age} s ago");
    let content = [format!("{id}.{at}.").as_bytes(), &call.body].concat();
    let verify = |secret: &&String| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret_bytes(secret));
        let mut signatures =
            call.header("webhook-signature").split(' ').filter_map(|one| one.strip_prefix("v1,"));
        signatures.any(|one| hmac::verify(&key, &content, &BASE64_STANDARD.decode(one).unwrap()).is_ok())
    };
    secrets.iter().map(verify).collect()
}

fn secret_bytes(secret: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap()
}

/// Checks that no file contains the secret, as text or as bytes, and that no answer of the API does.
async fn check_hidden(client: &Client, folder: &std::path::Path, secret: &str) {
    let encoded = secret.strip_prefix("whsec_").unwrap();
    for bytes in [encoded.as_bytes(), &secret_bytes(secret)] {
        assert!(!any_file_contains(folder, bytes), "the secret is in a file");
    }
    for path in ["/v1/signing-secrets", "/v1/tasks", "/v1/policies", "/metrics"] {
        let shown = String::from_utf8_lossy(&client.get(path).await.body).into_owned();
        assert!(!shown.contains(encoded), "{path} shows the secret");
    }
}
