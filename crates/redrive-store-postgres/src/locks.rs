//! Locks on queues and partitions: who counts what runs there and acts by it keeps others from doing so meanwhile.
//!
//! They last as long as their transaction, so that a pooler is no obstacle. There is a bounded number of them for all queues and
//! partitions together, since the server keeps all locks in a table of a fixed size: two that share one wait for each other,
//! nothing worse.

use redrive_core::rooms::Quotas;
use redrive_core::{Quota, StoreError};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::enqueue::Query;
use crate::error::Sorted;
use crate::pool::Parameter;

/// Any number will do, if nobody else takes it.
const CLASS: i32 = 0x7265_6472;
const STRIPES: u32 = 512;

/// Waits until nobody else counts in these scopes; brings back the quotas of these queues. What is counted has to be counted by a
/// statement after this one.
pub(crate) async fn lock<'a>(
    client: &Client,
    scopes: impl IntoIterator<Item = &'a str>,
    queues: &[&str],
) -> Result<Quotas, StoreError> {
    let mut stripes: Vec<i32> = scopes.into_iter().map(stripe).collect();
    // In the same order for everyone, so that no two wait for each other.
    stripes.sort_unstable();
    stripes.dedup();
    let sql = include_str!("../sql/turns_lock.sql");
    let rows = client
        .typed(sql, &[(&CLASS, Type::INT4), (&stripes, Type::INT4_ARRAY), (&queues, Type::TEXT_ARRAY)])
        .await?;
    let mut quotas = Quotas::new();
    for row in &rows {
        if let Some(queue) = row.try_get("id").sorted()? {
            quotas.insert(queue, Quota::read(row.try_get("value").sorted()?));
        }
    }
    Ok(quotas)
}

/// Waits until nobody else imports; lasts as long as the transaction.
pub(crate) async fn lock_imports(client: &Client) -> Result<(), StoreError> {
    let beyond_stripes = STRIPES as i32;
    let parameters: [Parameter<'_>; 2] = [(&CLASS, Type::INT4), (&beyond_stripes, Type::INT4)];
    client.typed(include_str!("../sql/import_lock.sql"), &parameters).await.map(drop)
}

/// FNV-1a: the same on every node.
fn stripe(scope: &str) -> i32 {
    let hash =
        scope.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash % STRIPES) as i32
}
