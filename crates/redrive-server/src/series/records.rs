//! The stored series: a record for each node and span, and one for each origin that a node has called recently.

use redrive_core::limits::RECORD_BYTES_MAX;
use redrive_core::records::{RecordValue, Records};
use redrive_core::store::Backend;
use redrive_core::{StoreError, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::ring::{Point, Ring};
use super::samples::{OriginSample, ServiceSample};
use super::{NodeSeries, SpanRings};
use redrive_wire::series::Span;

/// Nodes whose series are read.
const NODES_MAX: usize = 100;
/// Origins whose series are stored: those with the most calls.
const ORIGINS_MAX: usize = 32;
/// How long the hour series of a node is kept after its last write.
const HOUR_KEPT_MS: i64 = 2 * 60 * 60 * 1000;
/// How long the day series and the origins of a node are kept after its last write.
const DAY_KEPT_MS: i64 = 2 * 24 * 60 * 60 * 1000;

/// The series of a node in one span.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSeries {
    seen_at: i64,
    points: Vec<Point<ServiceSample>>,
}

/// The last hour of a node; the id of the record is the node's name.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct HourSeries(StoredSeries);

impl RecordValue for HourSeries {
    const KIND: &'static str = "series.hour";

    fn expires_at(&self) -> Option<Timestamp> {
        Some(Timestamp::from_ms(self.0.seen_at + HOUR_KEPT_MS))
    }
}

/// The last day of a node; the id of the record is the node's name.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct DaySeries(StoredSeries);

impl RecordValue for DaySeries {
    const KIND: &'static str = "series.day";

    fn expires_at(&self) -> Option<Timestamp> {
        Some(Timestamp::from_ms(self.0.seen_at + DAY_KEPT_MS))
    }
}

/// Both series of an origin on one node; the id of the record is the hash of the origin and the node's name.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OriginSeries {
    seen_at: i64,
    origin: String,
    hour: Vec<Point<OriginSample>>,
    day: Vec<Point<OriginSample>>,
}

impl RecordValue for OriginSeries {
    const KIND: &'static str = "series.origin";

    fn expires_at(&self) -> Option<Timestamp> {
        Some(Timestamp::from_ms(self.seen_at + DAY_KEPT_MS))
    }
}

/// The records of one node, ready to be written.
pub(super) struct SeriesRecords {
    hour: HourSeries,
    day: DaySeries,
    origins: Vec<OriginSeries>,
}

impl SeriesRecords {
    pub(super) fn of(own: &NodeSeries, now: Timestamp) -> Self {
        let seen_at = now.as_ms();
        let origins = busiest(own, seen_at).into_iter().map(|(origin, rings)| OriginSeries {
            seen_at,
            origin: origin.to_owned(),
            hour: rings.hour.points(),
            day: rings.day.points(),
        });
        Self {
            hour: HourSeries(newest_that_fit(&own.service.hour, seen_at)),
            day: DaySeries(newest_that_fit(&own.service.day, seen_at)),
            origins: origins.collect(),
        }
    }

    pub(super) async fn write(&self, store: &dyn Backend, node: &str) -> Result<(), StoreError> {
        Records::new(store).put(node, &self.hour).await?;
        Records::new(store).put(node, &self.day).await?;
        for series in &self.origins {
            // A series with very large numbers may not fit into a record. It is skipped this time.
            if series.encode().len() <= RECORD_BYTES_MAX {
                Records::new(store).put(&format!("{}{node}", id_prefix(&series.origin)), series).await?;
            }
        }
        Ok(())
    }
}

/// The points of the other nodes.
pub(super) async fn others(
    store: &dyn Backend,
    span: Span,
    node: &str,
) -> Result<Vec<Vec<Point<ServiceSample>>>, StoreError> {
    Ok(match span {
        Span::Hour => {
            let page = Records::<HourSeries>::new(store).page("", None, NODES_MAX).await?;
            page.items
                .into_iter()
                .filter(|record| record.id != node)
                .map(|record| record.value.0.points)
                .collect()
        }
        Span::Day => {
            let page = Records::<DaySeries>::new(store).page("", None, NODES_MAX).await?;
            page.items
                .into_iter()
                .filter(|record| record.id != node)
                .map(|record| record.value.0.points)
                .collect()
        }
    })
}

