//! Bodies that a replaced job uses, and not the task that they were attached to.

use super::*;

/// Enqueues a task that replaces another one with the same unique key. Returns the job that uses the body.
async fn replace(fixture: &BodyFixture, task: u128, body: &BodyRef) -> JobId {
    let unique = Unique { key: UniqueKey::new("k").unwrap(), rule: UniqueRule::Replace };
    let new = NewJob::new(job(task), Kind::new("delivery").unwrap(), policy(), payload_with(body));
    let new = NewJob { tenant: me(), unique: Some(unique), ..new };
    fixture.store.enqueue(vec![new]).await.unwrap().remove(0).id()
}

#[tokio::test]
async fn a_body_that_replaced_another_is_kept_and_the_former_is_collected() {
    for (fixture, confirmed) in BodyFixture::both().into_iter().zip([true, false]) {
        let (first, second) = (fixture.put_text("first").await, fixture.put_text("second").await);
        for (task, body) in [(1, &first), (2, &second)] {
            attach_to_replacement(&fixture.store, body, &me(), job(task), fixture.now()).await.unwrap();
            let user = replace(&fixture, task, body).await;
            assert_eq!(user, job(1));
            // Without this, the process has crashed after the enqueue.
            if confirmed {
                confirm_attached(&fixture.store, body, &me(), user).await.unwrap();
            }
        }
        fixture.clock.advance(DAY - Duration::from_millis(1));
        assert_eq!(fixture.collect().await, 0, "the body is not old enough");
        fixture.clock.advance(Duration::from_millis(1));
        assert_eq!(fixture.collect().await, 1, "confirmed: {confirmed}");
        for (body, kept) in [(first, false), (second, true)] {
            assert_eq!(fixture.bodies.exists(&body, &me()).await.unwrap(), kept, "confirmed: {confirmed}");
        }
        let record = fixture.body_records().all("").await.unwrap().remove(0).value;
        assert!(
            record.tasks.contains(&job(1)) && !record.may_have_other_user,
            "the job that was found is recorded"
        );
        assert_eq!(fixture.collect().await, 0);
    }
}

#[tokio::test]
async fn the_record_of_an_older_release_can_be_read() {
    let fixture = BodyFixture::in_folder();
    let (used, orphan) = (fixture.put_text("used").await, fixture.put_text("orphan").await);
    for (body, attached_task, user) in [(used, 2, Some(1)), (orphan, 3, None)] {
        let id = record_id(&me(), &body);
        let old = serde_json::json!({
            "tenant": "me", "createdAtMs": 0, "touchedAtMs": 0, "tasks": [job(attached_task)],
            "state": { "stored": { "body": body } },
        });
        let value = Some(old.to_string().into_bytes());
        let expect = redrive_core::records::Precondition::Any;
        let change = redrive_core::records::RecordWrite { kind: KIND.into(), id, expect, value };
        fixture.store.write(change).await.unwrap();
        if let Some(user) = user {
            // The body was attached to a task that replaced another one.
            fixture.enqueue(user, &body).await;
        }
    }
    assert_eq!(fixture.collect().await, 1);
    assert!(
        fixture.bodies.exists(&used, &me()).await.unwrap(),
        "the collector found the job that uses the body"
    );
    fs::remove_file(fixture.files().remove(0)).unwrap();
    let verified = fixture.bodies.get_verified(&fixture.store, &used, &me()).await;
    assert!(matches!(verified, Err(GetError::Lost(_))), "the record names no other location: {verified:?}");
}

#[tokio::test]
async fn a_detached_task_makes_room_for_another() {
    let fixture = BodyFixture::new(None);
    let body = fixture.put_text("hello").await;
    for task in 0..2 * TASKS_PER_BODY_MAX as u128 {
        fixture.attach(&body, task).await.unwrap();
        detach(&fixture.store, &body, &me(), job(task)).await.unwrap();
    }
    fixture.clock.advance(DAY);
    assert_eq!(fixture.collect().await, 1);
    assert!(matches!(detach(&fixture.store, &body, &me(), job(1)).await, Err(AttachError::Gone)));
}
