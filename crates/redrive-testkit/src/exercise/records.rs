//! Records: a writer with an old version overwrites nothing.

use redrive_core::limits::{NAME_BYTES_MAX, RECORD_BYTES_MAX};
use redrive_core::records::{Precondition, Record, RecordWrite, WriteResult};
use redrive_core::transfer::MOVED_AWAY;

use super::chapter;
use super::fixture::{StoreFixture, concurrently, rejected};

chapter!("records":
    a_written_record_can_be_read,
    a_write_if_absent_takes_effect_only_without_a_record,
    a_write_of_a_version_takes_effect_only_if_it_is_current,
    a_write_without_a_precondition_overwrites_any_record,
    a_conflict_returns_the_existing_version,
    a_removal_has_the_same_preconditions,
    versions_grow_across_a_removal,
    removing_nothing_changes_nothing,
    a_removed_record_leaves_nothing_behind,
    a_record_created_after_any_removal_of_its_kind_has_a_later_version,
    a_removal_in_a_sealed_store_stays_until_the_next_removal_after_it,
    sixteen_writers_of_one_version_have_one_winner,
    sixteen_creators_have_one_winner,
    sixteen_counters_lose_no_increment,
    kinds_do_not_mix,
    a_scan_is_in_the_order_of_ids_and_pages,
    a_scan_leaves_out_removed_records,
    unusual_names_and_bytes_are_stored_unchanged,
    size_limits_are_exact_and_name_the_field,
);

async fn a_written_record_can_be_read(fixture: StoreFixture) {
    assert_eq!(read(&fixture, "k", "x").await, None);
    for (value, version) in [(&b"one"[..], 1), (b"two", 2), (b"", 3)] {
        let written = fixture.write("k", "x", Precondition::Any, Some(value.to_vec())).await;
        assert_eq!(written, WriteResult::Done(version));
        assert_eq!(read(&fixture, "k", "x").await, Some(record("x", version, value)));
    }
}

async fn a_write_if_absent_takes_effect_only_without_a_record(fixture: StoreFixture) {
    let write = |value: &'static [u8]| fixture.write("k", "x", Precondition::Absent, Some(value.to_vec()));
    assert_eq!(write(b"one").await, WriteResult::Done(1));
    assert_eq!(write(b"two").await, WriteResult::Conflict(Some(record("x", 1, b"one"))));
    assert_eq!(read(&fixture, "k", "x").await, Some(record("x", 1, b"one")));
}

async fn a_write_of_a_version_takes_effect_only_if_it_is_current(fixture: StoreFixture) {
    let write = |version, value: &'static [u8]| {
        fixture.write("k", "x", Precondition::Version(version), Some(value.to_vec()))
    };
    for version in [0, 1, 7] {
        assert_eq!(write(version, b"zero").await, WriteResult::Conflict(None));
    }
    fixture.write("k", "x", Precondition::Absent, Some(b"one".to_vec())).await;
    assert_eq!(write(1, b"two").await, WriteResult::Done(2));
    assert_eq!(write(1, b"late").await, WriteResult::Conflict(Some(record("x", 2, b"two"))));
    assert_eq!(write(3, b"early").await, WriteResult::Conflict(Some(record("x", 2, b"two"))));
    assert_eq!(read(&fixture, "k", "x").await, Some(record("x", 2, b"two")));
}

async fn a_write_without_a_precondition_overwrites_any_record(fixture: StoreFixture) {
    for version in 1..=3 {
        let written = fixture.write("k", "x", Precondition::Any, Some(vec![version])).await;
        assert_eq!(written, WriteResult::Done(u64::from(version)));
    }
    assert_eq!(fixture.write("k", "x", Precondition::Any, None).await, WriteResult::Done(4));
}

async fn a_conflict_returns_the_existing_version(fixture: StoreFixture) {
    let conflict = fixture.write("k", "x", Precondition::Version(1), Some(b"a".to_vec())).await;
    assert_eq!(conflict, WriteResult::Conflict(None));
    fixture.write("k", "x", Precondition::Any, Some(b"b".to_vec())).await;
    let conflict = fixture.write("k", "x", Precondition::Version(9), None).await;
    assert_eq!(conflict, WriteResult::Conflict(Some(record("x", 1, b"b"))));
}

