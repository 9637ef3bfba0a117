//! Transfer of records and reserved keys, and the seal that stops claims meanwhile.

use std::time::Duration;

use redrive_core::records::{EVERY_QUEUE, PAUSED, Precondition, WriteResult};
use redrive_core::store::{ClaimRequest, EnqueueResult, ExtendResult, Retention, SettleResult};
use redrive_core::transfer::{BEING_FILLED, MOVED_AWAY, RecordSnapshot, ReservedKey, SEALED};
use redrive_core::{JobId, Lease, NewJob, State, UniqueKey, UniqueRule, Verdict};

use super::chapter;
use super::fixture::{LEASE, StoreFixture, claim_request, ids, job_id, kind, only, queue, reclaim_request};
use super::transfer::unique;

chapter!("transfer":
    a_reserved_key_outlives_its_job_in_the_new_store,
    a_reserved_key_does_not_replace_a_key_in_use,
    records_come_with_their_versions_and_the_floor_of_their_kind,
    an_import_never_replaces_a_newer_record,
    imported_records_have_the_effect_of_written_ones,
    a_seal_stops_claims_and_reclaims,
    a_seal_and_a_pause_are_independent,
);

/// Creates a reserved key whose job was deleted, and returns the id of the job.
async fn reserve_key(model: &StoreFixture, span: Duration) -> JobId {
    let id = model.enqueue(unique(model.own_job(), "u", UniqueRule::For(span))).await;
    model.bring_to(id, State::Succeeded).await;
    let none = Retention { succeeded: Duration::ZERO, dead: Duration::ZERO, cancelled: Duration::ZERO };
    assert_eq!(model.store.prune(none, 10).await.expect("prune"), 1);
    id
}

async fn a_reserved_key_outlives_its_job_in_the_new_store(fixture: StoreFixture) {
    let gone = reserve_key(&fixture, LEASE).await;
    let reserved_keys = fixture.reserved_keys().await;
    let (until, key) = (fixture.now().after(LEASE), UniqueKey::new("u").expect("legal"));
    let expected = ReservedKey { tenant: Default::default(), kind: kind("work"), key, job: gone, until };
    assert_eq!(reserved_keys, [expected]);
    assert_eq!(fixture.store.export_reserved_keys(Some(gone), 10).await.expect("export reserved keys"), []);
    let model = fixture.model();
    let other = reserve_key(&model, LEASE).await;
    let theirs = model.reserved_keys().await;
    fixture.clock.advance(LEASE);
    assert_eq!(fixture.reserved_keys().await, []);
    let later = ReservedKey { until: fixture.now().after(LEASE), ..theirs[0].clone() };
    for _ in 0..2 {
        let taken =
            fixture.store.import_reserved_keys(vec![later.clone()]).await.expect("import reserved keys");
        assert_eq!(taken, [true]);
    }
    assert_eq!(fixture.reserved_keys().await, [later]);
    let again = unique(fixture.new_job(), "u", UniqueRule::For(LEASE));
    let answer = only(fixture.store.enqueue(vec![again.clone()]).await.expect("enqueue"));
    assert_eq!(answer, EnqueueResult::Existing(other));
    fixture.clock.advance(LEASE);
    fixture.enqueue(again).await;
}

async fn a_reserved_key_does_not_replace_a_key_in_use(fixture: StoreFixture) {
    let model = fixture.model();
    reserve_key(&model, LEASE).await;
    let reserved_keys = model.reserved_keys().await;
    let mine = NewJob { id: job_id(500), ..unique(fixture.own_job(), "u", UniqueRule::Live) };
    let mine = fixture.enqueue(mine).await;
    let taken = fixture.store.import_reserved_keys(reserved_keys).await.expect("import reserved keys");
    assert_eq!(taken, [false]);
    assert_eq!(fixture.snapshot(mine).await.unique.map(|held| held.until), Some(None));
}

async fn records_come_with_their_versions_and_the_floor_of_their_kind(fixture: StoreFixture) {
    for (kind, id, times) in [("b", "x", 2), ("a", "Z", 1), ("a", "ä", 1), ("a", "a", 3)] {
        for n in 0..times {
            fixture.write(kind, id, Precondition::Any, Some(vec![n])).await;
        }
    }
    fixture.write("a", "Z", Precondition::Any, None).await;
    let records = fixture.export_records().await;
    let record = |kind: &str, id: &str, version, value: Option<u8>| RecordSnapshot {
        kind: kind.to_owned(),
        id: id.to_owned(),
        version,
        value: value.map(|n| vec![n]),
    };
    let expected = [
        record("a", "", 2, None),
        record("a", "a", 3, Some(2)),
        record("a", "ä", 1, Some(0)),
        record("b", "x", 2, Some(1)),
    ];
    assert_eq!(records, expected);
    let mut paged = Vec::new();
    while let Some(next) = {
        let after = paged.last().map(|record: &RecordSnapshot| (record.kind.as_str(), record.id.as_str()));
        let page = fixture.store.export_records(after, 1).await.expect("export records");
        page.into_iter().next()
    } {
        paged.push(next);
    }
    assert_eq!(paged, records);
}

