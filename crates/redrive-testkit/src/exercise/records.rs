//! Records: documents that a stale writer cannot overwrite.

use redrive_core::limits::{NAME_BYTES_MAX, RECORD_BYTES_MAX};
use redrive_core::records::{Change, Expect, Record, Written};

use super::chapter;
use super::stage::{Stage, at_once, refused};

chapter!("records":
    what_is_written_can_be_read,
    absent_takes_effect_only_if_there_is_none,
    a_version_takes_effect_only_if_it_is_current,
    anything_is_overwritten_when_nothing_is_expected,
    a_conflict_shows_what_is_there,
    a_removal_takes_effect_under_the_same_rule,
    versions_grow_across_a_removal,
    removing_nothing_counts_as_a_write,
    sixteen_writers_of_one_version_have_one_winner,
    sixteen_creators_have_one_winner,
    sixteen_counters_lose_no_increment,
    kinds_do_not_mix,
    a_scan_is_in_the_order_of_ids_and_pages,
    a_scan_leaves_out_what_was_removed,
    odd_names_and_bytes_come_back_unchanged,
    limits_are_exact_and_named,
);

async fn what_is_written_can_be_read(stage: Stage) {
    assert_eq!(read(&stage, "k", "x").await, None);
    for (value, version) in [(&b"one"[..], 1), (b"two", 2), (b"", 3)] {
        let written = stage.write("k", "x", Expect::Any, Some(value.to_vec())).await;
        assert_eq!(written, Written::Done(version));
        assert_eq!(read(&stage, "k", "x").await, Some(record("x", version, value)));
    }
}

async fn absent_takes_effect_only_if_there_is_none(stage: Stage) {
    let write = |value: &'static [u8]| stage.write("k", "x", Expect::Absent, Some(value.to_vec()));
    assert_eq!(write(b"one").await, Written::Done(1));
    assert_eq!(write(b"two").await, Written::Conflict(Some(record("x", 1, b"one"))));
    assert_eq!(read(&stage, "k", "x").await, Some(record("x", 1, b"one")));
}

async fn a_version_takes_effect_only_if_it_is_current(stage: Stage) {
    let write =
        |version, value: &'static [u8]| stage.write("k", "x", Expect::Version(version), Some(value.to_vec()));
    for version in [0, 1, 7] {
        assert_eq!(write(version, b"zero").await, Written::Conflict(None));
    }
    stage.write("k", "x", Expect::Absent, Some(b"one".to_vec())).await;
    assert_eq!(write(1, b"two").await, Written::Done(2));
    assert_eq!(write(1, b"late").await, Written::Conflict(Some(record("x", 2, b"two"))));
    assert_eq!(write(3, b"early").await, Written::Conflict(Some(record("x", 2, b"two"))));
    assert_eq!(read(&stage, "k", "x").await, Some(record("x", 2, b"two")));
}

async fn anything_is_overwritten_when_nothing_is_expected(stage: Stage) {
    for version in 1..=3 {
        let written = stage.write("k", "x", Expect::Any, Some(vec![version])).await;
        assert_eq!(written, Written::Done(u64::from(version)));
    }
    assert_eq!(stage.write("k", "x", Expect::Any, None).await, Written::Done(4));
}

async fn a_conflict_shows_what_is_there(stage: Stage) {
    let conflict = stage.write("k", "x", Expect::Version(1), Some(b"a".to_vec())).await;
    assert_eq!(conflict, Written::Conflict(None));
    stage.write("k", "x", Expect::Any, Some(b"b".to_vec())).await;
    let conflict = stage.write("k", "x", Expect::Version(9), None).await;
    assert_eq!(conflict, Written::Conflict(Some(record("x", 1, b"b"))));
}

