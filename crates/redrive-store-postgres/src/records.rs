//! Small versioned documents with compare-and-set.

use async_trait::async_trait;
use redrive_core::StoreError;
use redrive_core::records::{Precondition, Record, RecordStore, RecordWrite, WriteResult};
use redrive_core::transfer::SEALED;
use redrive_sql::Statement;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::PostgresStore;
use crate::error::Result;
use crate::open::Inner;
use crate::pool::{Executor, Parameter};
use crate::sql;

static READ: Statement = sql::RECORDS.statement("read");
static SCAN: Statement = sql::RECORDS.statement("scan");
static WRITE: Statement = sql::RECORDS.statement("write");
static LOCK_FOR_SEAL: Statement = sql::RECORDS.statement("lock_for_seal");

#[async_trait]
impl RecordStore for PostgresStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        Ok(find(&self.inner, kind, id).await?)
    }

    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError> {
        change.check()?;
        let written = write(&self.inner, &change).await?;
        if matches!(written, WriteResult::Done(_)) {
            self.inner.wake();
        }
        Ok(written)
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        Ok(scan(&self.inner, kind, after, limit).await?)
    }
}

/// Reads records of a kind in the order of their ids.
pub(crate) async fn scan(
    inner: &Inner,
    kind: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Record>> {
    let (after, limit) = (after.unwrap_or_default(), i64::try_from(limit).unwrap_or(i64::MAX));
    let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
        [(&kind, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT8)];
    let rows = inner.pool.query(&SCAN, &parameters).await?;
    rows.iter().map(record).collect()
}

async fn write(inner: &Inner, change: &RecordWrite) -> Result<WriteResult> {
    let written = if change.kind == SEALED && change.value.is_some() {
        let seal = async |client: &Client| {
            client.batch_execute(&LOCK_FOR_SEAL).await?;
            put(client, change).await
        };
        inner.pool.transaction(seal).await?
    } else {
        put(&*inner.pool, change).await?
    };
    match written {
        Some(version) => Ok(WriteResult::Done(version)),
        None => Ok(WriteResult::Conflict(find(inner, &change.kind, &change.id).await?)),
    }
}

/// Writes a record, and returns its version. None if the record is not as expected.
async fn put(on: &(impl Executor + Sync), change: &RecordWrite) -> Result<Option<u64>> {
    let (absent, version) = match change.expect {
        Precondition::Any => (false, None),
        Precondition::Absent => (true, None),
        Precondition::Version(version) => (false, Some(version as i64)),
    };
    let parameters: [Parameter<'_>; 5] = [
        (&change.kind, Type::TEXT),
        (&change.id, Type::TEXT),
        (&change.value, Type::BYTEA),
        (&absent, Type::BOOL),
        (&version, Type::INT8),
    ];
    let rows = on.run(&WRITE, &parameters).await?;
    let version = |row: &Row| Ok(row.try_get::<_, i64>(0)?.unsigned_abs());
    rows.first().map(version).transpose()
}

async fn find(inner: &Inner, kind: &str, id: &str) -> Result<Option<Record>> {
    if kind.contains('\0') || id.contains('\0') {
        return Ok(None); // no text in the database contains NUL
    }
    let rows = inner.pool.query(&READ, &[(&kind, Type::TEXT), (&id, Type::TEXT)]).await?;
    rows.first().map(record).transpose()
}

fn record(row: &Row) -> Result<Record> {
    Ok(Record {
        id: row.try_get(0)?,
        version: row.try_get::<_, i64>(1)?.unsigned_abs(),
        value: row.try_get(2)?,
    })
}
