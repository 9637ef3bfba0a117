//! Makes jobs due for which what they wait for has come.

use std::collections::{BTreeSet, HashMap, HashSet};

use redrive_core::{JobId, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Sorted;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::trees::{self, Branch};
use crate::turns::{self, Looked};

const RESUME: &str = concat!(include_str!("../sql/resume_asked.sql"), include_str!("../sql/resume.sql"));

/// How often the children of a failed fan-out are ended for one resume. If others appear each time, a sweep resumes the job.
const TRIES: u32 = 3;

pub(crate) async fn resume(inner: &Inner, ids: &[JobId]) -> Result<Vec<bool>, StoreError> {
    let mut seen = HashSet::with_capacity(ids.len());
    let order: Vec<Uuid> = ids.iter().map(|id| id.0).filter(|id| seen.insert(*id)).collect();
    // Of several that are the same the first is the one that was resumed.
    let mut resumed: HashSet<JobId> = resume_in_order(inner, &order).await?.into_iter().collect();
    Ok(ids.iter().map(|id| resumed.remove(id)).collect())
}

/// Resumes jobs as if one after the other, and says which. A fan-out that has failed ends its children first, among which may be
/// others of these jobs: those before it are resumed before that, and those after it afterwards.
pub(crate) async fn resume_in_order(inner: &Inner, order: &[Uuid]) -> Result<Vec<JobId>, StoreError> {
    let mut resumed = Vec::new();
    let mut rest = order;
    while !rest.is_empty() {
        let (count, waits) = next_group(inner, rest).await?;
        resumed.extend(take_turns(inner, &waits).await?);
        rest = &rest[count..];
    }
    Ok(resumed)
}

/// Looks at as many of the jobs, from the first one on, as can be looked at together.
async fn next_group(inner: &Inner, rest: &[Uuid]) -> Result<(usize, Vec<Wait>), StoreError> {
    let mut count = rest.len();
    let mut tries = TRIES;
    loop {
        let (now, ids) = (inner.manual_now(), &rest[..count]);
        let mut waits = look(inner, RESUME, &[(&now, Type::INT8), (&ids, Type::UUID_ARRAY)]).await?.waits;
        let places: HashMap<Uuid, usize> = ids.iter().zip(0..).map(|(id, place)| (*id, place)).collect();
        waits.sort_by_key(|wait| places.get(&wait.job.id).copied());
        let failed = waits.iter().find(|wait| !wait.ending.is_empty());
        let first = failed.and_then(|wait| places.get(&wait.job.id).copied());
        match first {
            None => return Ok((count, waits)),
            Some(_) if tries == 0 => return Ok((count, waits)),
            Some(first) if count > 1 && waits.iter().any(|wait| wait.is_child) => count = first.max(1),
            Some(_) => {
                tries -= 1;
                let branches: Vec<Branch> = waits.iter().flat_map(Wait::ending_branches).collect();
                let passed_on = trees::end_branches(inner, &branches).await?;
                inner.wake_if(passed_on);
            }
        }
    }
}

/// A job that waits, as a statement has found it.
pub(crate) struct Wait {
    pub(crate) job: Looked,
    /// Whether the statement has resumed it.
    resumed: bool,
    /// Whether it has a parent.
    is_child: bool,
    /// Its fan-outs that must end their children before it goes on.
    ending: Vec<i32>,
}

impl Wait {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let job = Looked {
            id: row.try_get("id").sorted()?,
            partition: row.try_get("partition").sorted()?,
            strict: row.try_get("strict").sorted()?,
            turn: row.try_get("turn").sorted()?,
            due: row.try_get("due").sorted()?,
            adds: row.try_get("adds").sorted()?,
        };
        let ending: Option<Vec<i32>> = row.try_get("ending").sorted()?;
        Ok(Self {
            job,
            resumed: row.try_get("resumed").sorted()?,
            is_child: row.try_get("is_child").sorted()?,
            ending: ending.unwrap_or_default(),
        })
    }

    /// Whether a fan-out of it must end its children first.
    pub(crate) fn is_held_back(&self) -> bool {
        !self.ending.is_empty()
    }

    fn ending_branches(&self) -> impl Iterator<Item = Branch> {
        self.ending.iter().map(|branch| (self.job.id, *branch))
    }
}

/// What a statement that looks at jobs that wait has found.
pub(crate) struct FoundWaits {
    /// The jobs, in the order of their ids.
    pub(crate) waits: Vec<Wait>,
    /// A tree that still has marks, if the statement looks for one.
    pub(crate) marked: Option<i64>,
}

/// Runs a statement that looks at jobs that wait.
pub(crate) async fn look(
    inner: &Inner,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<FoundWaits, StoreError> {
    let rows = inner.pool.query(sql, parameters).await?;
    let mut early: HashMap<i32, i64> = HashMap::new();
    for row in &rows {
        if let Some(at) = row.try_get::<_, Option<i64>>("early").sorted()? {
            let first = early.entry(row.try_get("lane").sorted()?).or_insert(at);
            *first = at.min(*first);
        }
    }
    if !early.is_empty() {
        inner.expect_early(&early);
    }
    let mut look = FoundWaits { waits: Vec::with_capacity(rows.len()), marked: None };
    for row in &rows {
        look.marked = row.try_get("tree").sorted()?;
        if row.try_get::<_, Option<Uuid>>("id").sorted()?.is_some() {
            look.waits.push(Wait::read(row)?);
        }
    }
    Ok(look)
}

/// Resumes those whose turn it is too, in this order; says who was resumed, one way or the other.
pub(crate) async fn take_turns(inner: &Inner, waits: &[Wait]) -> Result<Vec<JobId>, StoreError> {
    let turns = if waits.iter().any(|wait| wait.job.turn) {
        turns::take_turns(inner, waits.iter().map(|wait| &wait.job)).await?
    } else {
        BTreeSet::new()
    };
    let resumed = waits.iter().filter(|wait| wait.resumed || turns.contains(&wait.job.id));
    Ok(resumed.map(|wait| JobId(wait.job.id)).collect())
}
