//! Holds jobs, and lets them go on.

use std::collections::HashMap;

use redrive_core::steps::Hold;
use redrive_core::{JobId, State, StoreError};
use uuid::Uuid;

use crate::found::found;
use crate::open::Inner;
use crate::resume::resume;

pub(crate) async fn hold(inner: &Inner, ids: &[JobId]) -> Result<Vec<Hold>, StoreError> {
    Ok(told(ids, &found(inner, include_str!("../sql/hold.sql"), ids).await?))
}

/// What was resumed comes with it. A resume that is lost between the two is made up for by a sweep.
pub(crate) async fn unhold(inner: &Inner, ids: &[JobId]) -> Result<(Vec<Hold>, bool), StoreError> {
    let mut found = found(inner, include_str!("../sql/unhold.sql"), ids).await?;
    let resumed = resume(inner, ids).await?;
    for (id, _) in ids.iter().zip(&resumed).filter(|(_, resumed)| **resumed) {
        if let Some(state) = found.get_mut(&id.0)
            && *state == State::Waiting
        {
            *state = State::Pending;
        }
    }
    Ok((told(ids, &found), resumed.contains(&true)))
}

fn told(ids: &[JobId], found: &HashMap<Uuid, State>) -> Vec<Hold> {
    let each = |id: &JobId| match found.get(&id.0).copied() {
        None => Hold::NotFound,
        Some(state) if state.is_final() => Hold::Ended(state),
        Some(state) => Hold::Done(state),
    };
    ids.iter().map(each).collect()
}
