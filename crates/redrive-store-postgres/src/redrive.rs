//! Gives dead jobs a fresh run.

use redrive_core::store::Redriven;
use redrive_core::{JobId, State, StoreError};

use crate::found::found_now;
use crate::open::Inner;

pub(crate) async fn redrive(inner: &Inner, ids: &[JobId]) -> Result<Vec<Redriven>, StoreError> {
    let mut found = found_now(inner, include_str!("../sql/redrive.sql"), ids).await?;
    let told = |id: &JobId| match found.get(&id.0).copied() {
        None => Redriven::NotFound,
        Some(State::Dead) => {
            found.insert(id.0, State::Pending);
            Redriven::Done
        }
        Some(state) => Redriven::NotDead(state),
    };
    Ok(ids.iter().map(told).collect())
}
