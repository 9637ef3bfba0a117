//! Series as records: one for each node and span, and one for each origin that a node has called of late.

use redrive_core::limits::RECORD_BYTES_MAX;
use redrive_core::records::{Change, Expect, Record};
use redrive_core::store::Backend;
use redrive_core::{StoreError, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::ring::{Point, Ring, Step};
use super::steps::{Doing, Gating};
use super::{Own, Rings};
use crate::wire::series::Span;

/// The record kinds; the id is the node's name, for an origin after its hash.
const HOUR: &str = "series.hour";
const DAY: &str = "series.day";
const ORIGIN: &str = "series.origin";
/// Nodes that are read.
const NODES_MAX: usize = 100;
/// Origins that are written each time, those with the most calls.
const ORIGINS_MAX: usize = 32;
/// How long the hour of a node that is gone is kept.
const HOUR_KEPT_MS: i64 = 2 * 60 * 60 * 1000;
/// How long its day and its origins are.
const DAY_KEPT_MS: i64 = 2 * 24 * 60 * 60 * 1000;

/// A series as it is written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written<T> {
    seen_at: i64,
    #[serde(bound(serialize = "T: Serialize + Clone", deserialize = "T: Deserialize<'de>"))]
    points: Vec<Point<T>>,
}

/// The series of an origin as they are written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenOrigin {
    seen_at: i64,
    origin: String,
    hour: Vec<Point<Gating>>,
    day: Vec<Point<Gating>>,
}

/// When a record was written, whatever else is in it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    seen_at: i64,
}

/// The kind of the records of a span.
pub(super) fn kind(span: Span) -> &'static str {
    match span {
        Span::Hour => HOUR,
        Span::Day => DAY,
    }
}

/// What there is to write.
pub(super) fn written(own: &Own, node: &str, now: Timestamp) -> Vec<Change> {
    let seen_at = now.as_ms();
    let service = [(HOUR, &own.service.hour), (DAY, &own.service.day)];
    let service = service.map(|(kind, ring)| change(kind, node.to_owned(), fitting(ring, seen_at)));
    let busy = busiest(own, seen_at).into_iter().map(|(origin, rings)| {
        let hour = rings.hour.points();
        let day = rings.day.points();
        let written = WrittenOrigin { seen_at, origin: origin.to_owned(), hour, day };
        change(ORIGIN, format!("{}.{node}", hash(origin)), encode(&written))
    });
    service.into_iter().chain(busy).filter(|change| change.check().is_ok()).collect()
}

/// The points of the other nodes.
pub(super) async fn others(
    store: &dyn Backend,
    kind: &str,
    node: &str,
) -> Result<Vec<Vec<Point<Doing>>>, StoreError> {
    let records = store.scan(kind, None, NODES_MAX).await?;
    let others = records.iter().filter(|record| record.id != node);
    Ok(others.filter_map(decode::<Written<Doing>>).map(|written| written.points).collect())
}

/// The points of an origin on the other nodes.
pub(super) async fn origin(
    store: &dyn Backend,
    origin: &str,
    span: Span,
    node: &str,
) -> Result<Vec<Vec<Point<Gating>>>, StoreError> {
    let prefix = format!("{}.", hash(origin));
    let records = store.scan(ORIGIN, Some(&prefix), NODES_MAX).await?;
    let of_origin = records.iter().take_while(|record| record.id.starts_with(&prefix));
    let others = of_origin.filter(|record| record.id[prefix.len()..] != *node);
    let others = others.filter_map(decode::<WrittenOrigin>).filter(|written| written.origin == origin);
    Ok(others
        .map(|written| match span {
            Span::Hour => written.hour,
            Span::Day => written.day,
        })
        .collect())
}

