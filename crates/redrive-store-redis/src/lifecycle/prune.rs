//! Removes what has been kept for long enough.

use redrive_core::StoreError;
use redrive_core::store::Retention;

use crate::open::Inner;
use crate::{answer, script};

pub(crate) async fn prune(inner: &Inner, retention: Retention, limit: usize) -> Result<usize, StoreError> {
    let mut removed = 0;
    for partition in inner.in_turn() {
        if removed == limit {
            break;
        }
        let mut arguments = inner.arguments();
        arguments.count(limit - removed);
        for (state, kept) in retention.by_state() {
            arguments.text(state.code());
            arguments.text(kept.as_millis());
        }
        removed += answer::number::<usize>(inner.run(&script::PRUNE, partition, arguments).await?)?;
    }
    Ok(removed)
}
