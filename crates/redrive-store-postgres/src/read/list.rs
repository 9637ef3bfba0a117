//! Jobs that match a filter, newest id first.

use redrive_core::store::{Filter, Page};
use redrive_core::{Job, JobId, StoreError};
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::lanes::Lanes;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::row;

pub(crate) async fn list(
    inner: &Inner,
    filter: &Filter,
    after: Option<JobId>,
    limit: usize,
) -> Result<Page<Job>, StoreError> {
    if filter.queue.is_some() || filter.kind.is_some() {
        // A lane that another node has added since is not left out.
        inner.lanes.reload(&inner.pool).await?;
    }
    let query = Query::new(&inner.lanes.snapshot(), filter, after);
    Ok(Page::cut_rows(run(inner, &query.sql(limit + 1), &query).await?, limit))
}

/// The rows of a query, asked for by one of its statements, without a job where one cannot be read.
pub(crate) async fn run(
    inner: &Inner,
    sql: &str,
    query: &Query,
) -> Result<Vec<(JobId, Option<Job>)>, StoreError> {
    let parameters: Vec<Parameter<'_>> =
        query.values.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect();
    let rows = inner.pool.query(sql, &parameters).await?;
    let lanes = inner.lanes_of(&rows).await?;
    let found = row::reads(&rows, &lanes)?.into_iter().map(|read| {
        let id = read.id;
        // A list goes on without a damaged row; asking for the row itself says what is wrong with it.
        let job = read.readable().inspect_err(|error| tracing::error!(%error, "left out of a list"));
        (id, job.ok())
    });
    Ok(found.collect())
}

/// The lanes that a filter's queue and kind name.
pub(crate) fn wanted_lanes(lanes: &Lanes, filter: &Filter) -> impl Iterator<Item = i32> {
    let wanted = lanes.iter().filter(|lane| {
        filter.queue.as_ref().is_none_or(|queue| *queue == lane.queue)
            && filter.kind.as_ref().is_none_or(|kind| *kind == lane.kind)
    });
    wanted.map(|lane| lane.number)
}

/// The conditions that a filter really sets, with their values.
#[derive(Default)]
pub(crate) struct Query {
    conditions: Vec<String>,
    values: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
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
        query.text("tenant = $", filter.tenant.as_ref().map(|tenant| tenant.to_string()));
        query.text("policy = $", filter.policy.as_ref().map(|policy| policy.to_string()));
        query.text("key = $", filter.key.as_ref().map(|key| key.to_string()));
        query.text("reason = $", filter.reason.map(|reason| reason.name().to_owned()));
        // A reference is a name, an @ and the digits of the version.
        let name = filter.policy_name.as_ref().map(|name| format!("{name}@"));
        query.text("rtrim(policy, '0123456789') = $", name);
        query.subject(filter.subject.as_deref());
        for (condition, at) in [
            ("created_at >= $", filter.created_from),
            ("created_at < $", filter.created_before),
            ("finished_at >= $", filter.finished_from),
            ("finished_at < $", filter.finished_before),
        ] {
            query.is(condition, at.map(|at| at.as_ms()), Type::INT8);
        }
        query.is("id < $", after.map(|id| id.0), Type::UUID);
        query
    }

    /// Narrows it further, by what has no value.
    pub(crate) fn and(mut self, condition: String) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Narrows it to this id and newer ones.
    pub(crate) fn since_id(mut self, id: Option<Uuid>) -> Self {
        self.is("id >= $", id, Type::UUID);
        self
    }

    /// Adds a condition, which ends where the number of its value goes.
    fn is(&mut self, condition: &str, value: Option<impl ToSql + Sync + Send + 'static>, kind: Type) {
        if let Some(value) = value {
            self.values.push((Box::new(value), kind));
            self.conditions.push(format!("{condition}{}", self.values.len()));
        }
    }

    fn text(&mut self, condition: &str, value: Option<String>) {
        self.is(condition, value, Type::TEXT);
    }

    /// No text has a NUL in it here, so nothing is about one that has.
    fn subject(&mut self, start: Option<&str>) {
        match start {
            Some(start) if start.contains('\0') => self.conditions.push("false".to_owned()),
            start => {
                self.text("subject ^@ $", start.map(str::to_owned));
            }
        }
    }

    /// Numbers are written out: they come from this code alone, and their count varies.
    fn one_of(&mut self, column: &str, numbers: impl Iterator<Item = i32>) {
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        // One number is written as an equation, which is what the planner needs to see to take a partial index.
        self.conditions.push(match numbers.as_slice() {
            [] => "false".to_owned(),
            [number] => format!("{column} = {number}"),
            numbers => format!("{column} IN ({})", numbers.join(", ")),
        });
    }

    /// The newest first, which walks through ids until there are enough.
    pub(crate) fn sql(&self, limit: usize) -> String {
        format!("{} ORDER BY id DESC LIMIT {limit}", self.unordered_sql())
    }

    /// The same where few jobs match: all of them are found before any is put in order.
    pub(crate) fn whole_sql(&self, limit: usize) -> String {
        format!("SELECT * FROM ({} OFFSET 0) AS few ORDER BY id DESC LIMIT {limit}", self.unordered_sql())
    }

    fn unordered_sql(&self) -> String {
        let conditions =
            if self.conditions.is_empty() { "true".to_owned() } else { self.conditions.join(" AND ") };
        format!("{} {conditions}", include_str!("../sql/list.sql"))
    }
}
