//! Forgets the steps of dead jobs.

use redrive_core::steps::Forgotten;
use redrive_core::{JobId, State, StoreError};

use crate::found::found;
use crate::open::Inner;

pub(crate) async fn forget(inner: &Inner, ids: &[JobId]) -> Result<Vec<Forgotten>, StoreError> {
    let found = found(inner, include_str!("../sql/forget.sql"), ids).await?;
    let told = |id: &JobId| match found.get(&id.0).copied() {
        None => Forgotten::NotFound,
        Some(State::Dead) => Forgotten::Done,
        Some(state) => Forgotten::NotDead(state),
    };
    Ok(ids.iter().map(told).collect())
}
