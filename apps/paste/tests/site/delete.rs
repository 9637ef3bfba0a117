//! Removing pastes: only for the owner, and the blob goes with the last.

use crate::stage::{SOON, World, on_both, text};

on_both!(only_the_owner_removes, the_removal_waits_for_the_object_store, what_is_still_uploading_goes_too);

async fn only_the_owner_removes(world: World) {
    let site = world.start(&[]);
    let client = site.client();
    let made = client.paste(&text("owned")).await;
    let other = client.paste(&text("other")).await;
    assert_eq!(client.ended(&made.code, SOON).await, 200);
    assert_eq!(client.get(&format!("/raw/{}", made.code)).await.number(), 200);
    assert_eq!(client.delete(&made.code, None).await.number(), 401);
    assert_eq!(client.delete(&made.code, Some(&other.token)).await.number(), 403);
    assert_eq!(client.delete("Unknown", Some(&made.token)).await.number(), 404);
    assert_eq!(client.head(&made.code).await, 200);
    assert_eq!(client.delete(&made.code, Some(&made.token)).await.number(), 204);
    let read = client.get(&format!("/raw/{}", made.code)).await;
    assert_eq!(read.number(), 404, "at once, though its content is in memory");
    assert_eq!(client.delete(&made.code, Some(&made.token)).await.number(), 404);
    assert_eq!(client.ended(&other.code, SOON).await, 200);
    world.until("SELECT count(*) FROM blobs", 1).await;
    world.until_objects(1).await;
}

async fn the_removal_waits_for_the_object_store(world: World) {
    let mut site = world.start(&["--lease", "1"]);
    let client = site.client();
    let made = client.paste(&text("removed")).await;
    assert_eq!(client.ended(&made.code, SOON).await, 200);
    world.proxy.refuse(true);
    assert_eq!(client.delete(&made.code, Some(&made.token)).await.number(), 204);
    world.until("SELECT count(*) FROM blobs WHERE state = 'removing'", 1).await;
    site.kill();
    world.proxy.refuse(false);
    assert_eq!(world.objects().await, 1, "it is still there");
    let _again = world.start(&["--lease", "1"]);
    world.until("SELECT count(*) FROM blobs", 0).await;
    world.until_objects(0).await;
}

async fn what_is_still_uploading_goes_too(world: World) {
    world.proxy.freeze(true);
    let site = world.start(&["--upload-timeout", "1"]);
    let client = site.client();
    let made = client.paste(&text("never read")).await;
    assert_eq!(client.delete(&made.code, Some(&made.token)).await.number(), 204);
    assert_eq!(client.head(&made.code).await, 404);
    world.proxy.freeze(false);
    world.until("SELECT count(*) FROM blobs", 0).await;
    world.until_objects(0).await;
    assert_eq!(world.sql("SELECT count(*) FROM contents").await, 0);
}
