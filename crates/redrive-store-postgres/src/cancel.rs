//! Ends jobs with everything below them, or asks for the end of what is running.

use std::collections::{HashMap, HashSet, VecDeque};

use redrive_core::store::Cancelled;
use redrive_core::{JobId, State, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::enqueue::Query;
use crate::error::Sorted;
use crate::found::keys;
use crate::open::Inner;
use crate::row;
use crate::turns::{Left, pass_on};

/// Says too whether someone else may go on instead.
pub(crate) async fn cancel(inner: &Inner, ids: &[JobId]) -> Result<(Vec<Cancelled>, bool), StoreError> {
    let (cancelled, left) = cancel_in(&*inner.pool, inner.manual_now(), ids).await?;
    let passed_on = !left.is_empty() && pass_on(inner, &left).await;
    Ok((cancelled, passed_on))
}

/// Brings back which places were left in partitions, for whoever commits it.
pub(crate) async fn cancel_in(
    to: &(impl Query + Sync),
    now: Option<i64>,
    ids: &[JobId],
) -> Result<(Vec<Cancelled>, Vec<Left>), StoreError> {
    let asked = keys(ids);
    let sql = include_str!("../sql/cancel.sql");
    loop {
        let rows = to.typed(sql, &[(&now, Type::INT8), (&asked, Type::UUID_ARRAY)]).await?;
        if !ended_meanwhile(&rows)? {
            let mut family = Family::read(&rows)?;
            let cancelled = ids.iter().map(|id| family.cancel(id.0)).collect();
            return Ok((cancelled, family.left));
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
    partitioned: HashMap<Uuid, Left>,
    /// Those that have left their places in partitions, in the order in which they did.
    left: Vec<Left>,
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
        let partitioned = rows.iter().filter_map(|row| place(row).transpose()).collect::<Result<_, _>>()?;
        Ok(Self { states, children, seen: HashSet::new(), partitioned, left: Vec::new() })
    }

    fn cancel(&mut self, id: Uuid) -> Cancelled {
        let answer = match self.states.get(&id).copied() {
            None => return Cancelled::NotFound,
            Some(state) if state.is_final() => return Cancelled::Ended(state),
            Some(State::Running) => Cancelled::Requested,
            Some(_) => Cancelled::Done,
        };
        let mut below = VecDeque::from([id]);
        while let Some(id) = below.pop_front() {
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
            self.left.extend(self.partitioned.remove(&id));
        }
    }
}

/// The place of a job in its partition, if it has one, as it leaves it.
fn place(row: &Row) -> Result<Option<(Uuid, Left)>, StoreError> {
    let Some(partition) = row.try_get("partition").sorted()? else { return Ok(None) };
    let left = Left {
        partition,
        id: row.try_get("id").sorted()?,
        strict: row.try_get("strict").sorted()?,
        ended: true,
        ran: false,
        was_claimable: row.try_get("due").sorted()?,
        is_claimable: false,
        added: Vec::new(),
    };
    Ok(Some((left.id, left)))
}