async fn a_removal_takes_effect_under_the_same_rule(stage: Stage) {
    stage.write("k", "x", Expect::Any, Some(b"a".to_vec())).await;
    let there = Some(record("x", 1, b"a"));
    assert_eq!(stage.write("k", "x", Expect::Absent, None).await, Written::Conflict(there.clone()));
    assert_eq!(stage.write("k", "x", Expect::Version(2), None).await, Written::Conflict(there));
    assert_eq!(stage.write("k", "x", Expect::Version(1), None).await, Written::Done(2));
    assert_eq!(read(&stage, "k", "x").await, None);
    assert_eq!(stage.write("k", "x", Expect::Version(2), None).await, Written::Conflict(None));
}

async fn versions_grow_across_a_removal(stage: Stage) {
    stage.write("k", "x", Expect::Any, Some(b"a".to_vec())).await;
    stage.write("k", "x", Expect::Any, None).await;
    assert_eq!(stage.write("k", "x", Expect::Absent, Some(b"b".to_vec())).await, Written::Done(3));
    assert_eq!(read(&stage, "k", "x").await, Some(record("x", 3, b"b")));
    let stale = stage.write("k", "x", Expect::Version(1), Some(b"stale".to_vec())).await;
    assert_eq!(stale, Written::Conflict(Some(record("x", 3, b"b"))));
}

async fn removing_nothing_counts_as_a_write(stage: Stage) {
    assert_eq!(stage.write("k", "x", Expect::Absent, None).await, Written::Done(1));
    assert_eq!(stage.write("k", "x", Expect::Any, None).await, Written::Done(2));
    assert_eq!(stage.write("k", "x", Expect::Absent, Some(Vec::new())).await, Written::Done(3));
}

async fn sixteen_writers_of_one_version_have_one_winner(stage: Stage) {
    stage.write("k", "x", Expect::Any, Some(b"start".to_vec())).await;
    let winner = one_winner(&stage, Expect::Version(1)).await;
    assert_eq!(read(&stage, "k", "x").await, Some(record("x", 2, &[winner])));
}

async fn sixteen_creators_have_one_winner(stage: Stage) {
    let winner = one_winner(&stage, Expect::Absent).await;
    assert_eq!(read(&stage, "k", "x").await, Some(record("x", 1, &[winner])));
}

async fn sixteen_counters_lose_no_increment(stage: Stage) {
    stage.write("k", "x", Expect::Any, Some(vec![0])).await;
    at_once(16, |_| {
        let store = stage.store.clone();
        async move {
            loop {
                let current = store.read("k", "x").await.expect("read").expect("a record");
                let expect = Expect::Version(current.version);
                let next = change("k", "x", expect, Some(vec![current.value[0] + 1]));
                if let Written::Done(_) = store.write(next).await.expect("write") {
                    return;
                }
            }
        }
    })
    .await;
    assert_eq!(read(&stage, "k", "x").await, Some(record("x", 17, &[16])));
}

async fn kinds_do_not_mix(stage: Stage) {
    stage.write("a", "x", Expect::Any, Some(b"1".to_vec())).await;
    stage.write("ab", "x", Expect::Any, Some(b"2".to_vec())).await;
    stage.write("a", "bx", Expect::Any, Some(b"3".to_vec())).await;
    assert_eq!(read(&stage, "a", "x").await, Some(record("x", 1, b"1")));
    assert_eq!(read(&stage, "ab", "x").await, Some(record("x", 1, b"2")));
    assert_eq!(scan(&stage, "ab", None, 10).await, ["x"]);
    assert_eq!(scan(&stage, "a", None, 10).await, ["bx", "x"]);
    assert_eq!(scan(&stage, "A", None, 10).await, Vec::<String>::new());
}

