//! The tables in Postgres, for any number of nodes. A lock on the row of a blob keeps the blob and its pastes from changing between two
//! statements of a transaction.

use async_trait::async_trait;
use redrive::tokio_postgres::Row;
use redrive::tokio_postgres::types::{ToSql, Type};
use redrive::{EndedJob, Error, PostgresTransaction, Redrive, TaskWorker};
use redrive_sql::{SqlFile, Statement};
use uuid::Uuid;

use super::{
    Blob, CondemnResult, CreateResult, Database, NewPaste, Paste, Removal, StalePastes, Status, UploadEnd,
};
use crate::code::Code;
use crate::token::OwnerHash;
use crate::upload::Upload;

const PASTES: SqlFile = SqlFile::new(include_str!("../../sql/postgres/pastes.sql"), &[]);
const BLOBS: SqlFile = SqlFile::new(include_str!("../../sql/postgres/blobs.sql"), &[]);
const SWEEP: SqlFile = SqlFile::new(include_str!("../../sql/postgres/sweep.sql"), &[]);

static FIND_PART: Statement = BLOBS.statement("find_part");
static FORGET_BLOB: Statement = BLOBS.statement("forget_blob");
static EXPIRED_BLOBS: Statement = SWEEP.statement("expired_blobs");
static FAILED_BLOBS: Statement = SWEEP.statement("failed_blobs");
static SWEEP_EXPIRED: Statement = SWEEP.statement("sweep_expired");
static SWEEP_FAILED: Statement = SWEEP.statement("sweep_failed");
static INSERT_PASTE: Statement = PASTES.statement("insert_paste");
static LIVE_BLOB: Statement = BLOBS.statement("live_blob");
static JOIN_BLOB: Statement = PASTES.statement("join_blob");
static INSERT_BLOB: Statement = BLOBS.statement("insert_blob");
static INSERT_PART: Statement = BLOBS.statement("insert_part");
static FIND_PASTE: Statement = PASTES.statement("find_paste");
static DELETE_PASTE: Statement = PASTES.statement("delete_paste");
static FIND_BLOB: Statement = BLOBS.statement("find_blob");
static END_BLOB: Statement = BLOBS.statement("end_blob");
static END_PASTES: Statement = PASTES.statement("end_pastes");
static DROP_CONTENT: Statement = BLOBS.statement("drop_content");
static LOCK_BLOB: Statement = BLOBS.statement("lock_blob");
static BLOB_USED: Statement = BLOBS.statement("blob_used");
static CONDEMN_BLOB: Statement = BLOBS.statement("condemn_blob");

/// The tables in a database.
pub(super) struct Postgres {
    redrive: Redrive,
}

impl Postgres {
    pub(super) fn new(redrive: Redrive) -> Self {
        Self { redrive }
    }
}

/// A parameter with its type. With types, a statement needs one round trip.
type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

async fn query(
    tx: &PostgresTransaction<'_>,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, Error> {
    Ok(tx.client().query_typed(sql, parameters).await?)
}

async fn execute(
    tx: &PostgresTransaction<'_>,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<u64, Error> {
    Ok(tx.client().execute_typed(sql, parameters).await?)
}

#[async_trait]
impl Database for Postgres {
    async fn prepare(&self) -> Result<(), Error> {
        let tables = include_str!("../../sql/postgres/tables.sql");
        let create = self.redrive.transact_postgres(move |tx| {
            Box::pin(async move { Ok(tx.client().batch_execute(tables).await?) })
        });
        create.await
    }

    async fn create(&self, paste: NewPaste) -> Result<CreateResult, Error> {
        self.redrive.transact_postgres(|tx| Box::pin(create(tx, paste))).await
    }

    async fn find(&self, code: &Code) -> Result<Option<Paste>, Error> {
        let code = code.clone();
        self.redrive.transact_postgres(|tx| Box::pin(find(tx, code))).await
    }

    async fn delete(&self, code: &Code, owner: OwnerHash, removal: Removal) -> Result<bool, Error> {
        let code = code.clone();
        self.redrive.transact_postgres(move |tx| Box::pin(delete(tx, code, owner, removal))).await
    }

    async fn blob(&self, id: Uuid) -> Result<Option<Blob>, Error> {
        self.redrive.transact_postgres(move |tx| Box::pin(blob(tx, id))).await
    }