/// Removes what was written long ago.
pub(super) async fn prune(store: &dyn Backend, now: Timestamp) -> Result<(), StoreError> {
    for (kind, kept_ms) in [(HOUR, HOUR_KEPT_MS), (DAY, DAY_KEPT_MS), (ORIGIN, DAY_KEPT_MS)] {
        let mut after: Option<String> = None;
        loop {
            let records = store.scan(kind, after.as_deref(), NODES_MAX).await?;
            let full = records.len() == NODES_MAX;
            after = records.last().map(|record| record.id.clone());
            for record in records {
                let seen = decode::<Seen>(&record).map_or(0, |seen| seen.seen_at);
                if now.as_ms() - seen > kept_ms {
                    let expect = Expect::Version(record.version);
                    store.write(Change { kind: kind.to_owned(), id: record.id, expect, value: None }).await?;
                }
            }
            if !full {
                break;
            }
        }
    }
    Ok(())
}

/// Origins that were called in the last two minutes, those with the most calls first.
fn busiest(own: &Own, now: i64) -> Vec<(&str, &Rings<Gating>)> {
    let recent = own.origins.iter().filter(|(_, rings)| rings.hour.newest() > Some(now - 120_000));
    let mut recent: Vec<_> = recent.map(|(origin, rings)| (origin.as_str(), rings)).collect();
    recent.sort_by_key(|(_, rings)| {
        let last = rings.hour.points().pop();
        std::cmp::Reverse(last.map_or(0, |point| point.step.answered + point.step.failed))
    });
    recent.truncate(ORIGINS_MAX);
    recent
}

/// As many of the newest points as a record holds: with large numbers not all of them do.
fn fitting<T: Step + Serialize>(ring: &Ring<T>, seen_at: i64) -> Vec<u8> {
    let mut points = ring.points();
    loop {
        let value = encode(&Written { seen_at, points: points.clone() });
        if value.len() <= RECORD_BYTES_MAX || points.is_empty() {
            return value;
        }
        points.drain(..points.len().div_ceil(8));
    }
}

fn change(kind: &str, id: String, value: Vec<u8>) -> Change {
    Change { kind: kind.to_owned(), id, expect: Expect::Any, value: Some(value) }
}

fn encode(written: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(written).unwrap_or_else(|e| unreachable!("plain data becomes JSON: {e}"))
}

/// What cannot be read is no reason to show nothing.
fn decode<T: DeserializeOwned>(record: &Record) -> Option<T> {
    serde_json::from_slice(&record.value)
        .inspect_err(|error| tracing::warn!(%error, id = record.id, "a series cannot be read"))
        .ok()
}

/// A short name for an origin, which may be longer than the id of a record.
fn hash(origin: &str) -> String {
    let digest = Sha256::digest(origin.as_bytes());
    digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use redrive_core::store::Stats;

    use super::*;
    use crate::series::Recent;
    use crate::series::counters::Counts;

    #[test]
    fn a_full_series_fits_a_record_even_with_large_numbers() {
        let recent = Recent::default();
        let mut counts = serde_json::json!([u64::MAX / 1000, 12_345_678, 12_345_678, 12_345_678, []]);
        counts[4] = (0..48).map(|bucket| serde_json::json!([bucket, 1_234_567])).collect();
        for step in 1..=400 {
            let stats = Stats { now: Timestamp::from_ms(step * 10_000), ..Stats::default() };
            let counts: Counts = serde_json::from_value(counts.clone()).unwrap();
            recent.sample(counts, &stats, &[]);
        }
        let now = Timestamp::from_ms(4_000_000);
        let written = written(&recent.lock(), "n", now);
        assert_eq!(written.len(), 2);
        for change in &written {
            let size = change.value.as_ref().unwrap().len();
            assert!(size <= RECORD_BYTES_MAX && size > RECORD_BYTES_MAX / 100, "{} has {size}", change.kind);
        }
        let record = Record { id: "n".into(), version: 1, value: written[0].value.clone().unwrap() };
        let read: Written<Doing> = decode(&record).unwrap();
        assert_eq!(read.points.last().unwrap().at, 3_990_000, "the newest are kept");
    }
}
