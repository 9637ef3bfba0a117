//! The lanes: each combination of queue, kind and priority has a number. Rows carry the number, and claims go through
//! the lanes.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use redrive_core::{Kind, Priority, Queue};
use redrive_sql::Statement;
use rusqlite::{Connection, params};

use crate::error::Result;
use crate::sql::LIFECYCLE;

static INSERT_LANE: Statement = LIFECYCLE.statement("insert_lane");
static READ_LANES: Statement = LIFECYCLE.statement("read_lanes");

/// A queue, a kind and a priority, with their number.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) number: i64,
    pub(crate) queue: Queue,
    pub(crate) kind: Kind,
    pub(crate) priority: Priority,
}

/// The lanes, which the writer extends and the readers share.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedLanes(Arc<RwLock<Arc<Lanes>>>);

/// The lanes at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lanes {
    by_number: BTreeMap<i64, Lane>,
    by_name: BTreeMap<(Queue, Kind, Priority), i64>,
}

impl SharedLanes {
    pub(crate) fn snapshot(&self) -> Arc<Lanes> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of a lane, which is added if it is new. Only the writer may call this.
    pub(crate) fn number(
        &self,
        conn: &Connection,
        queue: &Queue,
        kind: &Kind,
        priority: Priority,
    ) -> Result<i64> {
        let known = self.snapshot();
        if let Some(number) = known.by_name.get(&(queue.clone(), kind.clone(), priority)) {
            return Ok(*number);
        }
        let parameters = params![queue.as_str(), kind.as_str(), priority.get()];
        let number = conn.query_row(&INSERT_LANE, parameters, |row| row.get(0))?;
        let mut lanes = Lanes::clone(&known);
        lanes.add(Lane { number, queue: queue.clone(), kind: kind.clone(), priority });
        self.replace(lanes);
        Ok(number)
    }

    /// Reads the lanes from the file: at the start, and after a rollback that removed a new lane.
    pub(crate) fn reload(&self, conn: &Connection) -> Result<()> {
        self.replace(Lanes::read(conn)?);
        Ok(())
    }

    fn replace(&self, lanes: Lanes) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(lanes);
    }
}

impl Lanes {
    /// The lane with this number.
    pub(crate) fn get(&self, number: i64) -> Option<&Lane> {
        self.by_number.get(&number)
    }

    /// Every lane.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.by_number.values()
    }

    fn read(conn: &Connection) -> Result<Self> {
        let mut lanes = Self::default();
        let mut statement = conn.prepare_cached(&READ_LANES)?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            lanes.add(Lane {
                number: row.get(0)?,
                queue: Queue::new(row.get::<_, String>(1)?)?,
                kind: Kind::new(row.get::<_, String>(2)?)?,
                priority: Priority::new(row.get(3)?)?,
            });
        }
        Ok(lanes)
    }

    fn add(&mut self, lane: Lane) {
        self.by_name.insert((lane.queue.clone(), lane.kind.clone(), lane.priority), lane.number);
        self.by_number.insert(lane.number, lane);
    }
}
