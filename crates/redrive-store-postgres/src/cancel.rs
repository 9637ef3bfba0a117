//! Ends jobs, or requests the end of those that run, with everything below them.

use std::collections::HashMap;

use redrive_core::store::Cancelled;
use redrive_core::{JobId, State, StoreError};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::open::Inner;
use crate::trees::{self, Tree};

/// Also says whether someone took a place that the jobs left in a partition.
pub(crate) async fn cancel(inner: &Inner, ids: &[JobId]) -> Result<(Vec<Cancelled>, bool), StoreError> {
    let mut tree = Tree::new(inner.manual_now());
    let found = tree.cancel(&*inner.pool, ids).await?;
    Ok((answers(ids, found), trees::finish(inner, tree).await))
}

/// Cancels in a transaction that someone else commits, who then settles the tree down.
pub(crate) async fn cancel_in(
    client: &Client,
    now: Option<i64>,
    ids: &[JobId],
) -> Result<(Vec<Cancelled>, Tree), StoreError> {
    let mut tree = Tree::new(now);
    let found = tree.cancel(client, ids).await?;
    tree.end_below(client).await?;
    Ok((answers(ids, found), tree))
}

/// The answers, as if they were cancelled one after the other: a repeat finds a job that has ended.
fn answers(ids: &[JobId], mut found: HashMap<Uuid, State>) -> Vec<Cancelled> {
    let answer = |id: &JobId| match found.get_mut(&id.0) {
        None => Cancelled::NotFound,
        Some(state) if state.is_final() => Cancelled::Ended(*state),
        Some(State::Running) => Cancelled::Requested,
        Some(state) => {
            *state = State::Cancelled;
            Cancelled::Done
        }
    };
    ids.iter().map(answer).collect()
}
