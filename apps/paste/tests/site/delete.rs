//! Removing pastes: only the owner may, and the blob is removed with its last paste.

use crate::setup::{TIMEOUT, TestSite, on_both_databases, text};

on_both_databases!(
    only_the_owner_can_remove_a_paste,
    a_removal_survives_an_outage_and_a_crash,
    a_paste_can_be_removed_during_its_upload
);

async fn only_the_owner_can_remove_a_paste(site: TestSite) {
    let process = site.start(&[]);
    let client = process.client();
    let paste = client.paste(&text("owned")).await;
    let other = client.paste(&text("other")).await;
    assert_eq!(client.final_status(&paste.code, TIMEOUT).await, 200);
    assert_eq!(client.get(&format!("/raw/{}", paste.code)).await.number(), 200);
    assert_eq!(client.delete(&paste.code, None).await.number(), 401);
    assert_eq!(client.delete(&paste.code, Some(&other.token)).await.number(), 403);
    assert_eq!(client.delete("Unknown", Some(&paste.token)).await.number(), 404);
    assert_eq!(client.head(&paste.code).await, 200);
    assert_eq!(client.delete(&paste.code, Some(&paste.token)).await.number(), 204);
    let read = client.get(&format!("/raw/{}", paste.code)).await;
    assert_eq!(read.number(), 404, "the removal takes effect at once, although the content is cached");
    assert_eq!(client.delete(&paste.code, Some(&paste.token)).await.number(), 404);
    assert_eq!(client.final_status(&other.code, TIMEOUT).await, 200);
    site.wait_for_count("SELECT count(*) FROM blobs", 1).await;
    site.wait_for_objects(1).await;
}

async fn a_removal_survives_an_outage_and_a_crash(site: TestSite) {
    let mut process = site.start(&["--lease", "1"]);
    let client = process.client();
    let paste = client.paste(&text("removed")).await;
    assert_eq!(client.final_status(&paste.code, TIMEOUT).await, 200);
    site.proxy.set_refusing(true);
    assert_eq!(client.delete(&paste.code, Some(&paste.token)).await.number(), 204);
    site.wait_for_count("SELECT count(*) FROM blobs WHERE state = 'removing'", 1).await;
    process.kill();
    site.proxy.set_refusing(false);
    assert_eq!(site.objects().await, 1, "the object is not removed yet");
    let _restarted = site.start(&["--lease", "1"]);
    site.wait_for_count("SELECT count(*) FROM blobs", 0).await;
    site.wait_for_objects(0).await;
}

async fn a_paste_can_be_removed_during_its_upload(site: TestSite) {
    site.proxy.set_frozen(true);
    let process = site.start(&["--upload-timeout", "1"]);
    let client = process.client();
    let paste = client.paste(&text("never read")).await;
    assert_eq!(client.delete(&paste.code, Some(&paste.token)).await.number(), 204);
    assert_eq!(client.head(&paste.code).await, 404);
    site.proxy.set_frozen(false);
    site.wait_for_count("SELECT count(*) FROM blobs", 0).await;
    site.wait_for_objects(0).await;
    assert_eq!(site.sql("SELECT count(*) FROM contents").await, 0);
}
