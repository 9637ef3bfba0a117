//! Lanes by number: rows carry the number, claims walk the lanes.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use redrive_core::{Kind, Priority, Queue, StoreError};
use rusqlite::{Connection, params};

use crate::error::Sorted;

/// A queue, a kind and a priority, with their number.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) number: i64,
    pub(crate) queue: Queue,
    pub(crate) kind: Kind,
    pub(crate) priority: Priority,
}

/// The lanes, shared by the writer, which adds to them, and the readers.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedLanes(Arc<RwLock<Arc<Lanes>>>);

/// The lanes as they were at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lanes {
    by_number: BTreeMap<i64, Lane>,
    by_name: BTreeMap<(Queue, Kind, Priority), i64>,
}

impl SharedLanes {
    /// The lanes now.
    pub(crate) fn snapshot(&self) -> Arc<Lanes> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of a job's lane, which gets one if it is new. For the writer alone.
    pub(crate) fn number(
        &self,
        conn: &Connection,
        queue: &Queue,
        kind: &Kind,
        priority: Priority,
    ) -> Result<i64, StoreError> {
        let known = self.snapshot();
        if let Some(number) = known.by_name.get(&(queue.clone(), kind.clone(), priority)) {
            return Ok(*number);
        }
        let sql = include_str!("../sql/enqueue_lane.sql");
        let parameters = params![queue.as_str(), kind.as_str(), priority.get()];
        let number = conn.query_row(sql, parameters, |row| row.get(0)).sorted()?;
        let mut lanes = Lanes::clone(&known);
        lanes.add(Lane { number, queue: queue.clone(), kind: kind.clone(), priority });
        self.replace(lanes);
        Ok(number)
    }

    /// Reads the lanes again, at the start and after a rollback took a new one away.
    pub(crate) fn reload(&self, conn: &Connection) -> Result<(), StoreError> {
        self.replace(Lanes::read(conn)?);
        Ok(())
    }

    fn replace(&self, lanes: Lanes) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(lanes);
    }
}

impl Lanes {
    /// The lane with that number.
    pub(crate) fn get(&self, number: i64) -> Option<&Lane> {
        self.by_number.get(&number)
    }

    /// Every lane.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.by_number.values()
    }

    fn read(conn: &Connection) -> Result<Self, StoreError> {
        let mut lanes = Self::default();
        let mut statement = conn.prepare_cached(include_str!("../sql/lanes.sql")).sorted()?;
        let mut rows = statement.query(()).sorted()?;
        while let Some(row) = rows.next().sorted()? {
            let text = |column| row.get::<_, String>(column).sorted();
            lanes.add(Lane {
                number: row.get(0).sorted()?,
                queue: Queue::new(text(1)?)?,
                kind: Kind::new(text(2)?)?,
                priority: Priority::new(row.get(3).sorted()?)?,
            });
        }
        Ok(lanes)
    }

    fn add(&mut self, lane: Lane) {
        self.by_name.insert((lane.queue.clone(), lane.kind.clone(), lane.priority), lane.number);
        self.by_number.insert(lane.number, lane);
    }
}
