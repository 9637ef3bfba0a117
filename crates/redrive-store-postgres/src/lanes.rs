//! Lanes by number: rows carry the number, claims walk the lanes. Lanes are never removed, so what is known stays true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use redrive_core::store::ClaimRequest;
use redrive_core::{Kind, NewJob, Priority, Queue, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::error::Sorted;
use crate::pool::Pool;

/// A queue, a kind and a priority, with their number.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) number: i32,
    pub(crate) queue: Queue,
    pub(crate) kind: Kind,
    pub(crate) priority: Priority,
    /// Whether jobs with partitions have come into it.
    pub(crate) partitioned: bool,
}

/// The lanes that this node knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedLanes(Arc<RwLock<Arc<Lanes>>>);

/// The lanes as they were at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lanes {
    by_number: BTreeMap<i32, Lane>,
    by_name: BTreeMap<(Queue, Kind, Priority), i32>,
}

impl SharedLanes {
    /// The lanes now.
    pub(crate) fn snapshot(&self) -> Arc<Lanes> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The lanes with those of these jobs among them; the ones that are new get a number. The first job with a partition is
    /// noted before it comes.
    pub(crate) async fn with(&self, pool: &Pool, jobs: &[NewJob]) -> Result<Arc<Lanes>, StoreError> {
        for job in jobs {
            if !self.snapshot().is_ready(job) {
                let number = add(pool, job).await?;
                let NewJob { queue, kind, priority, partition, .. } = job.clone();
                self.insert([Lane { number, queue, kind, priority, partitioned: partition.is_some() }]);
            }
        }
        Ok(self.snapshot())
    }

    /// Reads the lanes, at the start and when another node has added one.
    pub(crate) async fn reload(&self, pool: &Pool) -> Result<(), StoreError> {
        let rows = pool.query(include_str!("../sql/lanes.sql"), &[]).await?;
        let lanes: Vec<Lane> = rows.iter().map(lane).collect::<Result<_, _>>()?;
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
    /// The lane with that number.
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

    /// Whether a job's lane is known as one for such jobs.
    fn is_ready(&self, job: &NewJob) -> bool {
        let lane = self.number(job).and_then(|number| self.get(number));
        lane.is_some_and(|lane| lane.partitioned || job.partition.is_none())
    }

    /// Every lane.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.by_number.values()
    }

    /// Whether two of the lanes that a claim looks at have the same priority.
    pub(crate) fn has_peers(&self, request: &ClaimRequest) -> bool {
        let mut seen = BTreeSet::new();
        let wanted = self.iter().filter(|lane| {
            (request.queues.is_empty() || request.queues.contains(&lane.queue))
                && (request.kinds.is_empty() || request.kinds.contains(&lane.kind))
        });
        wanted.into_iter().any(|lane| !seen.insert(lane.priority))
    }
}

async fn add(pool: &Pool, job: &NewJob) -> Result<i32, StoreError> {
    let (priority, partitioned) = (i16::from(job.priority.get()), job.partition.is_some());
    loop {
        let rows = pool
            .query(
                include_str!("../sql/enqueue_lane.sql"),
                &[
                    (&job.queue.as_str(), Type::TEXT),
                    (&job.kind.as_str(), Type::TEXT),
                    (&priority, Type::INT2),
                    (&partitioned, Type::BOOL),
                ],
            )
            .await?;
        // None: another node has just added it, and this statement began too early to see that.
        if let Some(row) = rows.first() {
            return row.try_get(0).sorted();
        }
    }
}

fn lane(row: &Row) -> Result<Lane, StoreError> {
    let priority: i16 = row.try_get(3).sorted()?;
    Ok(Lane {
        number: row.try_get(0).sorted()?,
        queue: Queue::new(row.try_get::<_, &str>(1).sorted()?)?,
        kind: Kind::new(row.try_get::<_, &str>(2).sorted()?)?,
        priority: Priority::new(u8::try_from(priority).unwrap_or(u8::MAX))?,
        partitioned: row.try_get(4).sorted()?,
    })
}
