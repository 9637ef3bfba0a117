//! Jobs that match a filter, newest id first.

use redrive_core::store::{Filter, Page};
use redrive_core::{Job, JobId, StoreError};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use crate::error::Sorted;
use crate::get;
use crate::lanes::{Lanes, SharedLanes};
use crate::row::Reader;

pub(crate) fn list(
    conn: &Connection,
    lanes: &SharedLanes,
    filter: &Filter,
    after: Option<JobId>,
    limit: usize,
) -> Result<Page<Job>, StoreError> {
    let query = Query::new(&lanes.snapshot(), filter, after);
    Ok(Page::cut_rows(run(conn, lanes, query, "", limit + 1)?, limit))
}

/// The first `limit` rows of a query, without a job where one cannot be read; `by` says how to find them where the planner
/// must not choose.
pub(crate) fn run(
    conn: &Connection,
    lanes: &SharedLanes,
    query: Query,
    by: &str,
    limit: usize,
) -> Result<Vec<(JobId, Option<Job>)>, StoreError> {
    let sql = query.sql(by, limit);
    let mut statement = conn.prepare_cached(&sql).sorted()?;
    let mut reader = Reader::new(lanes);
    let rows = statement.query_map(params_from_iter(query.values), |row| reader.read(row)).sorted()?;
    let mut found = Vec::new();
    for row in rows {
        let read = row.sorted()?;
        let id = read.id();
        // A list goes on without a damaged row; asking for the row itself says what is wrong with it.
        let job = get::readable(read).inspect_err(|error| tracing::error!(%error, "left out of a list"));
        found.push((id, job.ok()));
    }
    Ok(found)
}

/// The conditions that a filter really sets, with their values.
#[derive(Default)]
pub(crate) struct Query {
    conditions: Vec<String>,
    values: Vec<Value>,
}

impl Query {
    pub(crate) fn new(lanes: &Lanes, filter: &Filter, after: Option<JobId>) -> Self {
        let mut query = Self::default();
        if !filter.states.is_empty() {
            query.one_of("state", filter.states.iter().map(|state| state.code().into()));
        }
        if filter.queue.is_some() || filter.kind.is_some() {
            query.one_of("lane", wanted_lanes(lanes, filter));
        }
        query.is("tenant =", filter.tenant.as_ref().map(|tenant| tenant.to_string()));
        query.is("policy =", filter.policy.as_ref().map(|policy| policy.to_string()));
        query.is("key =", filter.key.as_ref().map(|key| key.to_string()));
        query.is("created_at >=", filter.created_from.map(|from| from.as_ms()));
        query.is("created_at <", filter.created_before.map(|before| before.as_ms()));
        query.is("finished_at >=", filter.finished_from.map(|from| from.as_ms()));
        query.is("finished_at <", filter.finished_before.map(|before| before.as_ms()));
        query.is("reason =", filter.reason.map(|reason| reason.name().to_owned()));
        if let Some(start) = &filter.subject {
            query.is(&format!("substr(subject, 1, {}) =", start.chars().count()), Some(start.clone()));
        }
        // A reference is a name, an @ and the digits of the version.
        query.is("rtrim(policy, '0123456789') =", filter.policy_name.as_ref().map(|name| format!("{name}@")));
        query.is("id <", after.map(|id| id.0.as_bytes().to_vec()));
        query
    }

    /// Narrows it further, by what has no value.
    pub(crate) fn and(mut self, condition: &str) -> Self {
        self.conditions.push(condition.to_owned());
        self
    }

    /// Narrows it to this id and newer ones.
    pub(crate) fn since_id(mut self, id: &[u8]) -> Self {
        self.is("id >=", Some(id.to_vec()));
        self
    }

    fn is(&mut self, condition: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.conditions.push(format!("{condition} ?"));
            self.values.push(value.into());
        }
    }

    /// Numbers are written out: they come from this code alone, and their count varies.
    fn one_of(&mut self, column: &str, numbers: impl Iterator<Item = i64>) {
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        // One number is written as an equation, which is what the planner needs to see to take a partial index.
        self.conditions.push(match numbers.as_slice() {
            [number] => format!("{column} = {number}"),
            numbers => format!("{column} IN ({})", numbers.join(", ")),
        });
    }

    fn sql(&self, by: &str, limit: usize) -> String {
        let conditions =
            if self.conditions.is_empty() { "true".to_owned() } else { self.conditions.join(" AND ") };
        format!("{} {by} WHERE {conditions} ORDER BY id DESC LIMIT {limit}", include_str!("../sql/list.sql"))
    }
}

/// The lanes that a filter's queue and kind name.
pub(crate) fn wanted_lanes(lanes: &Lanes, filter: &Filter) -> impl Iterator<Item = i64> {
    let wanted = lanes.iter().filter(|lane| {
        filter.queue.as_ref().is_none_or(|queue| *queue == lane.queue)
            && filter.kind.as_ref().is_none_or(|kind| *kind == lane.kind)
    });
    wanted.map(|lane| lane.number)
}
