//! Makes jobs due for which what they wait for has come.

use std::collections::{BTreeSet, HashMap, HashSet};

use redrive_core::{JobId, StoreError};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Sorted;
use crate::found::keys;
use crate::open::Inner;
use crate::pool::Parameter;
use crate::turns::{self, Looked};

const RESUME: &str = concat!(include_str!("../sql/resume_asked.sql"), include_str!("../sql/resume.sql"));

pub(crate) async fn resume(inner: &Inner, ids: &[JobId]) -> Result<Vec<bool>, StoreError> {
    let (now, asked) = (inner.manual_now(), keys(ids));
    let mut looked_at = look(inner, RESUME, &[(&now, Type::INT8), (&asked, Type::UUID_ARRAY)]).await?;
    // Of several that are the same the first is the one that was resumed.
    let places = ids.iter().rev().zip((0..ids.len()).rev()).map(|(id, place)| (id.0, place));
    let places: HashMap<Uuid, usize> = places.collect();
    looked_at.sort_by_key(|(looked, _)| places.get(&looked.id).copied());
    let mut resumed: HashSet<JobId> = take_turns(inner, &looked_at).await?.into_iter().collect();
    Ok(ids.iter().map(|id| resumed.remove(id)).collect())
}

/// Runs a statement that looks at jobs that wait; says at which, in the order of their ids, and whether each was resumed.
pub(crate) async fn look(
    inner: &Inner,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<(Looked, bool)>, StoreError> {
    let rows = inner.pool.query(sql, parameters).await?;
    let each = rows.iter().map(|row| {
        let looked = Looked {
            id: row.try_get("id").sorted()?,
            partition: row.try_get("partition").sorted()?,
            strict: row.try_get("strict").sorted()?,
            turn: row.try_get("turn").sorted()?,
            due: row.try_get("due").sorted()?,
            adds: row.try_get("adds").sorted()?,
        };
        Ok((looked, row.try_get("resumed").sorted()?))
    });
    each.collect()
}

/// Resumes those whose turn it is too, in this order; says who was resumed, one way or the other.
pub(crate) async fn take_turns(
    inner: &Inner,
    looked_at: &[(Looked, bool)],
) -> Result<Vec<JobId>, StoreError> {
    let turns = if looked_at.iter().any(|(looked, _)| looked.turn) {
        turns::take_turns(inner, looked_at.iter().map(|(looked, _)| looked)).await?
    } else {
        BTreeSet::new()
    };
    let resumed = looked_at.iter().filter(|(looked, resumed)| *resumed || turns.contains(&looked.id));
    Ok(resumed.map(|(looked, _)| JobId(looked.id)).collect())
}
