//! Bodies whose user is not the task that they were claimed for.

use super::*;

/// Replaces the payload of a task under a unique key, as the store does; answers the job that it led to.
async fn replace(world: &World, task: u128, body: &BodyRef) -> JobId {
    let unique = Unique { key: UniqueKey::new("k").unwrap(), rule: UniqueRule::Replace };
    let new = NewJob::new(job(task), Kind::new("delivery").unwrap(), policy(), names(body));
    let new = NewJob { tenant: me(), unique: Some(unique), ..new };
    world.store.enqueue(vec![new]).await.unwrap().remove(0).id()
}

#[tokio::test]
async fn a_body_that_replaced_another_is_kept_and_the_former_is_collected() {
    for (world, confirmed) in World::both().into_iter().zip([true, false]) {
        let (first, second) = (world.put_text("first").await, world.put_text("second").await);
        for (task, body) in [(1, &first), (2, &second)] {
            claim_for_replacement(&world.store, body, &me(), job(task), world.now()).await.unwrap();
            let user = replace(&world, task, body).await;
            assert_eq!(user, job(1));
            // Without this someone has crashed after the enqueue.
            if confirmed {
                confirm_user(&world.store, body, &me(), user).await.unwrap();
            }
        }
        world.clock.advance(DAY - Duration::from_millis(1));
        assert_eq!(world.collect().await, 0, "not old enough");
        world.clock.advance(Duration::from_millis(1));
        assert_eq!(world.collect().await, 1, "confirmed: {confirmed}");
        for (body, kept) in [(first, false), (second, true)] {
            assert_eq!(world.bodies.exists(&body, &me()).await.unwrap(), kept, "confirmed: {confirmed}");
        }
        let record = world.store.scan(KIND, None, 1).await.unwrap().remove(0);
        let held = Held::parse(&record).unwrap();
        assert!(held.tasks.contains(&job(1)) && !held.may_have_other_user, "what was found is noted");
        assert_eq!(world.collect().await, 0);
    }
}

#[tokio::test]
async fn the_record_of_an_older_release_is_understood() {
    let world = World::in_folder();
    let (used, orphan) = (world.put_text("used").await, world.put_text("orphan").await);
    for (body, claimed, user) in [(used, 2, Some(1)), (orphan, 3, None)] {
        let id = record_id(&me(), &body);
        let old = serde_json::json!({
            "tenant": "me", "createdAtMs": 0, "touchedAtMs": 0, "tasks": [job(claimed)],
            "state": { "stored": { "body": body } },
        });
        let value = Some(old.to_string().into_bytes());
        let change = redrive_core::records::Change { kind: KIND.into(), id, expect: Expect::Any, value };
        world.store.write(change).await.unwrap();
        if let Some(user) = user {
            // It was claimed for a task that replaced another one.
            world.enqueue(user, &body).await;
        }
    }
    assert_eq!(world.collect().await, 1);
    assert!(world.bodies.exists(&used, &me()).await.unwrap(), "its user was found");
    fs::remove_file(world.files().remove(0)).unwrap();
    let verified = world.bodies.verified(&world.store, &used, &me()).await;
    assert!(matches!(verified, Err(GetError::Lost(_))), "it cannot be told to be elsewhere: {verified:?}");
}

#[tokio::test]
async fn a_released_claim_makes_room_for_another() {
    let world = World::new(None);
    let body = world.put_text("hello").await;
    for task in 0..2 * TASKS_MAX as u128 {
        world.claim(&body, task).await.unwrap();
        release(&world.store, &body, &me(), job(task)).await.unwrap();
    }
    world.clock.advance(DAY);
    assert_eq!(world.collect().await, 1);
    assert!(matches!(release(&world.store, &body, &me(), job(1)).await, Err(ClaimError::Gone)));
}
