//! Lists the jobs that match a filter, newest id first.

use redrive_core::store::{Filter, Page};
use redrive_core::{Job, JobId, State};
use redrive_sql::Statement;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::error::Result;
use crate::lanes::Lanes;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::row;
use crate::sql;

static LIST: Statement = sql::READ.statement("list");
static LIST_DEAD: Statement = sql::READ.statement("list_dead");

pub(crate) async fn list(
    inner: &Inner,
    filter: &Filter,
    after: Option<JobId>,
    limit: usize,
) -> Result<Page<Job>> {
    if filter.queue.is_some() || filter.kind.is_some() {
        // Another node may have added a lane.
        inner.lanes.reload(&inner.pool).await?;
    }
    let query = FilterQuery::new(&inner.lanes.snapshot(), filter, after);
    Ok(Page::from_rows(run(inner, &query.sql(limit + 1), &query).await?, limit))
}

/// Runs one of the statements of a query. An unreadable row has an id and no job.
pub(crate) async fn run(inner: &Inner, sql: &str, query: &FilterQuery) -> Result<Vec<(JobId, Option<Job>)>> {
    let parameters: Vec<Parameter<'_>> =
        query.values.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect();
    let rows = inner.pool.query(sql, &parameters).await?;
    let lanes = inner.lanes_of(&rows).await?;
    let jobs = row::read_all(&rows, lanes)?.into_iter().map(|row| {
        let id = row.id;
        // A list leaves out an unreadable row. Reading the job itself reports the problem.
        let job = row.readable().inspect_err(|error| {
            tracing::error!(error = error.explain(), "left an unreadable job out of a list");
        });
        (id, job.ok())
    });
    Ok(jobs.collect())
}

/// The lanes that match the queue and kind of a filter.
pub(crate) fn matching_lanes(lanes: &Lanes, filter: &Filter) -> impl Iterator<Item = i32> {
    let matching = lanes.iter().filter(|lane| {
        filter.queue.as_ref().is_none_or(|queue| *queue == lane.queue)
            && filter.kind.as_ref().is_none_or(|kind| *kind == lane.kind)
    });
    matching.map(|lane| lane.number)
}

/// The conditions that a filter sets, with their values.
#[derive(Default)]
pub(crate) struct FilterQuery {
    conditions: Vec<String>,
    values: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
    /// Whether it finds dead letters only. They have an index of their own.
    is_dead: bool,
}

impl FilterQuery {
    pub(crate) fn new(lanes: &Lanes, filter: &Filter, after: Option<JobId>) -> Self {
        let mut query = Self { is_dead: filter.states == [State::Dead], ..Self::default() };
        if !filter.states.is_empty() {
            query.one_of("state", filter.states.iter().map(|state| state.code().into()));
        }
        if filter.queue.is_some() || filter.kind.is_some() {
            query.one_of("lane", matching_lanes(lanes, filter));
        }
        query.text("tenant = $", filter.tenant.as_ref().map(|tenant| tenant.to_string()));
        query.text("policy = $", filter.policy.as_ref().map(|policy| policy.to_string()));
        query.text("key = $", filter.key.as_ref().map(|key| key.to_string()));
        // Earlier releases stored the names in upper case.
        query.text("lower(reason) = $", filter.reason.map(|reason| reason.name().to_owned()));
        // The column has the name, an @ and the digits of the version.
        let name = filter.policy_name.as_ref().map(|name| format!("{name}@"));
        query.text("rtrim(policy, '0123456789') = $", name);
        query.target_starts_with(filter.target.as_deref());
        for (condition, at) in [
            ("created_at >= $", filter.created_from),
            ("created_at < $", filter.created_before),
            ("finished_at >= $", filter.finished_from),
            ("finished_at < $", filter.finished_before),
        ] {
            query.compare(condition, at.map(|at| at.as_ms()), Type::INT8);
        }
        query.compare(&format!("{} < $", query.id_column()), after.map(|id| id.0), Type::UUID);
        query
    }

    /// Restricts the query to jobs in these states, found by the tables that hold them, for states that few jobs are in.
    pub(crate) fn in_few(self, states: &[State], lanes: Option<&[i32]>) -> Self {
        let mut sources = Vec::new();
        for state in states {
            let code = state.code();
            sources.push(match state {
                State::Pending | State::Retrying => {
                    let numbers: Option<Vec<String>> =
                        lanes.map(|lanes| lanes.iter().map(ToString::to_string).collect());
                    let in_lanes = numbers.map(|numbers| format!(" AND lane IN ({})", numbers.join(", ")));
                    let in_lanes = in_lanes.unwrap_or_default();
                    format!("SELECT id FROM redrive.ready WHERE state = {code}{in_lanes}")
                }
                State::Running => "SELECT unnest(ids) FROM redrive.claims".to_owned(),
                State::Waiting => "SELECT id FROM redrive.waiting".to_owned(),
                State::Succeeded | State::Dead | State::Cancelled => {
                    format!("SELECT id FROM redrive.ended WHERE state = {code}")
                }
            });
        }
        self.and(format!("jobs.id = ANY (ARRAY({}))", sources.join(" UNION ")))
    }

    /// Adds a condition without a value.
    pub(crate) fn and(mut self, condition: String) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Restricts the query to this id and newer ones.
    pub(crate) fn starting_at(mut self, id: Option<Uuid>) -> Self {
        self.compare(&format!("{} >= $", self.id_column()), id, Type::UUID);
        self
    }

    /// The column of ids in whose order the server scans.
    fn id_column(&self) -> &'static str {
        if self.is_dead { "dead.dead_id" } else { "jobs.id" }
    }

    /// Adds a condition that ends with the number of its value.
    fn compare(&mut self, condition: &str, value: Option<impl ToSql + Sync + Send + 'static>, kind: Type) {
        if let Some(value) = value {
            self.values.push((Box::new(value), kind));
            self.conditions.push(format!("{condition}{}", self.values.len()));
        }
    }

    fn text(&mut self, condition: &str, value: Option<String>) {
        self.compare(condition, value, Type::TEXT);
    }

    /// No text in the database contains NUL, so no target matches a start with one.
    fn target_starts_with(&mut self, start: Option<&str>) {
        match start {
            Some(start) if start.contains('\0') => self.conditions.push("false".to_owned()),
            start => {
                self.text("target ^@ $", start.map(str::to_owned));
            }
        }
    }

    /// Writes the numbers into the statement: they never come from outside, and their count varies.
    fn one_of(&mut self, column: &str, numbers: impl Iterator<Item = i32>) {
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        self.conditions.push(match numbers.as_slice() {
            [] => "false".to_owned(),
            [number] => format!("{column} = {number}"),
            numbers => format!("{column} IN ({})", numbers.join(", ")),
        });
    }

    /// Newest first. The server scans ids until it has found enough jobs.
    pub(crate) fn sql(&self, limit: usize) -> String {
        format!("{} ORDER BY {} DESC LIMIT {limit}", self.unordered_sql(), self.id_column())
    }

    /// The same for few matching jobs: the server finds all of them by other indexes, and then sorts them.
    pub(crate) fn sort_sql(&self, limit: usize) -> String {
        format!("SELECT * FROM ({} OFFSET 0) AS few ORDER BY id DESC LIMIT {limit}", self.unordered_sql())
    }

    fn unordered_sql(&self) -> String {
        let conditions =
            if self.conditions.is_empty() { "true".to_owned() } else { self.conditions.join(" AND ") };
        format!("{} {conditions}", if self.is_dead { LIST_DEAD.text() } else { LIST.text() })
    }
}
