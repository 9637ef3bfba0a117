//! Jobs that match, newest id first, out of so many that are looked at, however many there are.

use std::collections::BTreeMap;

use redrive_core::store::{Cursor, Filter, Looked, Page};
use redrive_core::{Job, JobId, State, StoreError};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{Sorted, nothing};
use crate::list::{self, Query, wanted_lanes};
use crate::open::Inner;
use crate::row;

pub(crate) async fn look(
    inner: &Inner,
    filter: &Filter,
    after: Option<JobId>,
    limit: usize,
    most: usize,
) -> Result<Looked, StoreError> {
    if filter.queue.is_some() || filter.kind.is_some() {
        // A lane that another node has added since is not left out.
        inner.lanes.reload(&inner.pool).await?;
    }
    let look = Look { inner, filter, after, limit, most };
    if *filter == Filter::default() {
        return look.plain().await;
    }
    if filter.key.is_some() {
        return look.by_key().await;
    }
    match look.few().await? {
        Some(jobs) => look.all_of(jobs).await,
        None => look.walk().await,
    }
}

struct Look<'a> {
    inner: &'a Inner,
    filter: &'a Filter,
    after: Option<JobId>,
    limit: usize,
    most: usize,
}

impl Look<'_> {
    /// Without a filter every job that is looked at is on the page.
    async fn plain(&self) -> Result<Looked, StoreError> {
        let page = list::list(self.inner, self.filter, self.after, self.limit.min(self.most)).await?;
        let looked_at = page.items.len();
        Ok(Looked { page, looked_at })
    }

    /// A key has at most one job of each tenant.
    async fn by_key(&self) -> Result<Looked, StoreError> {
        let mut query = self.query();
        if self.filter.tenant.is_none() {
            query = query.and(format!("tenant IN (\n{})", include_str!("../sql/look_tenants.sql")));
        }
        let page = self.cut(list::run(self.inner, &query.whole_sql(self.limit + 1), &query).await?);
        let looked_at = page.items.len().min(self.most);
        Ok(Looked { page, looked_at })
    }

    /// How many jobs are in the states asked for, if they are few: each state has an index, or is what most jobs are in.
    async fn few(&self) -> Result<Option<usize>, StoreError> {
        let lanes = self.inner.lanes.snapshot();
        let wanted: Vec<i32> = wanted_lanes(&lanes, self.filter).collect();
        // Without a queue or a kind every lane is wanted, those too that another node has added since.
        let narrowed = self.filter.queue.is_some() || self.filter.kind.is_some();
        let is_wanted = |lane: i32| !narrowed || wanted.contains(&lane);
        let counts = self.counts().await?;
        let states = if self.filter.states.is_empty() { &State::ALL[..] } else { &self.filter.states };
        let sum = |of: &dyn Fn(i32) -> bool, states: &[State]| -> usize {
            let those = counts.iter().filter(|((lane, state), _)| of(*lane) && states.contains(state));
            those.map(|(_, jobs)| *jobs).sum()
        };
        if sum(&is_wanted, states) == 0 {
            return Ok(Some(0));
        }
        if self.filter.states.is_empty() {
            return Ok(None);
        }
        // What can be claimed is found by lanes, what has ended or runs is not.
        let (claimable, others): (Vec<State>, Vec<State>) =
            states.iter().partition(|state| state.is_claimable());
        let jobs = sum(&is_wanted, &claimable) + sum(&|_| true, &others);
        Ok((jobs <= self.most).then_some(jobs))
    }

    async fn counts(&self) -> Result<BTreeMap<(i32, State), usize>, StoreError> {
        let rows = self.inner.pool.query(include_str!("../sql/look_counts.sql"), &[]).await?;
        let mut counts = BTreeMap::new();
        for each in &rows {
            let (lane, code): (i32, i16) = (each.try_get("lane").sorted()?, each.try_get("state").sorted()?);
            let jobs: i64 = each.try_get("jobs").sorted()?;
            let jobs = usize::try_from(jobs).unwrap_or(0);
            counts.extend(row::state(code).map(|state| ((lane, state), jobs)));
        }
        Ok(counts)
    }

    async fn all_of(&self, jobs: usize) -> Result<Looked, StoreError> {
        if jobs == 0 {
            return Ok(Looked { page: Page { items: Vec::new(), next: None }, looked_at: 0 });
        }
        let query = self.query();
        let page = self.cut(list::run(self.inner, &query.whole_sql(self.limit + 1), &query).await?);
        Ok(Looked { page, looked_at: jobs })
    }

    /// Goes through the next ids; dead letters have a list of their own.
    async fn walk(&self) -> Result<Looked, StoreError> {
        let bound = if self.filter.states == [State::Dead] {
            include_str!("../sql/look_dead.sql")
        } else {
            include_str!("../sql/look.sql")
        };
        let newest = self.after.map_or(Uuid::max(), |id| id.0);
        let most = i64::try_from(self.most).unwrap_or(i64::MAX);
        let rows = self.inner.pool.query(bound, &[(&newest, Type::UUID), (&most, Type::INT8)]).await?;
        let first = rows.first().ok_or_else(nothing)?;
        let (oldest, jobs): (Option<Uuid>, i64) =
            (first.try_get("oldest").sorted()?, first.try_get("jobs").sorted()?);
        let oldest = oldest.filter(|_| jobs == most);
        let query = self.query().since_id(oldest);
        let mut page = self.cut(list::run(self.inner, &query.sql(self.limit + 1), &query).await?);
        if page.next.is_none() {
            page.next = oldest.map(|id| Cursor::Job(JobId(id)));
        }
        Ok(Looked { page, looked_at: usize::try_from(jobs).unwrap_or(0) })
    }

    fn query(&self) -> Query {
        Query::new(&self.inner.lanes.snapshot(), self.filter, self.after)
    }

    fn cut(&self, found: Vec<(JobId, Option<Job>)>) -> Page<Job> {
        Page::cut_rows(found, self.limit)
    }
}