async fn a_removal_has_the_same_preconditions(fixture: StoreFixture) {
    fixture.write("k", "x", Precondition::Any, Some(b"a".to_vec())).await;
    let existing = Some(record("x", 1, b"a"));
    assert_eq!(
        fixture.write("k", "x", Precondition::Absent, None).await,
        WriteResult::Conflict(existing.clone())
    );
    assert_eq!(
        fixture.write("k", "x", Precondition::Version(2), None).await,
        WriteResult::Conflict(existing)
    );
    assert_eq!(fixture.write("k", "x", Precondition::Version(1), None).await, WriteResult::Done(2));
    assert_eq!(read(&fixture, "k", "x").await, None);
    assert_eq!(fixture.write("k", "x", Precondition::Version(2), None).await, WriteResult::Conflict(None));
}

async fn versions_grow_across_a_removal(fixture: StoreFixture) {
    fixture.write("k", "x", Precondition::Any, Some(b"a".to_vec())).await;
    fixture.write("k", "x", Precondition::Any, None).await;
    assert_eq!(
        fixture.write("k", "x", Precondition::Absent, Some(b"b".to_vec())).await,
        WriteResult::Done(3)
    );
    assert_eq!(read(&fixture, "k", "x").await, Some(record("x", 3, b"b")));
    let stale = fixture.write("k", "x", Precondition::Version(1), Some(b"stale".to_vec())).await;
    assert_eq!(stale, WriteResult::Conflict(Some(record("x", 3, b"b"))));
}

async fn removing_nothing_changes_nothing(fixture: StoreFixture) {
    assert_eq!(fixture.write("k", "x", Precondition::Absent, None).await, WriteResult::Done(0));
    assert_eq!(fixture.write("k", "x", Precondition::Any, None).await, WriteResult::Done(0));
    assert_eq!(fixture.store.export_records(None, 10).await.expect("export records"), []);
    assert_eq!(fixture.write("k", "x", Precondition::Absent, Some(Vec::new())).await, WriteResult::Done(1));
    fixture.write("k", "x", Precondition::Any, None).await;
    assert_eq!(fixture.write("k", "x", Precondition::Any, None).await, WriteResult::Done(2));
}

async fn a_removed_record_leaves_nothing_behind(fixture: StoreFixture) {
    for n in 0..20 {
        let id = format!("x{n}");
        fixture.write("k", &id, Precondition::Absent, Some(b"v".to_vec())).await;
        fixture.write("k", &id, Precondition::Any, None).await;
    }
    let left = fixture.store.export_records(None, 100).await.expect("export records");
    assert_eq!(left.len(), 1, "only the floor of the kind: {left:?}");
    assert!(left[0].is_floor() && left[0].kind == "k", "{left:?}");
}

async fn a_record_created_after_any_removal_of_its_kind_has_a_later_version(fixture: StoreFixture) {
    for id in ["x", "y"] {
        fixture.write("k", id, Precondition::Absent, Some(b"old".to_vec())).await;
    }
    for _ in 0..3 {
        fixture.write("k", "x", Precondition::Any, Some(b"more".to_vec())).await;
    }
    assert_eq!(fixture.write("k", "x", Precondition::Any, None).await, WriteResult::Done(5));
    assert_eq!(fixture.write("k", "y", Precondition::Any, Some(b"new".to_vec())).await, WriteResult::Done(2));
    fixture.write("k", "y", Precondition::Any, None).await;
    for (id, version) in [("x", 6), ("y", 6), ("z", 6)] {
        let created = fixture.write("k", id, Precondition::Absent, Some(b"new".to_vec())).await;
        assert_eq!(created, WriteResult::Done(version), "{id}");
    }
    let created = fixture.write("other", "x", Precondition::Absent, Some(b"new".to_vec())).await;
    assert_eq!(created, WriteResult::Done(1), "each kind has its own floor");
}

