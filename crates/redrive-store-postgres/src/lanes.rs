//! The numbers of lanes. A job's row has the number of its lane, and claims read lane by lane.
//!
//! A node notes at least once an hour that it uses a lane. Lanes that nobody has used for a day are removed, so a cached lane that was used
//! within the hour is valid.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use redrive_core::store::ClaimRequest;
use redrive_core::time::ceil_ms;
use redrive_core::{Kind, NewJob, Priority, Queue};
use redrive_sql::Statement;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::{Error, Result};
use crate::pool::{Parameter, Pool};
use crate::sql;

static LIST_LANES: Statement = sql::LIFECYCLE.statement("list_lanes");
static USE_LANE: Statement = sql::LIFECYCLE.statement("use_lane");

/// A queue, a kind and a priority, with their number.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) number: i32,
    pub(crate) queue: Queue,
    pub(crate) kind: Kind,
    pub(crate) priority: Priority,
    /// Whether it has ever had a job with a partition key.
    pub(crate) partitioned: bool,
    /// When this node last noted that it uses the lane, in milliseconds since the Unix epoch.
    noted_at: Option<i64>,
}

/// A node notes again after this time, in milliseconds, that it uses a lane.
const NOTE_INTERVAL_MS: i64 = 60 * 60 * 1000;

/// The lanes that this node knows of.
#[derive(Debug, Clone, Default)]
pub(crate) struct LaneCache(Arc<RwLock<Arc<Lanes>>>);

/// The known lanes at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lanes {
    by_number: BTreeMap<i32, Lane>,
    by_name: BTreeMap<(Queue, Kind, Priority), i32>,
}

impl LaneCache {
    pub(crate) fn snapshot(&self) -> Arc<Lanes> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the lanes, with those of these jobs. Notes that they are in use, and marks a lane before its first job with a
    /// partition key is added. `now` is the time of a store with a clock of its own.
    pub(crate) async fn ensure(&self, pool: &Pool, now: Option<i64>, jobs: &[NewJob]) -> Result<Arc<Lanes>> {
        let time = now.unwrap_or_else(clock_ms);
        for job in jobs {
            if !self.snapshot().covers(job, time) {
                let number = note_use(pool, now, job).await?;
                let NewJob { queue, kind, priority, partition, .. } = job.clone();
                let (partitioned, noted_at) = (partition.is_some(), Some(time));
                self.insert([Lane { number, queue, kind, priority, partitioned, noted_at }]);
            }
        }
        Ok(self.snapshot())
    }

    /// Reads all lanes: at the start, and when another node has added one.
    pub(crate) async fn reload(&self, pool: &Pool) -> Result<()> {
        let rows = pool.query(&LIST_LANES, &[]).await?;
        let lanes: Vec<Lane> = rows.iter().map(lane).collect::<Result<_>>()?;
        self.insert(lanes);
        Ok(())
    }

    fn insert(&self, lanes: impl IntoIterator<Item = Lane>) {
        let mut shared = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let known = Arc::make_mut(&mut shared);
        for mut lane in lanes {
            let before = known.get(lane.number);
            lane.partitioned |= before.is_some_and(|known| known.partitioned);
            lane.noted_at = lane.noted_at.or(before.and_then(|known| known.noted_at));
            known.by_name.insert((lane.queue.clone(), lane.kind.clone(), lane.priority), lane.number);
            known.by_number.insert(lane.number, lane);
        }
    }
}

impl Lanes {
    /// The lane with this number.
    pub(crate) fn get(&self, number: i32) -> Option<&Lane> {
        self.by_number.get(&number)
    }

    /// The number of a job's lane.
    pub(crate) fn number(&self, job: &NewJob) -> Option<i32> {
        self.number_of(&job.queue, &job.kind, job.priority)
    }

    /// The number of a lane.
    pub(crate) fn number_of(&self, queue: &Queue, kind: &Kind, priority: Priority) -> Option<i32> {
        self.by_name.get(&(queue.clone(), kind.clone(), priority)).copied()
    }

    /// Whether the lane of a job is known, noted as used, and marked for partition keys if the job has one.
    fn covers(&self, job: &NewJob, time: i64) -> bool {
        let lane = self.number(job).and_then(|number| self.get(number));
        lane.is_some_and(|lane| {
            let is_noted = lane.noted_at.is_some_and(|at| (0..NOTE_INTERVAL_MS).contains(&(time - at)));
            is_noted && (lane.partitioned || job.partition.is_none())
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.by_number.values()
    }

    /// Whether two of the lanes of a claim have the same priority.
    pub(crate) fn share_a_priority(&self, request: &ClaimRequest) -> bool {
        let mut priorities = BTreeSet::new();
        let matching = self.iter().filter(|lane| {
            (request.queues.is_empty() || request.queues.contains(&lane.queue))
                && (request.kinds.is_empty() || request.kinds.contains(&lane.kind))
        });
        matching.into_iter().any(|lane| !priorities.insert(lane.priority))
    }
}

fn clock_ms() -> i64 {
    ceil_ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

async fn note_use(pool: &Pool, now: Option<i64>, job: &NewJob) -> Result<i32> {
    let (priority, partitioned) = (i16::from(job.priority.get()), job.partition.is_some());
    let parameters: [Parameter<'_>; 5] = [
        (&now, Type::INT8),
        (&job.queue.as_str(), Type::TEXT),
        (&job.kind.as_str(), Type::TEXT),
        (&priority, Type::INT2),
        (&partitioned, Type::BOOL),
    ];
    let rows = pool.query(&USE_LANE, &parameters).await?;
    Ok(rows.first().ok_or_else(Error::no_row)?.try_get(0)?)
}

fn lane(row: &Row) -> Result<Lane> {
    let priority: i16 = row.try_get(3)?;
    Ok(Lane {
        number: row.try_get(0)?,
        queue: Queue::new(row.try_get::<_, &str>(1)?)?,
        kind: Kind::new(row.try_get::<_, &str>(2)?)?,
        priority: Priority::new(u8::try_from(priority).unwrap_or(u8::MAX))?,
        partitioned: row.try_get(4)?,
        noted_at: None,
    })
}
