//! Searches for jobs that match a filter, newest id first. A search examines a limited number of jobs, however many
//! there are.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use redrive_core::store::{Cursor, Filter, Page, SearchPage};
use redrive_core::{Job, JobId, State};
use redrive_sql::Statement;
use rusqlite::{Connection, OptionalExtension as _};
use uuid::Uuid;

use super::{JobQuery, LIST, list, selected_lanes};
use crate::error::{Result, corrupt};
use crate::lanes::{Lanes, SharedLanes};
use crate::sql::READ;

static LIST_RUNNING: Statement = READ.statement("list_running");
static COUNTS_BY_LANE: Statement = READ.statement("counts_by_lane");
static COUNT_FINISHED: Statement = READ.statement("count_finished");
static OLDEST_EXAMINED: Statement = READ.statement("oldest_examined");
static OLDEST_EXAMINED_DEAD: Statement = READ.statement("oldest_examined_dead");
static COUNT_BEFORE: Statement = READ.statement("count_before");
static COUNT_DEAD_BEFORE: Statement = READ.statement("count_dead_before");
static TENANTS_WITH_KEYS: Statement = READ.statement("tenants_with_keys");

/// Sorts after every id: all its bytes have the largest value, and it is longer than an id.
const AFTER_NEWEST: [u8; 17] = [0xff; 17];

pub(crate) fn search(
    conn: &Connection,
    lanes: &SharedLanes,
    filter: &Filter,
    after: Option<JobId>,
    limit: usize,
    examined_max: usize,
) -> Result<SearchPage> {
    let examined_max = i64::try_from(examined_max).unwrap_or(i64::MAX);
    let search = Search { conn, lanes, filter, after, limit, examined_max };
    if *filter == Filter::default() {
        return search.unfiltered();
    }
    if filter.key.is_some() {
        return search.by_key();
    }
    match search.plan_indexes(&lanes.snapshot())? {
        Some(plan) => search.by_indexes(&plan),
        None => search.by_id(),
    }
}

struct Search<'a> {
    conn: &'a Connection,
    lanes: &'a SharedLanes,
    filter: &'a Filter,
    after: Option<JobId>,
    limit: usize,
    examined_max: i64,
}

/// A search that examines every job of some indexes, because they have few enough jobs.
struct IndexPlan {
    indexes: Vec<StateIndex>,
    jobs: i64,
}

/// An index that has all jobs in some states.
struct StateIndex {
    states: Vec<State>,
    /// The start of a statement that reads the index.
    source: String,
    /// The condition that the index is declared with.
    condition: &'static str,
}