async fn a_removal_in_a_sealed_store_stays_until_the_next_removal_after_it(fixture: StoreFixture) {
    for id in ["x", "y"] {
        fixture.write("k", id, Precondition::Absent, Some(b"v".to_vec())).await;
    }
    let of_k = async || {
        let all = fixture.store.export_records(None, 100).await.expect("export records");
        let of_k = all.into_iter().filter(|record| record.kind == "k");
        of_k.map(|record| (record.id, record.version, record.value.is_some())).collect::<Vec<_>>()
    };
    let exported = |id: &str, version, has_value| (id.to_owned(), version, has_value);
    fixture.seal(MOVED_AWAY).await;
    assert_eq!(fixture.write("k", "x", Precondition::Version(1), None).await, WriteResult::Done(2));
    assert_eq!(read(&fixture, "k", "x").await, None);
    assert_eq!(scan(&fixture, "k", None, 10).await, ["y"]);
    assert_eq!(of_k().await, [exported("x", 2, false), exported("y", 1, true)]);
    fixture.unseal(MOVED_AWAY).await;
    fixture.write("k", "y", Precondition::Any, None).await;
    assert_eq!(of_k().await, [exported("", 2, false)]);
    assert_eq!(
        fixture.write("k", "x", Precondition::Absent, Some(b"v".to_vec())).await,
        WriteResult::Done(3)
    );
}

async fn sixteen_writers_of_one_version_have_one_winner(fixture: StoreFixture) {
    fixture.write("k", "x", Precondition::Any, Some(b"start".to_vec())).await;
    let winner = one_winner(&fixture, Precondition::Version(1)).await;
    assert_eq!(read(&fixture, "k", "x").await, Some(record("x", 2, &[winner])));
}

async fn sixteen_creators_have_one_winner(fixture: StoreFixture) {
    let winner = one_winner(&fixture, Precondition::Absent).await;
    assert_eq!(read(&fixture, "k", "x").await, Some(record("x", 1, &[winner])));
}

async fn sixteen_counters_lose_no_increment(fixture: StoreFixture) {
    fixture.write("k", "x", Precondition::Any, Some(vec![0])).await;
    concurrently(16, |_| {
        let store = fixture.store.clone();
        async move {
            loop {
                let current = store.read("k", "x").await.expect("read").expect("a record");
                let expect = Precondition::Version(current.version);
                let next = change("k", "x", expect, Some(vec![current.value[0] + 1]));
                if let WriteResult::Done(_) = store.write(next).await.expect("write") {
                    return;
                }
            }
        }
    })
    .await;
    assert_eq!(read(&fixture, "k", "x").await, Some(record("x", 17, &[16])));
}

async fn kinds_do_not_mix(fixture: StoreFixture) {
    fixture.write("a", "x", Precondition::Any, Some(b"1".to_vec())).await;
    fixture.write("ab", "x", Precondition::Any, Some(b"2".to_vec())).await;
    fixture.write("a", "bx", Precondition::Any, Some(b"3".to_vec())).await;
    assert_eq!(read(&fixture, "a", "x").await, Some(record("x", 1, b"1")));
    assert_eq!(read(&fixture, "ab", "x").await, Some(record("x", 1, b"2")));
    assert_eq!(scan(&fixture, "ab", None, 10).await, ["x"]);
    assert_eq!(scan(&fixture, "a", None, 10).await, ["bx", "x"]);
    assert_eq!(scan(&fixture, "A", None, 10).await, Vec::<String>::new());
}

async fn a_scan_is_in_the_order_of_ids_and_pages(fixture: StoreFixture) {
    let order = ["", "*", "A", "Z", "a", "a1", "a10", "a2", "é", "日本", "🦀"];
    for id in order.iter().skip(1).rev() {
        fixture.write("k", id, Precondition::Any, Some(b"v".to_vec())).await;
    }
    for limit in [1, 3, 10] {
        let mut seen: Vec<String> = Vec::new();
        loop {
            let page = scan(&fixture, "k", seen.last().map(String::as_str), limit).await;
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            seen.extend(page);
        }
        assert_eq!(seen, order[1..], "{limit}");
    }
    assert_eq!(scan(&fixture, "k", Some("a15"), 2).await, ["a2", "é"]);
    assert_eq!(scan(&fixture, "k", None, 0).await, Vec::<String>::new());
    let whole = fixture.store.scan("k", Some("Z"), 1).await.expect("scan");
    assert_eq!(whole, [record("a", 1, b"v")]);
}

