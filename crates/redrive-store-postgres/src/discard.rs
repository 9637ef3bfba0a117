//! Removes dead jobs.

use redrive_core::store::Discarded;
use redrive_core::{JobId, State, StoreError};

use crate::found::found_now;
use crate::open::Inner;

pub(crate) async fn discard(inner: &Inner, ids: &[JobId]) -> Result<Vec<Discarded>, StoreError> {
    let mut found = found_now(inner, include_str!("../sql/discard.sql"), ids).await?;
    let told = |id: &JobId| match found.get(&id.0).copied() {
        None => Discarded::NotFound,
        Some(State::Dead) => {
            found.remove(&id.0);
            Discarded::Done
        }
        Some(state) => Discarded::NotDead(state),
    };
    Ok(ids.iter().map(told).collect())
}
