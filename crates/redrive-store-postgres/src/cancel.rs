//! Ends jobs, or asks for the end of those that are running.

use redrive_core::store::Cancelled;
use redrive_core::{JobId, State, StoreError};

use crate::found::found_now;
use crate::open::Inner;

pub(crate) async fn cancel(inner: &Inner, ids: &[JobId]) -> Result<Vec<Cancelled>, StoreError> {
    let mut found = found_now(inner, include_str!("../sql/cancel.sql"), ids).await?;
    let told = |id: &JobId| match found.get(&id.0).copied() {
        None => Cancelled::NotFound,
        Some(State::Running) => Cancelled::Requested,
        Some(state) if state.is_final() => Cancelled::Ended(state),
        Some(_) => {
            found.insert(id.0, State::Cancelled);
            Cancelled::Done
        }
    };
    Ok(ids.iter().map(told).collect())
}
