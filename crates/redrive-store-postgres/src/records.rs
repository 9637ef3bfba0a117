//! Small versioned documents with compare-and-set.

use async_trait::async_trait;
use redrive_core::StoreError;
use redrive_core::records::{Change, Expect, Record, Records, Written};
use redrive_core::transfer::SEALED;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::PostgresStore;
use crate::enqueue::Query;
use crate::error::Sorted;
use crate::open::Inner;
use crate::pool::Parameter;

#[async_trait]
impl Records for PostgresStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        find(&self.inner, kind, id).await
    }

    async fn write(&self, change: Change) -> Result<Written, StoreError> {
        change.check()?;
        let written = write(&self.inner, &change).await?;
        if matches!(written, Written::Done(_)) {
            self.inner.wake();
        }
        Ok(written)
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        scan(&self.inner, kind, after, limit).await
    }
}

/// Records of a kind in the order of their ids, after one of them.
pub(crate) async fn scan(
    inner: &Inner,
    kind: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Record>, StoreError> {
    let (after, limit) = (after.unwrap_or_default(), i64::try_from(limit).unwrap_or(i64::MAX));
    let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
        [(&kind, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT8)];
    let rows = inner.pool.query(include_str!("../sql/records_scan.sql"), &parameters).await?;
    rows.iter().map(record).collect()
}

async fn write(inner: &Inner, change: &Change) -> Result<Written, StoreError> {
    let written = if change.kind == SEALED && change.value.is_some() {
        let seal = async |client: &Client| {
            client.batch_execute(include_str!("../sql/records_seal.sql")).await.sorted()?;
            put(client, change).await
        };
        inner.pool.transaction(seal).await?
    } else {
        put(&*inner.pool, change).await?
    };
    match written {
        Some(version) => Ok(Written::Done(version)),
        None => Ok(Written::Conflict(find(inner, &change.kind, &change.id).await?)),
    }
}

/// The version that was written; none if something else was there.
async fn put(to: &(impl Query + Sync), change: &Change) -> Result<Option<u64>, StoreError> {
    let (absent, version) = match change.expect {
        Expect::Any => (false, None),
        Expect::Absent => (true, None),
        Expect::Version(version) => (false, Some(version as i64)),
    };
    let parameters: [Parameter<'_>; 5] = [
        (&change.kind, Type::TEXT),
        (&change.id, Type::TEXT),
        (&change.value, Type::BYTEA),
        (&absent, Type::BOOL),
        (&version, Type::INT8),
    ];
    let rows = to.typed(include_str!("../sql/records_write.sql"), &parameters).await?;
    let version = |row: &Row| Ok(row.try_get::<_, i64>(0).sorted()?.unsigned_abs());
    rows.first().map(version).transpose()
}

async fn find(inner: &Inner, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
    if kind.contains('\0') || id.contains('\0') {
        return Ok(None); // no text here has one
    }
    let sql = include_str!("../sql/records_read.sql");
    let rows = inner.pool.query(sql, &[(&kind, Type::TEXT), (&id, Type::TEXT)]).await?;
    rows.first().map(record).transpose()
}

fn record(row: &Row) -> Result<Record, StoreError> {
    Ok(Record {
        id: row.try_get(0).sorted()?,
        version: row.try_get::<_, i64>(1).sorted()?.unsigned_abs(),
        value: row.try_get(2).sorted()?,
    })
}