impl Search<'_> {
    /// Without a filter, every job that is examined is on the page.
    fn unfiltered(&self) -> Result<SearchPage> {
        let limit = self.limit.min(to_usize(self.examined_max));
        let page = list(self.conn, self.lanes, self.filter, self.after, limit)?;
        let examined = page.items.len();
        Ok(SearchPage { page, examined })
    }

    /// A key has at most one job in each tenant.
    fn by_key(&self) -> Result<SearchPage> {
        if selected_lanes(&self.lanes.snapshot(), self.filter).next().is_none() {
            // SQLite rejects an INDEXED BY clause if it can see that nothing matches.
            return Ok(SearchPage { page: self.page(Vec::new()), examined: 0 });
        }
        let mut query = self.query(self.filter);
        if self.filter.tenant.is_none() {
            query = query.and(&format!("tenant IN (\n{})", TENANTS_WITH_KEYS.text()));
        }
        let found = query.run(self.conn, self.lanes, &list_by("redrive_keys"), self.limit + 1)?;
        let page = self.page(found);
        let examined = page.items.len().min(to_usize(self.examined_max));
        Ok(SearchPage { page, examined })
    }

    /// The indexes that have all jobs in the filter's states, if they have at most `examined_max` jobs.
    fn plan_indexes(&self, lanes: &Lanes) -> Result<Option<IndexPlan>> {
        let counts = self.counts_by_lane()?;
        let by_lane = self.filter.queue.is_some() || self.filter.kind.is_some();
        let selected: Vec<i64> = selected_lanes(lanes, self.filter).collect();
        let in_lanes = |states: &[State]| {
            sum(&counts, |lane, state| selected.contains(&lane) && states.contains(&state))
        };
        let states = if self.filter.states.is_empty() { &State::ALL[..] } else { &self.filter.states };
        if in_lanes(states) == 0 {
            return Ok(Some(IndexPlan { indexes: Vec::new(), jobs: 0 }));
        }
        if self.filter.states.is_empty() {
            return Ok(None);
        }
        let indexes = indexes_of(states);
        let mut jobs = 0;
        for index in &indexes {
            jobs += match index.states[0] {
                // The index of claimable jobs is ordered by lane, and has both states.
                State::Pending | State::Retrying if by_lane => in_lanes(&[State::Pending, State::Retrying]),
                State::Pending | State::Retrying => sum(&counts, |_, state| state.is_claimable()),
                State::Running | State::Waiting => sum(&counts, |_, state| index.states.contains(&state)),
                State::Succeeded | State::Dead | State::Cancelled => {
                    self.count_finished(&counts, &index.states)?
                }
            };
        }
        Ok((jobs <= self.examined_max).then_some(IndexPlan { indexes, jobs }))
    }

    /// How many jobs ended in these states, within the time that the filter asks for. Stops counting beyond
    /// `examined_max`.
    fn count_finished(&self, counts: &BTreeMap<(i64, State), i64>, states: &[State]) -> Result<i64> {
        let all = sum(counts, |_, state| states.contains(&state));
        let Some(from) = self.filter.finished_from.filter(|_| all > self.examined_max) else {
            return Ok(all);
        };
        let before = self.filter.finished_before.map_or(i64::MAX, |before| before.as_ms());
        let mut statement = self.conn.prepare_cached(&COUNT_FINISHED)?;
        let mut jobs = 0;
        for state in states {
            let parameters = (state.code(), from.as_ms(), before, self.examined_max + 1);
            jobs += statement.query_row(parameters, |row| row.get::<_, i64>(0))?;
        }
        Ok(jobs)
    }

    fn counts_by_lane(&self) -> Result<BTreeMap<(i64, State), i64>> {
        let mut statement = self.conn.prepare_cached(&COUNTS_BY_LANE)?;
        let mut rows = statement.query(())?;
        let mut counts = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let (lane, code, jobs): (i64, u8, i64) =
                row.try_into().map_err(|_| corrupt("the counts cannot be read"))?;
            counts.extend(State::from_code(code).map(|state| ((lane, state), jobs)));
        }
        Ok(counts)
    }

    fn by_indexes(&self, plan: &IndexPlan) -> Result<SearchPage> {
        let mut found = Vec::new();
        for index in &plan.indexes {
            let query = self.query(&Filter { states: index.states.clone(), ..self.filter.clone() });
            let query = query.and(index.condition);
            found.extend(query.run(self.conn, self.lanes, &index.source, self.limit + 1)?);
        }
        found.sort_unstable_by_key(|(id, _)| Reverse(*id));
        Ok(SearchPage { page: self.page(found), examined: to_usize(plan.jobs) })
    }

    /// Examines the next ids. Dead jobs have an index of their own.
    fn by_id(&self) -> Result<SearchPage> {
        let (oldest_examined, count_before, index) = if self.filter.states == [State::Dead] {
            (&OLDEST_EXAMINED_DEAD, &COUNT_DEAD_BEFORE, "redrive_dead")
        } else {
            (&OLDEST_EXAMINED, &COUNT_BEFORE, "redrive_ids")
        };
        let newest = self.after.map_or(AFTER_NEWEST.to_vec(), |id| id.0.as_bytes().to_vec());
        let mut statement = self.conn.prepare_cached(oldest_examined)?;
        let oldest: Option<[u8; 16]> =
            statement.query_row((&newest, self.examined_max), |row| row.get(0)).optional()?;
        let mut query = self.query(self.filter);
        if let Some(oldest) = &oldest {
            query = query.starting_at(oldest);
        }
        let mut page = self.page(query.run(self.conn, self.lanes, &list_by(index), self.limit + 1)?);
        if page.next.is_none() {
            page.next = oldest.map(|id| Cursor::Job(JobId(Uuid::from_bytes(id))));
        }
        let examined = match oldest {
            Some(_) => self.examined_max,
            None => self.conn.prepare_cached(count_before)?.query_row((&newest,), |row| row.get(0))?,
        };
        Ok(SearchPage { page, examined: to_usize(examined) })
    }

    fn query(&self, filter: &Filter) -> JobQuery {
        JobQuery::new(&self.lanes.snapshot(), filter, self.after)
    }

    fn page(&self, found: Vec<(JobId, Option<Job>)>) -> Page<Job> {
        Page::from_rows(found, self.limit)
    }
}

fn sum(counts: &BTreeMap<(i64, State), i64>, selects: impl Fn(i64, State) -> bool) -> i64 {
    counts.iter().filter(|((lane, state), _)| selects(*lane, *state)).map(|(_, jobs)| jobs).sum()
}

fn to_usize(count: i64) -> usize {
    usize::try_from(count).unwrap_or(0)
}

/// The start of a list that reads the jobs of this index.
fn list_by(index: &str) -> String {
    format!("{} INDEXED BY {index}", LIST.text())
}

/// The indexes that have all jobs in these states, and few others.
fn indexes_of(states: &[State]) -> Vec<StateIndex> {
    let claimable = (list_by("redrive_due"), "state < 2", &[State::Pending, State::Retrying][..]);
    let running = (LIST_RUNNING.text().to_owned(), "state = 2", &[State::Running][..]);
    let waiting = (list_by("redrive_awaiting"), "awaits IS NOT NULL", &[State::Waiting][..]);
    let ended = [State::Succeeded, State::Dead, State::Cancelled];
    let finished = (list_by("redrive_finished"), "finished_at IS NOT NULL", &ended[..]);
    let index = |(source, condition, has): (String, &'static str, &[State])| {
        let states: Vec<State> = has.iter().copied().filter(|state| states.contains(state)).collect();
        (!states.is_empty()).then_some(StateIndex { states, source, condition })
    };
    [claimable, running, waiting, finished].into_iter().filter_map(index).collect()
}
