//! Transfer, but for jobs: records, promised keys, and the seal that stops work meanwhile.

use std::time::Duration;

use redrive_core::records::{EVERY_QUEUE, Expect, PAUSED, Written};
use redrive_core::store::{ClaimRequest, Enqueued, Extended, Retention, Settled};
use redrive_core::transfer::{BEING_FILLED, MOVED_AWAY, Promise, SEALED, Slot};
use redrive_core::{JobId, Lease, NewJob, State, UniqueKey, UniqueRule, Verdict};

use super::chapter;
use super::stage::{LEASE, Stage, claim_request, ids, job_id, kind, only, queue, reclaim_request};
use super::transfer::unique;

chapter!("transfer":
    a_promise_outlives_its_job_in_the_new_store,
    a_promise_does_not_take_a_key_in_force,
    records_come_with_their_versions_and_removals,
    an_import_of_records_never_goes_back,
    imported_records_rule_like_written_ones,
    a_seal_stops_claims_and_reclaims,
    a_seal_is_no_pause,
);

/// A promise whose job is gone, in the model.
async fn promised(model: &Stage, span: Duration) -> JobId {
    let id = model.enqueue(unique(model.own_job(), "u", UniqueRule::For(span))).await;
    model.lead(id, State::Succeeded).await;
    let none = Retention { succeeded: Duration::ZERO, dead: Duration::ZERO, cancelled: Duration::ZERO };
    assert_eq!(model.store.prune(none, 10).await.expect("prune"), 1);
    id
}

async fn a_promise_outlives_its_job_in_the_new_store(stage: Stage) {
    let gone = promised(&stage, LEASE).await;
    let promises = stage.promises().await;
    let (until, key) = (stage.now().after(LEASE), UniqueKey::new("u").expect("legal"));
    let expected = Promise { tenant: Default::default(), kind: kind("work"), key, job: gone, until };
    assert_eq!(promises, [expected]);
    assert_eq!(stage.store.export_promises(Some(gone), 10).await.expect("export promises"), []);
    let model = stage.model();
    let other = promised(&model, LEASE).await;
    let theirs = model.promises().await;
    stage.clock.advance(LEASE);
    assert_eq!(stage.promises().await, []);
    let later = Promise { until: stage.now().after(LEASE), ..theirs[0].clone() };
    for _ in 0..2 {
        let taken = stage.store.import_promises(vec![later.clone()]).await.expect("import promises");
        assert_eq!(taken, [true]);
    }
    assert_eq!(stage.promises().await, [later]);
    let again = unique(stage.new_job(), "u", UniqueRule::For(LEASE));
    let answer = only(stage.store.enqueue(vec![again.clone()]).await.expect("enqueue"));
    assert_eq!(answer, Enqueued::Existing(other));
    stage.clock.advance(LEASE);
    stage.enqueue(again).await;
}

async fn a_promise_does_not_take_a_key_in_force(stage: Stage) {
    let model = stage.model();
    promised(&model, LEASE).await;
    let promises = model.promises().await;
    let mine = NewJob { id: job_id(500), ..unique(stage.own_job(), "u", UniqueRule::Live) };
    let mine = stage.enqueue(mine).await;
    let taken = stage.store.import_promises(promises).await.expect("import promises");
    assert_eq!(taken, [false]);
    assert_eq!(stage.parcel(mine).await.unique.map(|held| held.until), Some(None));
}

async fn records_come_with_their_versions_and_removals(stage: Stage) {
    for (kind, id, times) in [("b", "x", 2), ("a", "Z", 1), ("a", "ä", 1), ("a", "a", 3)] {
        for n in 0..times {
            stage.write(kind, id, Expect::Any, Some(vec![n])).await;
        }
    }
    stage.write("a", "Z", Expect::Any, None).await;
    let slots = stage.slots().await;
    let slot = |kind: &str, id: &str, version, value: Option<u8>| Slot {
        kind: kind.to_owned(),
        id: id.to_owned(),
        version,
        value: value.map(|n| vec![n]),
    };
    let expected = [
        slot("a", "Z", 2, None),
        slot("a", "a", 3, Some(2)),
        slot("a", "ä", 1, Some(0)),
        slot("b", "x", 2, Some(1)),
    ];
    assert_eq!(slots, expected);
    let mut paged = Vec::new();
    while let Some(next) = {
        let after = paged.last().map(|slot: &Slot| (slot.kind.as_str(), slot.id.as_str()));
        let page = stage.store.export_records(after, 1).await.expect("export records");
        page.into_iter().next()
    } {
        paged.push(next);
    }
    assert_eq!(paged, slots);
}

