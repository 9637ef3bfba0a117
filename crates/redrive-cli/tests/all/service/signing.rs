//! Signed deliveries as their receiver checks them, and where the secret is not.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use serde_json::json;

use crate::stage::{Call, Client, Launch, Reply, Target};
use crate::startup::scan;

#[tokio::test]
async fn deliveries_verify_by_standard_webhooks_and_by_both_secrets_after_a_rotation() {
    let folder = tempfile::tempdir().unwrap();
    let service = Launch::new(folder.path()).start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    let no_body = json!({});
    let made = client.put("/signing-secrets/main", &no_body).await.json(201);
    let first = made["secret"].as_str().unwrap().to_owned();

    let call = deliver(&client, &target).await;
    assert_eq!(verified(&call, &[&first]), [true]);
    assert_eq!(call.header("webhook-signature").split(' ').count(), 1);
    let forged = Call { body: b"something else".to_vec(), ..call };
    assert_eq!(verified(&forged, &[&first]), [false]);

    let second = client.put("/signing-secrets/main", &no_body).await.json(200);
    let second = second["secret"].as_str().unwrap().to_owned();
    assert_ne!(first, second);
    assert_eq!(verified(&deliver(&client, &target).await, &[&first, &second]), [true, true]);
    assert_eq!(client.delete("/signing-secrets/main/previous").await.status, 204);
    assert_eq!(verified(&deliver(&client, &target).await, &[&first, &second]), [false, true]);

    for secret in [&first, &second] {
        check_hidden(&client, folder.path(), secret).await;
    }
}

async fn deliver(client: &Client, target: &Target) -> Call {
    let before = target.count();
    let task = json!({"targetUrl": target.url("/"), "signingSecret": "main", "body": "{\"order\": 7}"});
    let id = client.create(&task).await;
    let call = target.expect(before + 1).await.pop().unwrap();
    assert_eq!(client.ended(&id).await["status"], "SUCCEEDED");
    call
}

/// Which of the secrets have signed a call, worked out as the specification says.
fn verified(call: &Call, secrets: &[&String]) -> Vec<bool> {
    let (id, at) = (call.header("webhook-id"), call.header("webhook-timestamp"));
    let age = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() - at.parse::<u64>().unwrap();
    assert!(age < 300, "signed {age} s ago");
    let content = [format!("{id}.{at}.").as_bytes(), &call.body].concat();
    let verify = |secret: &&String| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &raw(secret));
        let mut signatures =
            call.header("webhook-signature").split(' ').filter_map(|one| one.strip_prefix("v1,"));
        signatures.any(|one| hmac::verify(&key, &content, &BASE64_STANDARD.decode(one).unwrap()).is_ok())
    };
    secrets.iter().map(verify).collect()
}

fn raw(secret: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap()
}

/// Neither in a file, as text or as bytes, nor in anything the API shows.
async fn check_hidden(client: &Client, folder: &std::path::Path, secret: &str) {
    let encoded = secret.strip_prefix("whsec_").unwrap();
    assert!(!scan(folder, encoded.as_bytes()) && !scan(folder, &raw(secret)), "the secret is in a file");
    for path in ["/signing-secrets", "/retry-tasks", "/retry-policies", "/metrics"] {
        let shown = String::from_utf8_lossy(&client.get(path).await.body).into_owned();
        assert!(!shown.contains(encoded), "{path} shows the secret");
    }
}