    async fn part(&self, blob: Uuid, part: i32) -> Result<Option<Vec<u8>>, Error> {
        let sql = &FIND_PART;
        let read = self.redrive.transact_postgres(move |tx| {
            Box::pin(async move {
                let rows = query(tx, sql, &[(&blob, Type::UUID), (&part, Type::INT4)]).await?;
                Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
            })
        });
        read.await
    }

    fn end_uploads(&self, worker: TaskWorker) -> TaskWorker {
        worker.on_end_postgres(|tx, upload: &Upload, end| Box::pin(end_upload(tx, upload, end)))
    }

    async fn condemn(&self, id: Uuid) -> Result<CondemnResult, Error> {
        self.redrive.transact_postgres(move |tx| Box::pin(condemn(tx, id))).await
    }

    async fn forget(&self, blob: Uuid) -> Result<(), Error> {
        let sql = &FORGET_BLOB;
        let forget = self.redrive.transact_postgres(move |tx| {
            Box::pin(async move { execute(tx, sql, &[(&blob, Type::UUID)]).await.map(|_| ()) })
        });
        forget.await
    }

    async fn stale_blobs(&self, what: StalePastes, limit: i64) -> Result<Vec<Uuid>, Error> {
        let sql = match what {
            StalePastes::Expired => &EXPIRED_BLOBS,
            StalePastes::Failed => &FAILED_BLOBS,
        };
        let list = self.redrive.transact_postgres(move |tx| {
            Box::pin(async move {
                let rows = query(tx, sql, &[(&limit, Type::INT8)]).await?;
                Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
            })
        });
        list.await
    }

    async fn sweep(&self, what: StalePastes, removals: Vec<Removal>, limit: i64) -> Result<u64, Error> {
        let sql = match what {
            StalePastes::Expired => &SWEEP_EXPIRED,
            StalePastes::Failed => &SWEEP_FAILED,
        };
        let sweep = self.redrive.transact_postgres(move |tx| {
            Box::pin(async move {
                let mut swept = 0;
                for removal in &removals {
                    lock(tx, removal.blob).await?;
                    let removed =
                        execute(tx, sql, &[(&removal.blob, Type::UUID), (&limit, Type::INT8)]).await?;
                    if removed > 0 {
                        remove_unused(tx, removal).await?;
                    }
                    swept += removed;
                }
                Ok(swept)
            })
        });
        sweep.await
    }
}

/// Inserts the paste first, so that nothing was written if its code is taken. Its blob may be inserted after it.
async fn create(tx: &PostgresTransaction<'_>, paste: NewPaste) -> Result<CreateResult, Error> {
    let code = paste.code.as_str();
    let owner = &paste.owner.0[..];
    let parameters: [Parameter<'_>; 4] = [
        (&code, Type::TEXT),
        (&paste.blob, Type::UUID),
        (&owner, Type::BYTEA),
        (&paste.expiry_days, Type::INT4),
    ];
    let rows = query(tx, &INSERT_PASTE, &parameters).await?;
    let Some(row) = rows.first() else { return Ok(CreateResult::Taken) };
    let expires_at = row.try_get(0)?;
    let sha256 = &paste.content.sha256()[..];
    loop {
        let live = &LIVE_BLOB;
        if let Some(row) = query(tx, live, &[(&sha256, Type::BYTEA)]).await?.first() {
            let status = join_blob(tx, code, row.try_get(0)?).await?;
            return Ok(CreateResult::Done { status, expires_at });
        }
        // Another node may have inserted a blob first. The next round joins it.
        if insert_blob(tx, &paste).await? {
            return Ok(CreateResult::Done { status: Status::InProgress, expires_at });
        }
    }
}

async fn join_blob(tx: &PostgresTransaction<'_>, code: &str, blob: Uuid) -> Result<Status, Error> {
    let sql = &JOIN_BLOB;
    let rows = query(tx, sql, &[(&code, Type::TEXT), (&blob, Type::UUID)]).await?;
    let row = rows.first().ok_or_else(|| super::corrupt("a blob disappeared while its paste was added"))?;
    Ok(Status::read(row.try_get(0)?))
}

