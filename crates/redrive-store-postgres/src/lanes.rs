//! The numbers of lanes. A job's row has the number of its lane, and claims read lane by lane. Lanes are never removed, so that a
//! cached lane stays valid.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use redrive_core::store::ClaimRequest;
use redrive_core::{Kind, NewJob, Priority, Queue};
use redrive_sql::Statement;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::Result;
use crate::pool::Pool;
use crate::sql;

static LIST_LANES: Statement = sql::LIFECYCLE.statement("list_lanes");
static ADD_LANE: Statement = sql::LIFECYCLE.statement("add_lane");

/// A queue, a kind and a priority, with their number.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) number: i32,
    pub(crate) queue: Queue,
    pub(crate) kind: Kind,
    pub(crate) priority: Priority,
    /// Whether it has ever had a job with a partition key.
    pub(crate) partitioned: bool,
}

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

    /// Returns the lanes, with those of these jobs. Adds the lanes that are new, and marks a lane before its first job with a
    /// partition key is added.
    pub(crate) async fn ensure(&self, pool: &Pool, jobs: &[NewJob]) -> Result<Arc<Lanes>> {
        for job in jobs {
            if !self.snapshot().covers(job) {
                let number = add(pool, job).await?;
                let NewJob { queue, kind, priority, partition, .. } = job.clone();
                self.insert([Lane { number, queue, kind, priority, partitioned: partition.is_some() }]);
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
            lane.partitioned |= known.get(lane.number).is_some_and(|known| known.partitioned);
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

    /// Whether the lane of a job is known, and marked for partition keys if the job has one.
    fn covers(&self, job: &NewJob) -> bool {
        let lane = self.number(job).and_then(|number| self.get(number));
        lane.is_some_and(|lane| lane.partitioned || job.partition.is_none())
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

async fn add(pool: &Pool, job: &NewJob) -> Result<i32> {
    let (priority, partitioned) = (i16::from(job.priority.get()), job.partition.is_some());
    loop {
        let rows = pool
            .query(
                &ADD_LANE,
                &[
                    (&job.queue.as_str(), Type::TEXT),
                    (&job.kind.as_str(), Type::TEXT),
                    (&priority, Type::INT2),
                    (&partitioned, Type::BOOL),
                ],
            )
            .await?;
        // No row: another node added the lane at the same moment, after this statement took its snapshot.
        if let Some(row) = rows.first() {
            return Ok(row.try_get(0)?);
        }
    }
}

fn lane(row: &Row) -> Result<Lane> {
    let priority: i16 = row.try_get(3)?;
    Ok(Lane {
        number: row.try_get(0)?,
        queue: Queue::new(row.try_get::<_, &str>(1)?)?,
        kind: Kind::new(row.try_get::<_, &str>(2)?)?,
        priority: Priority::new(u8::try_from(priority).unwrap_or(u8::MAX))?,
        partitioned: row.try_get(4)?,
    })
}
