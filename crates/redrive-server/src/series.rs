//! Counts over time, for charts. Each node keeps its series in memory and stores them once per minute, so that they survive a
//! restart and the series of all nodes can be added up.

pub(crate) mod counters;
mod records;
mod ring;
mod samples;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::store::Stats;
use redrive_core::{StoreError, Timestamp};
use redrive_delivery::gate::OriginStatus;
use tokio::time::Instant;

use crate::api::Api;
use counters::Counts;
use records::SeriesRecords;
use redrive_wire::series::{OriginPoint, SeriesPoint, Span};
use ring::{Point, Ring, Sample, merge_nodes};
use samples::{OriginSample, ServiceSample};

/// Origins whose series a node keeps.
const ORIGINS_MAX: usize = 200;
/// How long the series of the other nodes are cached.
const OTHERS_CACHE_TTL: Duration = Duration::from_secs(5);

/// The series of this node, and a cache of the series that other nodes have stored.
#[derive(Default)]
pub(crate) struct SeriesRecorder {
    own: Mutex<NodeSeries>,
    others: Mutex<HashMap<Span, (PointsByNode, Instant)>>,
}

/// The points of several nodes, one list for each node.
type PointsByNode = Vec<Vec<Point<ServiceSample>>>;

#[derive(Default)]
struct NodeSeries {
    service: SpanRings<ServiceSample>,
    origins: HashMap<String, SpanRings<OriginSample>>,
}

/// A series in both spans.
struct SpanRings<T> {
    hour: Ring<T>,
    day: Ring<T>,
}

impl<T: Sample> Default for SpanRings<T> {
    fn default() -> Self {
        Self { hour: Ring::new(Span::Hour), day: Ring::new(Span::Day) }
    }
}

impl<T: Sample> SpanRings<T> {
    fn add(&mut self, now: i64, sample: T) {
        self.hour.add(now, sample.clone());
        self.day.add(now, sample);
    }

    fn of(&self, span: Span) -> &Ring<T> {
        match span {
            Span::Hour => &self.hour,
            Span::Day => &self.day,
        }
    }
}

impl SeriesRecorder {
    /// Adds the counts since the last sample, and the current state of the store and the gates.
    pub(crate) fn sample(&self, counts: Counts, stats: &Stats, gates: &[OriginStatus]) {
        let now = stats.now.as_ms();
        let mut own = self.lock();
        own.service.add(now, ServiceSample::new(counts, stats));
        for (status, sample) in gates.iter().filter_map(|status| Some((status, OriginSample::of(status)?))) {
            own.origin(&status.origin).add(now, sample);
        }
    }

    fn lock(&self) -> MutexGuard<'_, NodeSeries> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeSeries {
    /// The rings of an origin. A new origin replaces the one that was called longest ago.
    fn origin(&mut self, origin: &str) -> &mut SpanRings<OriginSample> {
        if self.origins.len() >= ORIGINS_MAX && !self.origins.contains_key(origin) {
            let unused = self.origins.iter().min_by_key(|(_, rings)| rings.hour.newest());
            let unused = unused.map(|(origin, _)| origin.clone());
            unused.and_then(|origin| self.origins.remove(&origin));
        }
        self.origins.entry(origin.to_owned()).or_default()
    }
}

/// The recent attempts of all nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecentActivity {
    pub(crate) counts: Counts,
    /// Attempts per second: succeeded, retried, dead, other.
    pub(crate) rates: [f64; 4],
}

impl Api {
    /// The series of all nodes.
    pub(crate) async fn series(&self, span: Span, now: Timestamp) -> Result<Vec<SeriesPoint>, StoreError> {
        let nodes = self.points(span).await?;
        Ok(merge_nodes(span, nodes, now.as_ms()).into_iter().map(SeriesPoint::from).collect())
    }

    /// The series of an origin's gates on all nodes.
    pub(crate) async fn origin_series(
        &self,
        origin: &str,
        span: Span,
        now: Timestamp,
    ) -> Result<Vec<OriginPoint>, StoreError> {
        let mut nodes = records::origin(&*self.store, origin, span, self.node.as_str()).await?;
        nodes.extend(self.series_recorder.lock().origins.get(origin).map(|rings| rings.of(span).points()));
        Ok(merge_nodes(span, nodes, now.as_ms()).into_iter().map(OriginPoint::from).collect())
    }

    /// The counts of all nodes in the last five minutes, and the rates in the last minute of each node.
    pub(crate) async fn recent_activity(&self, now: Timestamp) -> Result<RecentActivity, StoreError> {
        let mut activity = RecentActivity::default();
        for points in self.points(Span::Hour).await? {
            let recent = |within: i64| {
                let points = points.iter().rev();
                points
                    .take_while(move |point| point.at >= now.as_ms() - within)
                    .map(|point| &point.sample.counts)
            };
            recent(300_000).for_each(|counts| activity.counts.add(counts));
            // Other nodes store their series once per minute, so their newest minute may be older than one minute.
            let minute: Vec<&Counts> = recent(150_000).take(6).collect();
            let seconds = minute.len() as f64 * 10.0;
            for counts in minute {
                let ended = [counts.succeeded, counts.retried, counts.dead, counts.other];
                for (rate, count) in activity.rates.iter_mut().zip(ended) {
                    *rate += count as f64 / seconds;
                }
            }
        }
        Ok(activity)
    }

    /// The points of each node.
    async fn points(&self, span: Span) -> Result<PointsByNode, StoreError> {
        let cached = {
            let others = self.series_recorder.others.lock().unwrap_or_else(PoisonError::into_inner);
            others
                .get(&span)
                .filter(|(_, read_at)| read_at.elapsed() < OTHERS_CACHE_TTL)
                .map(|(others, _)| others.clone())
        };
        let mut nodes = match cached {
            Some(others) => others,
            None => {
                let others = records::others(&*self.store, span, self.node.as_str()).await?;
                let mut cache = self.series_recorder.others.lock().unwrap_or_else(PoisonError::into_inner);
                cache.insert(span, (others.clone(), Instant::now()));
                others
            }
        };
        nodes.push(self.series_recorder.lock().service.of(span).points());
        Ok(nodes)
    }

    /// Stores the series of this node.
    pub(crate) async fn save_series(&self, now: Timestamp) -> Result<(), StoreError> {
        let records = SeriesRecords::of(&self.series_recorder.lock(), now);
        records.write(&*self.store, self.node.as_str()).await
    }

    /// Removes stored series that are too old to be shown.
    pub(crate) async fn prune_series(&self, now: Timestamp) -> Result<(), StoreError> {
        records::prune(&*self.store, now).await
    }
}
