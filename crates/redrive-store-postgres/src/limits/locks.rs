//! Locks on queues and partitions: a node that counts the running jobs there and acts on the count keeps others from doing the same.
//!
//! They last until the end of the transaction, so that they also work through a pooler. All queues and partitions together share a
//! bounded number of locks, because the server keeps its locks in a table of fixed size. Two that share a lock wait for each other.

use redrive_core::QueueLimits;
use redrive_core::capacity::LimitsByQueue;
use redrive_sql::Statement;
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Result;
use crate::open::Inner;
use crate::planned_function::PlannedFunction;
use crate::pool::Executor;
use crate::pool::Parameter;
use crate::sql;

pub(crate) static LOCK_SCOPES: PlannedFunction =
    PlannedFunction::new(sql::LIMITS, "lock_scopes", "integer, integer[], text[]", &["id text, value bytea"]);
static LOCK_IMPORTS: Statement = sql::TRANSFER.statement("lock_imports");

/// The class of the locks. Any number that no other program uses.
const CLASS: i32 = 0x7265_6472;
const STRIPES: u32 = 512;
/// The class of the locks of jobs that get steps.
pub(crate) const CLASS_OF_JOBS: i32 = CLASS + 1;

/// Locks these scopes, and returns the limits of these queues. Jobs must be counted by a statement after this one.
pub(crate) async fn lock<'a>(
    inner: &Inner,
    client: &Client,
    scopes: impl IntoIterator<Item = &'a str>,
    queues: &[&str],
) -> Result<LimitsByQueue> {
    let mut stripes: Vec<i32> = scopes.into_iter().map(stripe).collect();
    // All nodes take the locks in the same order, so that there is no deadlock.
    stripes.sort_unstable();
    stripes.dedup();
    let sql = inner.sql(&LOCK_SCOPES);
    let rows = client
        .run(sql, &[(&CLASS, Type::INT4), (&stripes, Type::INT4_ARRAY), (&queues, Type::TEXT_ARRAY)])
        .await?;
    let mut limits = LimitsByQueue::new();
    for row in &rows {
        if let Some(queue) = row.try_get("id")? {
            limits.insert(queue, QueueLimits::read(row.try_get("value")?));
        }
    }
    Ok(limits)
}

/// Waits until no other import runs. The lock lasts until the end of the transaction.
pub(crate) async fn lock_imports(client: &Client) -> Result<()> {
    let beyond_stripes = STRIPES as i32;
    let parameters: [Parameter<'_>; 2] = [(&CLASS, Type::INT4), (&beyond_stripes, Type::INT4)];
    client.run(&LOCK_IMPORTS, &parameters).await.map(drop)
}

/// The lock of a job that gets steps.
pub(crate) fn stripe_of_job(id: Uuid) -> i32 {
    (id.as_u128() % u128::from(STRIPES)) as i32
}

/// FNV-1a, which is the same on every node.
fn stripe(scope: &str) -> i32 {
    let hash =
        scope.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash % STRIPES) as i32
}