async fn an_import_never_replaces_a_newer_record(fixture: StoreFixture) {
    let record = |version, value: Option<&[u8]>| RecordSnapshot {
        kind: "a".to_owned(),
        id: "x".to_owned(),
        version,
        value: value.map(<[u8]>::to_vec),
    };
    let import = async |records| fixture.store.import_records(records).await.expect("import records");
    assert_eq!(import(vec![record(5, Some(b"five"))]).await, [true]);
    let older = vec![record(5, Some(b"other")), record(4, None), record(6, None), record(6, Some(b"late"))];
    assert_eq!(import(older).await, [false, false, true, false]);
    assert_eq!(fixture.store.read("a", "x").await.expect("read"), None);
    assert_eq!(fixture.export_records().await, [record(6, None)]);
    assert_eq!(
        fixture.write("a", "x", Precondition::Absent, Some(b"new".to_vec())).await,
        WriteResult::Done(7)
    );
    assert_eq!(import(vec![record(7, Some(b"seven"))]).await, [false]);
    let read = fixture.store.read("a", "x").await.expect("read").map(|record| record.value);
    assert_eq!(read.as_deref(), Some(&b"new"[..]));
}

async fn imported_records_have_the_effect_of_written_ones(fixture: StoreFixture) {
    fixture.enqueue_some(2).await;
    let record = |kind: &str, id: &str, version, value: Option<&[u8]>| RecordSnapshot {
        kind: kind.to_owned(),
        id: id.to_owned(),
        version,
        value: value.map(<[u8]>::to_vec),
    };
    let import = async |record| fixture.store.import_records(vec![record]).await.expect("import records");
    import(record(PAUSED, EVERY_QUEUE, 1, Some(b"{}"))).await;
    assert_eq!(fixture.claim(10).await, []);
    let wake = fixture.claim_by(claim_request(1)).await.wake;
    import(record("quota", "default", 1, Some(br#"{"concurrency":1}"#))).await;
    fixture.store.wait(wake).await;
    import(record(PAUSED, EVERY_QUEUE, 2, None)).await;
    assert_eq!(fixture.claim(10).await.len(), 1);
    import(record(SEALED, MOVED_AWAY, 1, Some(b"{}"))).await;
    import(record("quota", "default", 2, None)).await;
    assert_eq!(fixture.claim(10).await, []);
    import(record(SEALED, MOVED_AWAY, 2, None)).await;
    assert_eq!(fixture.claim(10).await.len(), 1);
}

async fn a_seal_stops_claims_and_reclaims(fixture: StoreFixture) {
    let running = fixture.running().await;
    fixture.enqueue_some(2).await;
    for seal in [MOVED_AWAY, BEING_FILLED] {
        fixture.seal(seal).await;
        let claimed = fixture.claim_by(claim_request(10)).await;
        assert_eq!((claimed.jobs.len(), claimed.next_due), (0, None));
        let named = ClaimRequest { queues: vec![queue("default")], ..claim_request(10) };
        assert_eq!(fixture.claim_by(named).await.jobs, []);
        fixture.unseal(seal).await;
    }
    fixture.seal(MOVED_AWAY).await;
    fixture.clock.advance(LEASE);
    assert_eq!(fixture.store.reclaim(reclaim_request(10)).await.expect("reclaim").jobs, []);
    assert_eq!(fixture.job(running.id).await, running);
    fixture.unseal(MOVED_AWAY).await;
    assert_eq!(ids(&fixture.reclaim(10).await), [running.id]);
    assert_eq!(fixture.claim(10).await.len(), 2);
}

async fn a_seal_and_a_pause_are_independent(fixture: StoreFixture) {
    let running = fixture.running().await;
    fixture.enqueue_some(1).await;
    fixture.pause(None).await;
    fixture.seal(MOVED_AWAY).await;
    let extended = fixture.store.extend(vec![running.lease()], LEASE).await.expect("extend");
    assert_eq!(extended, [ExtendResult::Renewed]);
    let lease: Lease = running.lease();
    assert_eq!(fixture.settle(lease, Verdict::Complete(None)).await, SettleResult::Applied(State::Succeeded));
    fixture.resume(None).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.pause(None).await;
    fixture.unseal(MOVED_AWAY).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.resume(None).await;
    assert_eq!(fixture.claim(10).await.len(), 1);
}