async fn a_scan_leaves_out_removed_records(fixture: StoreFixture) {
    for id in ["a", "b", "c"] {
        fixture.write("k", id, Precondition::Any, Some(b"v".to_vec())).await;
    }
    fixture.write("k", "b", Precondition::Any, None).await;
    assert_eq!(scan(&fixture, "k", None, 2).await, ["a", "c"]);
    fixture.write("k", "b", Precondition::Absent, Some(b"v".to_vec())).await;
    assert_eq!(scan(&fixture, "k", None, 3).await, ["a", "b", "c"]);
}

async fn unusual_names_and_bytes_are_stored_unchanged(fixture: StoreFixture) {
    let value: Vec<u8> = (0..=255).chain([0, 255, 0]).collect();
    for (kind, id) in [("k", "'; --"), ("küche/🦀", "a:b{c}\\d"), ("k", "%_*?[x]"), ("k\n", " x ")] {
        fixture.write(kind, id, Precondition::Any, Some(value.clone())).await;
        assert_eq!(read(&fixture, kind, id).await, Some(record(id, 1, &value)), "{kind:?} {id:?}");
    }
}

async fn size_limits_are_exact_and_name_the_field(fixture: StoreFixture) {
    let longest = "x".repeat(2 * NAME_BYTES_MAX);
    let largest = Some(vec![0; RECORD_BYTES_MAX]);
    assert_eq!(fixture.write(&longest, &longest, Precondition::Any, largest).await, WriteResult::Done(1));
    let cases = [
        ("kind", change("", "x", Precondition::Any, None)),
        ("kind", change(&(longest.clone() + "x"), "x", Precondition::Any, None)),
        ("id", change("k", "", Precondition::Any, None)),
        ("id", change("k", &(longest.clone() + "x"), Precondition::Any, None)),
        ("kind", change("a\0b", "x", Precondition::Any, None)),
        ("id", change("k", "a\0b", Precondition::Any, None)),
        ("value", change("k", "x", Precondition::Any, Some(vec![0; RECORD_BYTES_MAX + 1]))),
    ];
    for (field, change) in cases {
        assert_eq!(rejected(fixture.store.write(change).await).field, field);
    }
    assert_eq!(read(&fixture, "k", "x").await, None);
    assert_eq!(read(&fixture, "k", "a\0b").await, None);
}

fn change(kind: &str, id: &str, expect: Precondition, value: Option<Vec<u8>>) -> RecordWrite {
    RecordWrite { kind: kind.to_owned(), id: id.to_owned(), expect, value }
}

fn record(id: &str, version: u64, value: &[u8]) -> Record {
    Record { id: id.to_owned(), version, value: value.to_vec() }
}

async fn read(fixture: &StoreFixture, kind: &str, id: &str) -> Option<Record> {
    fixture.store.read(kind, id).await.expect("read")
}

async fn scan(fixture: &StoreFixture, kind: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let records = fixture.store.scan(kind, after, limit).await.expect("scan");
    records.into_iter().map(|record| record.id).collect()
}

/// Sixteen concurrent writers, each with its number as the value. Returns the one that succeeded.
async fn one_winner(fixture: &StoreFixture, expect: Precondition) -> u8 {
    let answers = concurrently(16, |n| {
        let store = fixture.store.clone();
        async move { store.write(change("k", "x", expect, Some(vec![n as u8]))).await.expect("write") }
    })
    .await;
    let winners: Vec<usize> = (0..16).filter(|n| matches!(answers[*n], WriteResult::Done(_))).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    winners[0] as u8
}