async fn a_scan_is_in_the_order_of_ids_and_pages(stage: Stage) {
    let order = ["", "*", "A", "Z", "a", "a1", "a10", "a2", "é", "日本", "🦀"];
    for id in order.iter().skip(1).rev() {
        stage.write("k", id, Expect::Any, Some(b"v".to_vec())).await;
    }
    for limit in [1, 3, 10] {
        let mut seen: Vec<String> = Vec::new();
        loop {
            let page = scan(&stage, "k", seen.last().map(String::as_str), limit).await;
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            seen.extend(page);
        }
        assert_eq!(seen, order[1..], "{limit}");
    }
    assert_eq!(scan(&stage, "k", Some("a15"), 2).await, ["a2", "é"]);
    assert_eq!(scan(&stage, "k", None, 0).await, Vec::<String>::new());
    let whole = stage.store.scan("k", Some("Z"), 1).await.expect("scan");
    assert_eq!(whole, [record("a", 1, b"v")]);
}

async fn a_scan_leaves_out_what_was_removed(stage: Stage) {
    for id in ["a", "b", "c"] {
        stage.write("k", id, Expect::Any, Some(b"v".to_vec())).await;
    }
    stage.write("k", "b", Expect::Any, None).await;
    assert_eq!(scan(&stage, "k", None, 2).await, ["a", "c"]);
    stage.write("k", "b", Expect::Absent, Some(b"v".to_vec())).await;
    assert_eq!(scan(&stage, "k", None, 3).await, ["a", "b", "c"]);
}

async fn odd_names_and_bytes_come_back_unchanged(stage: Stage) {
    let value: Vec<u8> = (0..=255).chain([0, 255, 0]).collect();
    for (kind, id) in [("k", "'; --"), ("küche/🦀", "a:b{c}\\d"), ("k", "%_*?[x]"), ("k\n", " x ")] {
        stage.write(kind, id, Expect::Any, Some(value.clone())).await;
        assert_eq!(read(&stage, kind, id).await, Some(record(id, 1, &value)), "{kind:?} {id:?}");
    }
}

async fn limits_are_exact_and_named(stage: Stage) {
    let longest = "x".repeat(2 * NAME_BYTES_MAX);
    let largest = Some(vec![0; RECORD_BYTES_MAX]);
    assert_eq!(stage.write(&longest, &longest, Expect::Any, largest).await, Written::Done(1));
    let cases = [
        ("kind", change("", "x", Expect::Any, None)),
        ("kind", change(&(longest.clone() + "x"), "x", Expect::Any, None)),
        ("id", change("k", "", Expect::Any, None)),
        ("id", change("k", &(longest.clone() + "x"), Expect::Any, None)),
        ("kind", change("a\0b", "x", Expect::Any, None)),
        ("id", change("k", "a\0b", Expect::Any, None)),
        ("value", change("k", "x", Expect::Any, Some(vec![0; RECORD_BYTES_MAX + 1]))),
    ];
    for (field, change) in cases {
        assert_eq!(refused(stage.store.write(change).await).field, field);
    }
    assert_eq!(read(&stage, "k", "x").await, None);
    assert_eq!(read(&stage, "k", "a\0b").await, None);
}

fn change(kind: &str, id: &str, expect: Expect, value: Option<Vec<u8>>) -> Change {
    Change { kind: kind.to_owned(), id: id.to_owned(), expect, value }
}

fn record(id: &str, version: u64, value: &[u8]) -> Record {
    Record { id: id.to_owned(), version, value: value.to_vec() }
}

async fn read(stage: &Stage, kind: &str, id: &str) -> Option<Record> {
    stage.store.read(kind, id).await.expect("read")
}

async fn scan(stage: &Stage, kind: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let records = stage.store.scan(kind, after, limit).await.expect("scan");
    records.into_iter().map(|record| record.id).collect()
}

/// Sixteen writers at once, each with its number as the value; returns the one that took effect.
async fn one_winner(stage: &Stage, expect: Expect) -> u8 {
    let answers = at_once(16, |n| {
        let store = stage.store.clone();
        async move { store.write(change("k", "x", expect, Some(vec![n as u8]))).await.expect("write") }
    })
    .await;
    let winners: Vec<usize> = (0..16).filter(|n| matches!(answers[*n], Written::Done(_))).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    winners[0] as u8
}
