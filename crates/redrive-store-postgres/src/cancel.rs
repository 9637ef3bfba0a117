//! Ends jobs with everything below them, or asks for the end of what is running.

use std::collections::{HashMap, HashSet};

use redrive_core::store::Cancelled;
use redrive_core::{JobId, State, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Sorted;
use crate::found::keys;
use crate::open::Inner;
use crate::row;

pub(crate) async fn cancel(inner: &Inner, ids: &[JobId]) -> Result<Vec<Cancelled>, StoreError> {
    let (now, asked) = (inner.manual_now(), keys(ids));
    let sql = include_str!("../sql/cancel.sql");
    loop {
        let rows = inner.pool.query(sql, &[(&now, Type::INT8), (&asked, Type::UUID_ARRAY)]).await?;
        if !ended_meanwhile(&rows)? {
            let mut family = Family::read(&rows)?;
            return Ok(ids.iter().map(|id| family.cancel(id.0)).collect());
        }
    }
}

/// Whether one of the jobs ended while the statement looked for what is below it; then nothing was cancelled.
fn ended_meanwhile(rows: &[Row]) -> Result<bool, StoreError> {
    for row in rows {
        if row.try_get("again").sorted()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The jobs as the statement found them. What it did to all of them at once is told as if it was done to one after the
/// other: a job that went with another before it had ended by then.
struct Family {
    states: HashMap<Uuid, State>,
    children: HashMap<Uuid, Vec<Uuid>>,
    seen: HashSet<Uuid>,
}

impl Family {
    fn read(rows: &[Row]) -> Result<Self, StoreError> {
        let states = rows.iter().map(row::id_and_state).collect::<Result<_, _>>()?;
        let mut children: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
        for row in rows {
            if let Some(parent) = row.try_get::<_, Option<Uuid>>("parent").sorted()? {
                children.entry(parent).or_default().push(row.try_get("id").sorted()?);
            }
        }
        Ok(Self { states, children, seen: HashSet::new() })
    }

    fn cancel(&mut self, id: Uuid) -> Cancelled {
        let answer = match self.states.get(&id).copied() {
            None => return Cancelled::NotFound,
            Some(state) if state.is_final() => return Cancelled::Ended(state),
            Some(State::Running) => Cancelled::Requested,
            Some(_) => Cancelled::Done,
        };
        let mut below = vec![id];
        while let Some(id) = below.pop() {
            if self.seen.insert(id) {
                self.end(id);
                below.extend(self.children.get(&id).into_iter().flatten());
            }
        }
        answer
    }

    fn end(&mut self, id: Uuid) {
        if let Some(state) = self.states.get_mut(&id)
            && !state.is_final()
            && *state != State::Running
        {
            *state = State::Cancelled;
        }
    }
}