async fn an_import_of_records_never_goes_back(stage: Stage) {
    let slot = |version, value: Option<&[u8]>| Slot {
        kind: "a".to_owned(),
        id: "x".to_owned(),
        version,
        value: value.map(<[u8]>::to_vec),
    };
    let import = async |slots| stage.store.import_records(slots).await.expect("import records");
    assert_eq!(import(vec![slot(5, Some(b"five"))]).await, [true]);
    let older = vec![slot(5, Some(b"other")), slot(4, None), slot(6, None), slot(6, Some(b"late"))];
    assert_eq!(import(older).await, [false, false, true, false]);
    assert_eq!(stage.store.read("a", "x").await.expect("read"), None);
    assert_eq!(stage.slots().await, [slot(6, None)]);
    assert_eq!(stage.write("a", "x", Expect::Absent, Some(b"new".to_vec())).await, Written::Done(7));
    assert_eq!(import(vec![slot(7, Some(b"seven"))]).await, [false]);
    let read = stage.store.read("a", "x").await.expect("read").map(|record| record.value);
    assert_eq!(read.as_deref(), Some(&b"new"[..]));
}

async fn imported_records_rule_like_written_ones(stage: Stage) {
    stage.enqueue_some(2).await;
    let slot = |kind: &str, id: &str, version, value: Option<&[u8]>| Slot {
        kind: kind.to_owned(),
        id: id.to_owned(),
        version,
        value: value.map(<[u8]>::to_vec),
    };
    let import = async |slot| stage.store.import_records(vec![slot]).await.expect("import records");
    import(slot(PAUSED, EVERY_QUEUE, 1, Some(b"{}"))).await;
    assert_eq!(stage.claim(10).await, []);
    let wake = stage.claim_by(claim_request(1)).await.wake;
    import(slot("quota", "default", 1, Some(br#"{"concurrency":1}"#))).await;
    stage.store.wait(wake).await;
    import(slot(PAUSED, EVERY_QUEUE, 2, None)).await;
    assert_eq!(stage.claim(10).await.len(), 1);
    import(slot(SEALED, MOVED_AWAY, 1, Some(b"{}"))).await;
    import(slot("quota", "default", 2, None)).await;
    assert_eq!(stage.claim(10).await, []);
    import(slot(SEALED, MOVED_AWAY, 2, None)).await;
    assert_eq!(stage.claim(10).await.len(), 1);
}

async fn a_seal_stops_claims_and_reclaims(stage: Stage) {
    let running = stage.running().await;
    stage.enqueue_some(2).await;
    for seal in [MOVED_AWAY, BEING_FILLED] {
        stage.seal(seal).await;
        let claimed = stage.claim_by(claim_request(10)).await;
        assert_eq!((claimed.jobs.len(), claimed.next_due), (0, None));
        let named = ClaimRequest { queues: vec![queue("default")], ..claim_request(10) };
        assert_eq!(stage.claim_by(named).await.jobs, []);
        stage.unseal(seal).await;
    }
    stage.seal(MOVED_AWAY).await;
    stage.clock.advance(LEASE);
    assert_eq!(stage.store.reclaim(reclaim_request(10)).await.expect("reclaim").jobs, []);
    assert_eq!(stage.job(running.id).await, running);
    stage.unseal(MOVED_AWAY).await;
    assert_eq!(ids(&stage.reclaim(10).await), [running.id]);
    assert_eq!(stage.claim(10).await.len(), 2);
}

async fn a_seal_is_no_pause(stage: Stage) {
    let running = stage.running().await;
    stage.enqueue_some(1).await;
    stage.pause(None).await;
    stage.seal(MOVED_AWAY).await;
    let extended = stage.store.extend(vec![running.lease()], LEASE).await.expect("extend");
    assert_eq!(extended, [Extended::Renewed]);
    let lease: Lease = running.lease();
    assert_eq!(stage.settle(lease, Verdict::Complete(None)).await, Settled::Applied(State::Succeeded));
    stage.resume(None).await;
    assert_eq!(stage.claim(10).await, []);
    stage.pause(None).await;
    stage.unseal(MOVED_AWAY).await;
    assert_eq!(stage.claim(10).await, []);
    stage.resume(None).await;
    assert_eq!(stage.claim(10).await.len(), 1);
}
