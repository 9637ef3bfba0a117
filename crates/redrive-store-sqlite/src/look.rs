//! Jobs that match, newest id first, out of so many that are looked at, however many there are.

use std::collections::BTreeMap;

use redrive_core::store::{Cursor, Filter, Looked, Page};
use redrive_core::{Job, JobId, State, StoreError};
use rusqlite::{Connection, OptionalExtension as _};

use crate::error::Sorted;
use crate::lanes::{Lanes, SharedLanes};
use crate::list::{self, Query, wanted_lanes};

/// After every id: a longer blob is the greater one.
const NEWEST: [u8; 17] = [0xff; 17];

pub(crate) fn look(
    conn: &Connection,
    lanes: &SharedLanes,
    filter: &Filter,
    after: Option<JobId>,
    limit: usize,
    most: usize,
) -> Result<Looked, StoreError> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let look = Look { conn, lanes, filter, after, limit, most };
    if *filter == Filter::default() {
        return look.plain();
    }
    if filter.key.is_some() {
        return look.by_key();
    }
    match look.few(&lanes.snapshot())? {
        Some(few) => look.all_of(&few),
        None => look.walk(),
    }
}

struct Look<'a> {
    conn: &'a Connection,
    lanes: &'a SharedLanes,
    filter: &'a Filter,
    after: Option<JobId>,
    limit: usize,
    /// A number of the store, which has no other.
    most: i64,
}

/// Few enough jobs to look at all of them, by the index that has them.
struct Few {
    ways: Vec<Way>,
    jobs: i64,
}

/// An index with all jobs in some states.
struct Way {
    states: Vec<State>,
    by: &'static str,
    condition: &'static str,
}

