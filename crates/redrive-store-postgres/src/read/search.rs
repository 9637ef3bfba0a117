//! Searches jobs, newest id first. The cost is bounded by the number of jobs that are examined, however many there are.

use std::collections::BTreeMap;

use redrive_core::store::{Cursor, Filter, Page, SearchPage};
use redrive_core::{Job, JobId, State};
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::open::Inner;
use crate::read::list::{self, FilterQuery, matching_lanes};
use crate::row;
use crate::sql;

static LIST_TENANTS: Statement = sql::READ.statement("list_tenants");
static COUNT_JOBS: Statement = sql::READ.statement("count_jobs");
static SEARCH_RANGE_DEAD: Statement = sql::READ.statement("search_range_dead");
static SEARCH_RANGE: Statement = sql::READ.statement("search_range");

pub(crate) async fn search(
    inner: &Inner,
    filter: &Filter,
    after: Option<JobId>,
    limit: usize,
    examined_max: usize,
) -> Result<SearchPage> {
    if filter.queue.is_some() || filter.kind.is_some() {
        // Another node may have added a lane.
        inner.lanes.reload(&inner.pool).await?;
    }
    let search = Search { inner, filter, after, limit, examined_max };
    if *filter == Filter::default() {
        return search.without_filter().await;
    }
    if filter.key.is_some() {
        return search.by_key().await;
    }
    match search.count_if_few().await? {
        Some(jobs) => search.sort_all(jobs).await,
        None => search.scan().await,
    }
}

struct Search<'a> {
    inner: &'a Inner,
    filter: &'a Filter,
    after: Option<JobId>,
    limit: usize,
    examined_max: usize,
}

impl Search<'_> {
    /// Without a filter, every examined job is on the page.
    async fn without_filter(&self) -> Result<SearchPage> {
        let page = list::list(self.inner, self.filter, self.after, self.limit.min(self.examined_max)).await?;
        let examined = page.items.len();
        Ok(SearchPage { page, examined })
    }

    /// A key has at most one job per tenant.
    async fn by_key(&self) -> Result<SearchPage> {
        let mut query = self.query();
        if self.filter.tenant.is_none() {
            query = query.and(format!("tenant IN (\n{})", LIST_TENANTS.text()));
        }
        let page = self.cut(list::run(self.inner, &query.sort_sql(self.limit + 1), &query).await?);
        let examined = page.items.len().min(self.examined_max);
        Ok(SearchPage { page, examined })
    }

    /// Counts the jobs in the states of the filter. None if they are more than may be examined. Each state has an index, except those
    /// that most jobs are in.
    async fn count_if_few(&self) -> Result<Option<usize>> {
        let lanes = self.inner.lanes.snapshot();
        let matching: Vec<i32> = matching_lanes(&lanes, self.filter).collect();
        // Without a queue or kind every lane matches, including those that another node adds meanwhile.
        let narrowed = self.filter.queue.is_some() || self.filter.kind.is_some();
        let matches = |lane: i32| !narrowed || matching.contains(&lane);
        let counts = self.count_jobs().await?;
        let states = if self.filter.states.is_empty() { &State::ALL[..] } else { &self.filter.states };
        let sum = |of: &dyn Fn(i32) -> bool, states: &[State]| -> usize {
            let those = counts.iter().filter(|((lane, state), _)| of(*lane) && states.contains(state));
            those.map(|(_, jobs)| *jobs).sum()
        };
        if sum(&matches, states) == 0 {
            return Ok(Some(0));
        }
        if self.filter.states.is_empty() {
            return Ok(None);
        }
        // Only the index of claimable jobs is by lane.
        let (claimable, others): (Vec<State>, Vec<State>) =
            states.iter().partition(|state| state.is_claimable());
        let jobs = sum(&matches, &claimable) + sum(&|_| true, &others);
        Ok((jobs <= self.examined_max).then_some(jobs))
    }

    async fn count_jobs(&self) -> Result<BTreeMap<(i32, State), usize>> {
        let rows = self.inner.pool.query(&COUNT_JOBS, &[]).await?;
        let mut counts = BTreeMap::new();
        for row in &rows {
            let (lane, code): (i32, i16) = (row.try_get("lane")?, row.try_get("state")?);
            let jobs: i64 = row.try_get("jobs")?;
            let jobs = usize::try_from(jobs).unwrap_or(0);
            counts.extend(row::state(code).map(|state| ((lane, state), jobs)));
        }
        Ok(counts)
    }

    /// Reads all jobs in the states of the filter, and sorts the jobs that match the filter.
    async fn sort_all(&self, jobs: usize) -> Result<SearchPage> {
        if jobs == 0 {
            return Ok(SearchPage { page: Page { items: Vec::new(), next: None }, examined: 0 });
        }
        let lanes: Vec<i32> = matching_lanes(&self.inner.lanes.snapshot(), self.filter).collect();
        let narrowed = self.filter.queue.is_some() || self.filter.kind.is_some();
        let query = self.query().in_few(&self.filter.states, narrowed.then_some(&lanes));
        let page = self.cut(list::run(self.inner, &query.sort_sql(self.limit + 1), &query).await?);
        Ok(SearchPage { page, examined: jobs })
    }

    /// Scans the next ids. Dead letters have an index of their own.
    async fn scan(&self) -> Result<SearchPage> {
        let range = if self.filter.states == [State::Dead] { &SEARCH_RANGE_DEAD } else { &SEARCH_RANGE };
        let newest = self.after.map_or(Uuid::max(), |id| id.0);
        let most = i64::try_from(self.examined_max).unwrap_or(i64::MAX);
        let rows = self.inner.pool.query(range, &[(&newest, Type::UUID), (&most, Type::INT8)]).await?;
        let first = rows.first().ok_or_else(Error::no_row)?;
        let (oldest, jobs): (Option<Uuid>, i64) = (first.try_get("oldest")?, first.try_get("jobs")?);
        let oldest = oldest.filter(|_| jobs == most);
        let query = self.query().starting_at(oldest);
        let mut page = self.cut(list::run(self.inner, &query.sql(self.limit + 1), &query).await?);
        if page.next.is_none() {
            page.next = oldest.map(|id| Cursor::Job(JobId(id)));
        }
        Ok(SearchPage { page, examined: usize::try_from(jobs).unwrap_or(0) })
    }

    fn query(&self) -> FilterQuery {
        FilterQuery::new(&self.inner.lanes.snapshot(), self.filter, self.after)
    }

    fn cut(&self, jobs: Vec<(JobId, Option<Job>)>) -> Page<Job> {
        Page::from_rows(jobs, self.limit)
    }
}
