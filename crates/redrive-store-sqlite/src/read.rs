//! Reads: single jobs, lists, the attempt log, statistics.

pub(crate) mod search;

use std::time::Duration;

use redrive_core::store::{Cursor, Filter, Page, Stats};
use redrive_core::{
    Attempt, AttemptReport, Epoch, Job, JobId, Queue, State, StoreError, Timestamp, WorkerId,
};
use redrive_sql::Statement;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use crate::error::{Result, corrupt};
use crate::lanes::{Lanes, SharedLanes};
use crate::lifecycle::claim::first_due;
use crate::row::{JobRow, RowReader};
use crate::sql::READ;

static GET: Statement = READ.statement("get");
static GET_STATE: Statement = READ.statement("get_state");
static LIST: Statement = READ.statement("list");
static ATTEMPTS: Statement = READ.statement("attempts");
static COUNTS_BY_QUEUE: Statement = READ.statement("counts_by_queue");

/// Jobs by id.
pub(crate) fn get(conn: &Connection, lanes: &SharedLanes, ids: &[JobId]) -> Result<Vec<Option<Job>>> {
    let mut statement = conn.prepare_cached(&GET)?;
    let mut reader = RowReader::new(lanes);
    let mut get_one = |id: &JobId| {
        let row = statement.query_row([id.0.as_bytes()], |row| reader.read(row)).optional()?;
        row.map(|row| Ok(readable(row)?)).transpose()
    };
    ids.iter().map(&mut get_one).collect()
}

/// The job of a row, or an error that says which job cannot be read and why.
fn readable(row: JobRow) -> Result<Job, StoreError> {
    let corrupt = |id, problem| StoreError::Corrupt(format!("job {id}: {problem}"));
    row.job.map_err(|unreadable| corrupt(unreadable.lease.id, unreadable.problem))
}

/// The lane and state of one job.
pub(crate) fn get_state(conn: &Connection, id: JobId) -> Result<Option<(i64, State)>> {
    let mut statement = conn.prepare_cached(&GET_STATE)?;
    let found = statement.query_row([id.0.as_bytes()], |row| Ok((row.get(0)?, row.get::<_, u8>(1)?)));
    let Some((lane, code)) = found.optional()? else { return Ok(None) };
    let state = State::from_code(code).ok_or_else(|| corrupt(format!("job {id}: {code} is not a state")))?;
    Ok(Some((lane, state)))
}

/// Jobs that match a filter, newest id first.
pub(crate) fn list(
    conn: &Connection,
    lanes: &SharedLanes,
    filter: &Filter,
    after: Option<JobId>,
    limit: usize,
) -> Result<Page<Job>> {
    let query = JobQuery::new(&lanes.snapshot(), filter, after);
    Ok(Page::from_rows(query.run(conn, lanes, LIST.text(), limit + 1)?, limit))
}

/// The conditions that a filter sets, with their values.
#[derive(Default)]
struct JobQuery {
    conditions: Vec<String>,
    values: Vec<Value>,
}

impl JobQuery {
    fn new(lanes: &Lanes, filter: &Filter, after: Option<JobId>) -> Self {
        let mut query = Self::default();
        if !filter.states.is_empty() {
            query.one_of("state", filter.states.iter().map(|state| state.code().into()));
        }
        if filter.queue.is_some() || filter.kind.is_some() {
            query.one_of("lane", selected_lanes(lanes, filter));
        }
        query.compare("tenant =", filter.tenant.as_ref().map(|tenant| tenant.to_string()));
        query.compare("policy =", filter.policy.as_ref().map(|policy| policy.to_string()));
        query.compare("key =", filter.key.as_ref().map(|key| key.to_string()));
        query.compare("created_at >=", filter.created_from.map(|from| from.as_ms()));
        query.compare("created_at <", filter.created_before.map(|before| before.as_ms()));
        query.compare("finished_at >=", filter.finished_from.map(|from| from.as_ms()));
        query.compare("finished_at <", filter.finished_before.map(|before| before.as_ms()));
        // Earlier releases stored the names in upper case.
        query.compare("lower(reason) =", filter.reason.map(|reason| reason.name().to_owned()));
        if let Some(prefix) = &filter.target {
            let length = prefix.chars().count();
            query.compare(&format!("substr(subject, 1, {length}) ="), Some(prefix.clone()));
        }
        // A policy reference is a name, an @ and the digits of the version.
        let policy_name = filter.policy_name.as_ref().map(|name| format!("{name}@"));
        query.compare("rtrim(policy, '0123456789') =", policy_name);
        query.compare("id <", after.map(|id| id.0.as_bytes().to_vec()));
        query
    }

    /// Adds a condition without a value.
    fn and(mut self, condition: &str) -> Self {
        self.conditions.push(condition.to_owned());
        self
    }

