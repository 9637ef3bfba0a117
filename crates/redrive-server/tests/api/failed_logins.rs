//! The limit of failed logins: an attacker cannot guess API keys quickly, and does not lock out other callers.

use std::time::Instant;

use redrive_server::ListenLimits;

use crate::socket::{Client, HttpAnswer, ListeningService, admin_key};

async fn try_key(client: &mut Client, key: &str) -> HttpAnswer {
    client.ask("GET", "/v1/tasks", &[("authorization", &format!("Bearer {key}"))], b"").await
}

#[tokio::test]
async fn guesses_are_limited_per_peer_and_a_verified_key_still_passes() {
    let (service, key) = ListeningService::with_key(ListenLimits::default()).await;
    let mut client = service.connect().await;
    assert_eq!(try_key(&mut client, &key).await.status, 200);

    let (mut checked, began) = (0, Instant::now());
    for number in 0..500 {
        let got = try_key(&mut client, &format!("rdk_{number:016x}_{number}")).await;
        match got.problem() {
            (401, _) => checked += 1,
            problem => {
                assert_eq!(problem, (429, "too_many_failed_logins".to_owned()));
                assert_eq!(got.header("retry-after"), Some("1"));
            }
        }
    }
    let allowed = 20 + began.elapsed().as_secs() + 1;
    assert!(checked <= allowed, "{checked} guesses were checked, {allowed} are allowed");

    assert_eq!(try_key(&mut client, &key).await.status, 200, "a verified key passes");
    assert_eq!(try_key(&mut service.connect().await, &key).await.status, 200);
    let mut other = service.connect_from(2).await;
    let new = admin_key(&service.store).await;
    assert_eq!(
        try_key(&mut other, "rdk_0123456789abcdef_x").await.status,
        401,
        "another peer has its own budget"
    );
    assert_eq!(try_key(&mut other, &new).await.status, 200, "a new key from another peer passes");
    assert_eq!(try_key(&mut client, &new).await.status, 200, "a key that another peer has verified passes");
}
