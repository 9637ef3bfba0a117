//! Makes jobs due that wait for their time.

use redrive_core::store::RunNow;
use redrive_core::{JobId, StoreError};

use crate::found::found_now;
use crate::open::Inner;

pub(crate) async fn run_now(inner: &Inner, ids: &[JobId]) -> Result<Vec<RunNow>, StoreError> {
    let found = found_now(inner, include_str!("../sql/run_now.sql"), ids).await?;
    let told = |id: &JobId| match found.get(&id.0).copied() {
        None => RunNow::NotFound,
        Some(state) if state.is_claimable() => RunNow::Done,
        Some(state) => RunNow::NotWaiting(state),
    };
    Ok(ids.iter().map(told).collect())
}
