//! Removes ended jobs whose retention has passed.

use redrive_core::StoreError;
use redrive_core::store::Retention;

use crate::inner::Inner;
use crate::script::{self, reply};

pub(crate) async fn prune(inner: &Inner, retention: Retention, limit: usize) -> Result<usize, StoreError> {
    let mut removed = 0;
    for shard in inner.rotated_shards() {
        if removed == limit {
            break;
        }
        let mut arguments = inner.arguments();
        arguments.count(limit - removed);
        for (state, kept) in retention.by_state() {
            arguments.text(state.code());
            arguments.text(kept.as_millis());
        }
        removed += reply::number::<usize>(inner.run(&script::PRUNE, shard, arguments).await?)?;
    }
    Ok(removed)
}