/// The points of an origin on the other nodes.
pub(super) async fn origin(
    store: &dyn Backend,
    origin: &str,
    span: Span,
    node: &str,
) -> Result<Vec<Vec<Point<OriginSample>>>, StoreError> {
    let prefix = id_prefix(origin);
    let page = Records::<OriginSeries>::new(store).page(&prefix, None, NODES_MAX).await?;
    let others = page.items.into_iter().filter(|record| record.id[prefix.len()..] != *node);
    let series = others.map(|record| record.value).filter(|series| series.origin == origin);
    Ok(series
        .map(|series| match span {
            Span::Hour => series.hour,
            Span::Day => series.day,
        })
        .collect())
}

/// Removes expired series.
pub(super) async fn prune(store: &dyn Backend, now: Timestamp) -> Result<(), StoreError> {
    Records::<HourSeries>::new(store).remove_expired(now).await?;
    Records::<DaySeries>::new(store).remove_expired(now).await?;
    Records::<OriginSeries>::new(store).remove_expired(now).await?;
    Ok(())
}

/// Origins that were called in the last two minutes, those with the most calls first.
fn busiest(own: &NodeSeries, now: i64) -> Vec<(&str, &SpanRings<OriginSample>)> {
    let recent = own.origins.iter().filter(|(_, rings)| rings.hour.newest() > Some(now - 120_000));
    let mut recent: Vec<_> = recent.map(|(origin, rings)| (origin.as_str(), rings)).collect();
    recent.sort_by_key(|(_, rings)| {
        let last = rings.hour.points().pop();
        std::cmp::Reverse(last.map_or(0, |point| point.sample.answered + point.sample.failed))
    });
    recent.truncate(ORIGINS_MAX);
    recent
}

/// The newest points that fit into a record. With large numbers not all of them do.
fn newest_that_fit(ring: &Ring<ServiceSample>, seen_at: i64) -> StoredSeries {
    let mut series = StoredSeries { seen_at, points: ring.points() };
    loop {
        let bytes = serde_json::to_vec(&series).map_or(0, |json| json.len());
        if bytes <= RECORD_BYTES_MAX || series.points.is_empty() {
            return series;
        }
        series.points.drain(..series.points.len().div_ceil(8));
    }
}

/// The prefix of the record ids of an origin. It is a hash, because an origin may be longer than an id.
fn id_prefix(origin: &str) -> String {
    let digest = Sha256::digest(origin.as_bytes());
    format!("{}.", hex::encode(&digest[..12]))
}

#[cfg(test)]
mod tests {
    use redrive_core::store::Stats;

    use super::*;
    use crate::series::SeriesRecorder;
    use crate::series::counters::Counts;

    #[test]
    fn a_full_series_fits_a_record_even_with_large_numbers() {
        let recorder = SeriesRecorder::default();
        let mut counts = serde_json::json!([u64::MAX / 1000, 12_345_678, 12_345_678, 12_345_678, []]);
        counts[4] = (0..48).map(|bucket| serde_json::json!([bucket, 1_234_567])).collect();
        for step in 1..=400 {
            let stats = Stats { now: Timestamp::from_ms(step * 10_000), ..Stats::default() };
            let counts: Counts = serde_json::from_value(counts.clone()).unwrap();
            recorder.sample(counts, &stats, &[]);
        }
        let now = Timestamp::from_ms(4_000_000);
        let records = SeriesRecords::of(&recorder.lock(), now);
        assert!(records.origins.is_empty());
        for bytes in [records.hour.encode(), records.day.encode()] {
            let size = bytes.len();
            assert!(size <= RECORD_BYTES_MAX && size > RECORD_BYTES_MAX / 100, "{size}");
        }
        let read = HourSeries::decode(&records.hour.encode()).unwrap();
        assert_eq!(read.0.points.last().unwrap().at, 3_990_000, "the newest points are kept");
    }
}