    /// Limits the query to this id and newer ones.
    fn starting_at(mut self, id: &[u8]) -> Self {
        self.compare("id >=", Some(id.to_vec()));
        self
    }

    fn compare(&mut self, condition: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.conditions.push(format!("{condition} ?"));
            self.values.push(value.into());
        }
    }

    /// The numbers are part of the SQL text: they never come from a caller, and their count varies.
    fn one_of(&mut self, column: &str, numbers: impl Iterator<Item = i64>) {
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        // The planner uses a partial index only if it sees an equation, so a single number needs one.
        self.conditions.push(match numbers.as_slice() {
            [number] => format!("{column} = {number}"),
            numbers => format!("{column} IN ({})", numbers.join(", ")),
        });
    }

    /// The first `limit` rows of `source`, a statement without its conditions. A row that cannot be read has no job.
    fn run(
        self,
        conn: &Connection,
        lanes: &SharedLanes,
        source: &str,
        limit: usize,
    ) -> Result<Vec<(JobId, Option<Job>)>> {
        let mut statement = conn.prepare_cached(&self.sql(source, limit))?;
        let mut reader = RowReader::new(lanes);
        let mut rows = statement.query(params_from_iter(self.values))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let row = reader.read(row)?;
            let id = row.id();
            // A list leaves out a damaged row. A read of the job by its id reports the problem.
            let job = readable(row)
                .inspect_err(|error| tracing::error!(%error, "left an unreadable job out of a list"));
            found.push((id, job.ok()));
        }
        Ok(found)
    }

    fn sql(&self, source: &str, limit: usize) -> String {
        let conditions =
            if self.conditions.is_empty() { "true".to_owned() } else { self.conditions.join(" AND ") };
        format!("{source} WHERE {conditions} ORDER BY id DESC LIMIT {limit}")
    }
}

/// The lanes that the queue and kind of a filter select.
fn selected_lanes(lanes: &Lanes, filter: &Filter) -> impl Iterator<Item = i64> {
    let selected = lanes.iter().filter(|lane| {
        filter.queue.as_ref().is_none_or(|queue| *queue == lane.queue)
            && filter.kind.as_ref().is_none_or(|kind| *kind == lane.kind)
    });
    selected.map(|lane| lane.number)
}

/// The attempt log of one job, newest attempt first.
pub(crate) fn attempts(
    conn: &Connection,
    id: JobId,
    after: Option<Epoch>,
    limit: usize,
) -> Result<Page<Attempt>> {
    let mut statement = conn.prepare_cached(&ATTEMPTS)?;
    let parameters = (
        id.0.as_bytes(),
        after.and_then(|epoch| i64::try_from(epoch).ok()).unwrap_or(i64::MAX),
        limit as i64 + 1,
    );
    let rows = statement.query_map(parameters, read_attempt)?;
    let attempts = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(Page::from_items(attempts, limit, |attempt| Cursor::Attempt(attempt.epoch)))
}

fn read_attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    let duration = |ms: i64| Duration::from_millis(ms.unsigned_abs());
    let state =
        |code: u8| State::from_code(code).ok_or(rusqlite::Error::IntegralValueOutOfRange(9, code.into()));
    Ok(Attempt {
        epoch: row.get::<_, i64>(0)?.unsigned_abs(),
        entry: AttemptReport {
            run: row.get(1)?,
            attempt: row.get(2)?,
            started_at: Timestamp::from_ms(row.get(3)?),
            duration: duration(row.get(4)?),
            outcome: row.get(5)?,
            error: row.get(6)?,
            detail: row.get(7)?,
        },
        worker: row.get::<_, Option<String>>(8)?.and_then(|worker| WorkerId::new(worker).ok()),
        led_to: state(row.get(9)?)?,
        wait: row.get::<_, Option<i64>>(10)?.map(duration),
        next_run_at: row.get::<_, Option<i64>>(11)?.map(Timestamp::from_ms),
    })
}

/// The number of jobs by queue and state, and the due time of the job that has been due longest.
pub(crate) fn stats(conn: &Connection, lanes: &SharedLanes, now: Timestamp) -> Result<Stats> {
    let mut stats = Stats { now, ..Stats::default() };
    let mut statement = conn.prepare_cached(&COUNTS_BY_QUEUE)?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let (queue, code, jobs): (String, u8, i64) =
            row.try_into().map_err(|_| corrupt("the counts cannot be read"))?;
        if let Some(state) = State::from_code(code) {
            stats.counts.insert((Queue::new(queue)?, state), u64::try_from(jobs).unwrap_or(0));
        }
    }
    for lane in lanes.snapshot().iter() {
        let first = first_due(conn, lane.number)?.filter(|at| *at <= now);
        stats.oldest_due = [stats.oldest_due, first].into_iter().flatten().min();
    }
    Ok(stats)
}
