//! Numbers over time: kept in memory by each node, and written down now and then, so that a restart keeps them and nodes add
//! up.

pub(crate) mod counters;
mod keep;
mod ring;
mod steps;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive_core::store::Stats;
use redrive_core::{StoreError, Timestamp};
use redrive_delivery::gate::OriginStatus;
use tokio::time::Instant;

use crate::api::Api;
use crate::wire::series::{OriginPoint, SeriesPoint, Span};
use counters::Counts;
use ring::{Point, Ring, Step, joined};
use steps::{Doing, Gating};

/// Origins of which a node knows the past.
const ORIGINS_MAX: usize = 200;
/// How long what other nodes have written is trusted.
const OTHERS_TRUSTED: Duration = Duration::from_secs(5);

/// What this node has seen, and what others have written of late.
#[derive(Default)]
pub(crate) struct Recent {
    own: Mutex<Own>,
    others: Mutex<HashMap<&'static str, (Others, Instant)>>,
}

/// The points of other nodes.
type Others = Vec<Vec<Point<Doing>>>;

#[derive(Default)]
struct Own {
    service: Rings<Doing>,
    origins: HashMap<String, Rings<Gating>>,
}

/// The same in both spans.
struct Rings<T> {
    hour: Ring<T>,
    day: Ring<T>,
}

impl<T: Step> Default for Rings<T> {
    fn default() -> Self {
        Self { hour: Ring::new(Span::Hour), day: Ring::new(Span::Day) }
    }
}

impl<T: Step> Rings<T> {
    fn add(&mut self, now: i64, step: T) {
        self.hour.add(now, step.clone());
        self.day.add(now, step);
    }

    fn of(&self, span: Span) -> &Ring<T> {
        match span {
            Span::Hour => &self.hour,
            Span::Day => &self.day,
        }
    }
}

impl Recent {
    /// Adds what has happened since the last sample.
    pub(crate) fn sample(&self, counts: Counts, stats: &Stats, gates: &[OriginStatus]) {
        let now = stats.now.as_ms();
        let mut own = self.lock();
        own.service.add(now, Doing::new(counts, stats));
        for (status, gating) in gates.iter().filter_map(|status| Some((status, Gating::of(status)?))) {
            own.origin(&status.origin).add(now, gating);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Own {
    /// The rings of an origin; a new one takes the place of the one that was called longest ago.
    fn origin(&mut self, origin: &str) -> &mut Rings<Gating> {
        if self.origins.len() >= ORIGINS_MAX && !self.origins.contains_key(origin) {
            let unused = self.origins.iter().min_by_key(|(_, rings)| rings.hour.newest());
            let unused = unused.map(|(origin, _)| origin.clone());
            unused.and_then(|origin| self.origins.remove(&origin));
        }
        self.origins.entry(origin.to_owned()).or_default()
    }
}

/// What all nodes did of late.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lately {
    pub(crate) counts: Counts,
    /// Attempts a second, by the way they ended.
    pub(crate) rates: [f64; 4],
}

impl Api {
    /// The series of all nodes.
    pub(crate) async fn series(&self, span: Span, now: Timestamp) -> Result<Vec<SeriesPoint>, StoreError> {
        let nodes = self.points(span).await?;
        Ok(joined(span, nodes, now.as_ms()).into_iter().map(SeriesPoint::from).collect())
    }

    /// The series of an origin's gates on all nodes.
    pub(crate) async fn origin_series(
        &self,
        origin: &str,
        span: Span,
        now: Timestamp,
    ) -> Result<Vec<OriginPoint>, StoreError> {
        let mut nodes = keep::origin(&*self.store, origin, span, self.node.as_str()).await?;
        nodes.extend(self.recent.lock().origins.get(origin).map(|rings| rings.of(span).points()));
        Ok(joined(span, nodes, now.as_ms()).into_iter().map(OriginPoint::from).collect())
    }

    /// What all nodes did in the last five minutes, and how much a second in their last one.
    pub(crate) async fn lately(&self, now: Timestamp) -> Result<Lately, StoreError> {
        let mut lately = Lately::default();
        for points in self.points(Span::Hour).await? {
            let recent = |within: i64| {
                let points = points.iter().rev();
                points
                    .take_while(move |point| point.at >= now.as_ms() - within)
                    .map(|point| &point.step.counts)
            };
            recent(300_000).for_each(|counts| lately.counts.add(counts));
            // Another node writes once a minute: its newest minute may be that old.
            let minute: Vec<&Counts> = recent(150_000).take(6).collect();
            let seconds = minute.len() as f64 * 10.0;
            for counts in minute {
                let ended = [counts.succeeded, counts.retried, counts.exhausted, counts.other];
                for (rate, count) in lately.rates.iter_mut().zip(ended) {
                    *rate += count as f64 / seconds;
                }
            }
        }
        Ok(lately)
    }

    /// The points of each node.
    async fn points(&self, span: Span) -> Result<Others, StoreError> {
        let kind = keep::kind(span);
        let known = {
            let others = self.recent.others.lock().unwrap_or_else(PoisonError::into_inner);
            others
                .get(kind)
                .filter(|(_, read_at)| read_at.elapsed() < OTHERS_TRUSTED)
                .map(|(others, _)| others.clone())
        };
        let mut nodes = match known {
            Some(others) => others,
            None => {
                let others = keep::others(&*self.store, kind, self.node.as_str()).await?;
                let mut known = self.recent.others.lock().unwrap_or_else(PoisonError::into_inner);
                known.insert(kind, (others.clone(), Instant::now()));
                others
            }
        };
        nodes.push(self.recent.lock().service.of(span).points());
        Ok(nodes)
    }

    /// Writes down what this node has seen, for others and for after a restart.
    pub(crate) async fn keep_series(&self, now: Timestamp) -> Result<(), StoreError> {
        let written = keep::written(&self.recent.lock(), self.node.as_str(), now);
        for change in written {
            self.store.write(change).await?;
        }
        Ok(())
    }

    /// Removes what nodes that are gone have written, once it is too old to be shown.
    pub(crate) async fn prune_series(&self, now: Timestamp) -> Result<(), StoreError> {
        keep::prune(&*self.store, now).await
    }
}