async fn insert_blob(tx: &PostgresTransaction<'_>, paste: &NewPaste) -> Result<bool, Error> {
    let (id, content) = (paste.blob, &paste.content);
    let (sha256, size) = (&content.sha256()[..], content.size());
    let blob: [Parameter<'_>; 3] = [(&id, Type::UUID), (&sha256, Type::BYTEA), (&size, Type::INT8)];
    if query(tx, &INSERT_BLOB, &blob).await?.is_empty() {
        return Ok(false);
    }
    for (number, part) in content.parts() {
        let row: [Parameter<'_>; 3] = [(&id, Type::UUID), (&number, Type::INT4), (&part, Type::BYTEA)];
        execute(tx, &INSERT_PART, &row).await?;
    }
    tx.enqueue(&paste.upload).await?;
    Ok(true)
}

async fn find(tx: &PostgresTransaction<'_>, code: Code) -> Result<Option<Paste>, Error> {
    let sql = &FIND_PASTE;
    let rows = query(tx, sql, &[(&code.as_str(), Type::TEXT)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let owner: &[u8] = row.try_get(6)?;
    let owner = owner.try_into().map_err(|_| super::corrupt("the hash of an owner is not 32 bytes long"))?;
    Ok(Some(Paste {
        status: Status::read(row.try_get(0)?),
        blob: Blob::new(row.try_get(1)?, row.try_get(2)?, row.try_get(3)?)?,
        created_at: row.try_get(4)?,
        expires_at: row.try_get(5)?,
        owner: OwnerHash(owner),
    }))
}

async fn delete(
    tx: &PostgresTransaction<'_>,
    code: Code,
    owner: OwnerHash,
    removal: Removal,
) -> Result<bool, Error> {
    lock(tx, removal.blob).await?;
    let owner = &owner.0[..];
    let parameters: [Parameter<'_>; 3] =
        [(&code.as_str(), Type::TEXT), (&removal.blob, Type::UUID), (&owner, Type::BYTEA)];
    let was_removed = execute(tx, &DELETE_PASTE, &parameters).await? > 0;
    if was_removed {
        remove_unused(tx, &removal).await?;
    }
    Ok(was_removed)
}

async fn blob(tx: &PostgresTransaction<'_>, id: Uuid) -> Result<Option<Blob>, Error> {
    let rows = query(tx, &FIND_BLOB, &[(&id, Type::UUID)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Blob::new(id, row.try_get(0)?, row.try_get(1)?).map(Some)
}

async fn end_upload(tx: &PostgresTransaction<'_>, upload: &Upload, end: &EndedJob) -> Result<(), Error> {
    let UploadEnd { blob_state, status, s3_url } = UploadEnd::new(end);
    let url: Parameter<'_> = (&s3_url, Type::TEXT);
    let id: Parameter<'_> = (&upload.blob, Type::UUID);
    execute(tx, &END_BLOB, &[id.clone(), (&blob_state, Type::TEXT), url.clone()]).await?;
    execute(tx, &END_PASTES, &[id.clone(), (&status, Type::TEXT), url]).await?;
    execute(tx, &DROP_CONTENT, &[id]).await?;
    Ok(())
}

/// Locks a blob with its pastes until the transaction ends, and returns its state.
async fn lock(tx: &PostgresTransaction<'_>, blob: Uuid) -> Result<Option<String>, Error> {
    let rows = query(tx, &LOCK_BLOB, &[(&blob, Type::UUID)]).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
}

/// Whether any paste has a blob. The blob must be locked.
async fn is_used(tx: &PostgresTransaction<'_>, blob: Uuid) -> Result<bool, Error> {
    let rows = query(tx, &BLOB_USED, &[(&blob, Type::UUID)]).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false))
}

/// Enqueues the removal of a blob that no paste has.
async fn remove_unused(tx: &PostgresTransaction<'_>, removal: &Removal) -> Result<(), Error> {
    if !is_used(tx, removal.blob).await? {
        tx.enqueue(&removal.job).await?;
    }
    Ok(())
}

async fn condemn(tx: &PostgresTransaction<'_>, id: Uuid) -> Result<CondemnResult, Error> {
    let Some(state) = lock(tx, id).await? else { return Ok(CondemnResult::Gone) };
    let Some(blob) = blob(tx, id).await? else { return Ok(CondemnResult::Gone) };
    let result = CondemnResult::decide(&state, is_used(tx, id).await?, blob);
    if let CondemnResult::Condemned(_) = result {
        execute(tx, &CONDEMN_BLOB, &[(&id, Type::UUID)]).await?;
    }
    Ok(result)
}