impl Look<'_> {
    /// Without a filter every job that is looked at is on the page.
    fn plain(&self) -> Result<Looked, StoreError> {
        let limit = self.limit.min(whole(self.most));
        let page = list::list(self.conn, self.lanes, self.filter, self.after, limit)?;
        let looked_at = page.items.len();
        Ok(Looked { page, looked_at })
    }

    /// A key has at most one job of each tenant.
    fn by_key(&self) -> Result<Looked, StoreError> {
        if wanted_lanes(&self.lanes.snapshot(), self.filter).next().is_none() {
            // An index cannot be prescribed where nothing can match.
            return Ok(Looked { page: self.cut(Vec::new()), looked_at: 0 });
        }
        let mut query = self.query(self.filter);
        if self.filter.tenant.is_none() {
            query = query.and(&format!("tenant IN (\n{})", include_str!("../sql/look_tenants.sql")));
        }
        let found = list::run(self.conn, self.lanes, query, "INDEXED BY redrive_keys", self.limit + 1)?;
        let page = self.cut(found);
        let looked_at = page.items.len().min(whole(self.most));
        Ok(Looked { page, looked_at })
    }

    /// The states asked for, if they have few jobs in all.
    fn few(&self, lanes: &Lanes) -> Result<Option<Few>, StoreError> {
        let counts = self.counts()?;
        let narrowed = self.filter.queue.is_some() || self.filter.kind.is_some();
        let wanted: Vec<i64> = wanted_lanes(lanes, self.filter).collect();
        let in_lanes =
            |states: &[State]| sum(&counts, |lane, state| wanted.contains(&lane) && states.contains(&state));
        let states = if self.filter.states.is_empty() { &State::ALL[..] } else { &self.filter.states };
        if in_lanes(states) == 0 {
            return Ok(Some(Few { ways: Vec::new(), jobs: 0 }));
        }
        if self.filter.states.is_empty() {
            return Ok(None);
        }
        let ways = ways(states);
        let mut jobs = 0;
        for way in &ways {
            jobs += match way.states[0] {
                // Their index goes by lanes, and has both.
                State::Pending | State::Retrying if narrowed => in_lanes(&[State::Pending, State::Retrying]),
                State::Pending | State::Retrying => sum(&counts, |_, state| state.is_claimable()),
                State::Running | State::Waiting => sum(&counts, |_, state| way.states.contains(&state)),
                State::Succeeded | State::Dead | State::Cancelled => self.finished(&counts, &way.states)?,
            };
        }
        Ok((jobs <= self.most).then_some(Few { ways, jobs }))
    }

    /// How many jobs ended in these states, within the time asked for; beyond `most` it does not matter how many.
    fn finished(&self, counts: &BTreeMap<(i64, State), i64>, states: &[State]) -> Result<i64, StoreError> {
        let all = sum(counts, |_, state| states.contains(&state));
        let Some(from) = self.filter.finished_from.filter(|_| all > self.most) else { return Ok(all) };
        let before = self.filter.finished_before.map_or(i64::MAX, |before| before.as_ms());
        let mut statement = self.conn.prepare_cached(include_str!("../sql/look_finished.sql")).sorted()?;
        let mut jobs = 0;
        for state in states {
            let parameters = (state.code(), from.as_ms(), before, self.most + 1);
            jobs += statement.query_row(parameters, |row| row.get::<_, i64>(0)).sorted()?;
        }
        Ok(jobs)
    }

    fn counts(&self) -> Result<BTreeMap<(i64, State), i64>, StoreError> {
        let mut statement = self.conn.prepare_cached(include_str!("../sql/look_counts.sql")).sorted()?;
        let mut rows = statement.query(()).sorted()?;
        let mut counts = BTreeMap::new();
        while let Some(row) = rows.next().sorted()? {
            let (lane, code, jobs): (i64, u8, i64) =
                row.try_into().map_err(|_| StoreError::Corrupt("the counts cannot be read".to_owned()))?;
            counts.extend(State::from_code(code).map(|state| ((lane, state), jobs)));
        }
        Ok(counts)
    }

    fn all_of(&self, few: &Few) -> Result<Looked, StoreError> {
        let mut found = Vec::new();
        for way in &few.ways {
            let query = self.query(&Filter { states: way.states.clone(), ..self.filter.clone() });
            let query = query.and(way.condition);
            found.extend(list::run(self.conn, self.lanes, query, way.by, self.limit + 1)?);
        }
        found.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
        Ok(Looked { page: self.cut(found), looked_at: whole(few.jobs) })
    }

    /// Goes through the next ids; dead letters have a list of their own.
    fn walk(&self) -> Result<Looked, StoreError> {
        let dead = self.filter.states == [State::Dead];
        let (bound, rest, by) = if dead {
            let rest = include_str!("../sql/look_rest_dead.sql");
            (include_str!("../sql/look_dead.sql"), rest, "INDEXED BY redrive_dead")
        } else {
            let rest = include_str!("../sql/look_rest.sql");
            (include_str!("../sql/look.sql"), rest, "INDEXED BY redrive_ids")
        };
        let newest = self.after.map_or(NEWEST.to_vec(), |id| id.0.as_bytes().to_vec());
        let mut statement = self.conn.prepare_cached(bound).sorted()?;
        let oldest: Option<[u8; 16]> =
            statement.query_row((&newest, self.most), |row| row.get(0)).optional().sorted()?;
        let mut query = self.query(self.filter);
        if let Some(oldest) = &oldest {
            query = query.since_id(oldest);
        }
        let mut page = self.cut(list::run(self.conn, self.lanes, query, by, self.limit + 1)?);
        if page.next.is_none() {
            page.next = oldest.map(|id| Cursor::Job(JobId(uuid::Uuid::from_bytes(id))));
        }
        let looked_at = match oldest {
            Some(_) => self.most,
            None => {
                let mut statement = self.conn.prepare_cached(rest).sorted()?;
                statement.query_row((&newest,), |row| row.get(0)).sorted()?
            }
        };
        Ok(Looked { page, looked_at: whole(looked_at) })
    }

    fn query(&self, filter: &Filter) -> Query {
        Query::new(&self.lanes.snapshot(), filter, self.after)
    }

    fn cut(&self, found: Vec<(JobId, Option<Job>)>) -> Page<Job> {
        Page::cut_rows(found, self.limit)
    }
}

fn sum(counts: &BTreeMap<(i64, State), i64>, wanted: impl Fn(i64, State) -> bool) -> i64 {
    counts.iter().filter(|((lane, state), _)| wanted(*lane, *state)).map(|(_, jobs)| jobs).sum()
}

fn whole(count: i64) -> usize {
    usize::try_from(count).unwrap_or(0)
}

/// The indexes that have all jobs in these states and few others. The condition is what the index is declared with.
fn ways(states: &[State]) -> Vec<Way> {
    let claimable = ("INDEXED BY redrive_due", "state < 2", &[State::Pending, State::Retrying][..]);
    let running = ("INDEXED BY redrive_leases", "state = 2", &[State::Running][..]);
    let waiting = ("INDEXED BY redrive_awaiting", "awaits IS NOT NULL", &[State::Waiting][..]);
    let ended = [State::Succeeded, State::Dead, State::Cancelled];
    let finished = ("INDEXED BY redrive_finished", "finished_at IS NOT NULL", &ended[..]);
    let way = |(by, condition, has): (&'static str, &'static str, &[State])| {
        let states: Vec<State> = has.iter().copied().filter(|state| states.contains(state)).collect();
        (!states.is_empty()).then_some(Way { states, by, condition })
    };
    [claimable, running, waiting, finished].into_iter().filter_map(way).collect()
}
