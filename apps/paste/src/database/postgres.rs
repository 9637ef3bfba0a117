//! The tables in the Postgres database of the jobs, for any number of nodes: what must not change between two statements
//! of a transaction is locked by its blob's row.

use async_trait::async_trait;
use redrive::tokio_postgres::Row;
use redrive::tokio_postgres::types::{ToSql, Type};
use redrive::{End, Error, PostgresTransaction, Redrive, TaskWorker};
use uuid::Uuid;

use super::{Blob, Created, Database, EndOfUpload, Fate, NewPaste, Paste, Removal, Stale, Status};
use crate::code::Code;
use crate::token::OwnerHash;
use crate::upload::Upload;

/// The tables in a database.
pub(super) struct Postgres {
    redrive: Redrive,
}

impl Postgres {
    pub(super) fn new(redrive: Redrive) -> Self {
        Self { redrive }
    }
}

/// A parameter with its type: sent along, a statement is one round trip.
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
        let made = self.redrive.transact_postgres(move |tx| {
            Box::pin(async move { Ok(tx.client().batch_execute(tables).await?) })
        });
        made.await
    }

    async fn create(&self, paste: NewPaste) -> Result<Created, Error> {
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
        let sql = include_str!("../../sql/postgres/find_part.sql");
        let read = self.redrive.transact_postgres(move |tx| {
            Box::pin(async move {
                let rows = query(tx, sql, &[(&blob, Type::UUID), (&part, Type::INT4)]).await?;
                Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
            })
        });
        read.await
    }

    fn end_uploads(&self, worker: TaskWorker) -> TaskWorker {
        worker.ending_postgres(|tx, upload: &Upload, end| Box::pin(end_upload(tx, upload, end)))
    }

    async fn condemn(&self, id: Uuid) -> Result<Fate, Error> {
        self.redrive.transact_postgres(move |tx| Box::pin(condemn(tx, id))).await
    }

    async fn forget(&self, blob: Uuid) -> Result<(), Error> {
        let sql = include_str!("../../sql/postgres/forget_blob.sql");
        let forget = self.redrive.transact_postgres(move |tx| {
            Box::pin(async move { execute(tx, sql, &[(&blob, Type::UUID)]).await.map(|_| ()) })
        });
        forget.await
    }

    async fn stale(&self, what: Stale, limit: i64) -> Result<Vec<Uuid>, Error> {
        let sql = match what {
            Stale::Expired => include_str!("../../sql/postgres/expired_blobs.sql"),
            Stale::Failed => include_str!("../../sql/postgres/failed_blobs.sql"),
        };
        let list = self.redrive.transact_postgres(move |tx| {
            Box::pin(async move {
                let rows = query(tx, sql, &[(&limit, Type::INT8)]).await?;
                Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
            })
        });
        list.await
    }

    async fn sweep(&self, what: Stale, removals: Vec<Removal>, limit: i64) -> Result<u64, Error> {
        let sql = match what {
            Stale::Expired => include_str!("../../sql/postgres/sweep_expired.sql"),
            Stale::Failed => include_str!("../../sql/postgres/sweep_failed.sql"),
        };
        let sweep = self.redrive.transact_postgres(move |tx| {
            Box::pin(async move {
                let mut swept = 0;
                for removal in &removals {
                    lock(tx, removal.blob).await?;
                    let gone = execute(tx, sql, &[(&removal.blob, Type::UUID), (&limit, Type::INT8)]).await?;
                    if gone > 0 {
                        remove_unused(tx, removal).await?;
                    }
                    swept += gone;
                }
                Ok(swept)
            })
        });
        sweep.await
    }
}

/// The code is taken first: where that fails nothing else was written. The paste's blob may come after it.
async fn create(tx: &PostgresTransaction<'_>, paste: NewPaste) -> Result<Created, Error> {
    let code = paste.code.as_str();
    let owner = &paste.owner.0[..];
    let parameters: [Parameter<'_>; 4] = [
        (&code, Type::TEXT),
        (&paste.blob, Type::UUID),
        (&owner, Type::BYTEA),
        (&paste.expiry_days, Type::INT4),
    ];
    let rows = query(tx, include_str!("../../sql/postgres/insert_paste.sql"), &parameters).await?;
    let Some(row) = rows.first() else { return Ok(Created::Taken) };
    let expires_at = row.try_get(0)?;
    let sha256 = &paste.content.sha256()[..];
    loop {
        let live = include_str!("../../sql/postgres/live_blob.sql");
        if let Some(row) = query(tx, live, &[(&sha256, Type::BYTEA)]).await?.first() {
            let status = join_blob(tx, code, row.try_get(0)?).await?;
            return Ok(Created::Done { status, expires_at });
        }
        // None: another node was faster, and its blob can be joined.
        if insert_blob(tx, &paste).await? {
            return Ok(Created::Done { status: Status::InProgress, expires_at });
        }
    }
}

async fn join_blob(tx: &PostgresTransaction<'_>, code: &str, blob: Uuid) -> Result<Status, Error> {
    let sql = include_str!("../../sql/postgres/join_blob.sql");
    let rows = query(tx, sql, &[(&code, Type::TEXT), (&blob, Type::UUID)]).await?;
    let row = rows.first().ok_or_else(|| super::corrupt("a blob was gone while its paste was added"))?;
    Ok(Status::read(row.try_get(0)?))
}

async fn insert_blob(tx: &PostgresTransaction<'_>, paste: &NewPaste) -> Result<bool, Error> {
    let (id, content) = (paste.blob, &paste.content);
    let (sha256, size) = (&content.sha256()[..], content.size());
    let blob: [Parameter<'_>; 3] = [(&id, Type::UUID), (&sha256, Type::BYTEA), (&size, Type::INT8)];
    if query(tx, include_str!("../../sql/postgres/insert_blob.sql"), &blob).await?.is_empty() {
        return Ok(false);
    }
    for (number, part) in content.parts() {
        let row: [Parameter<'_>; 3] = [(&id, Type::UUID), (&number, Type::INT4), (&part, Type::BYTEA)];
        execute(tx, include_str!("../../sql/postgres/insert_part.sql"), &row).await?;
    }
    tx.enqueue(&paste.upload).await?;
    Ok(true)
}

async fn find(tx: &PostgresTransaction<'_>, code: Code) -> Result<Option<Paste>, Error> {
    let sql = include_str!("../../sql/postgres/find_paste.sql");
    let rows = query(tx, sql, &[(&code.as_str(), Type::TEXT)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let owner: &[u8] = row.try_get(6)?;
    let owner = owner.try_into().map_err(|_| super::corrupt("an owner's hash is not 32 bytes long"))?;
    Ok(Some(Paste {
        status: Status::read(row.try_get(0)?),
        blob: Blob::of(row.try_get(1)?, row.try_get(2)?, row.try_get(3)?)?,
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
    let named: [Parameter<'_>; 3] =
        [(&code.as_str(), Type::TEXT), (&removal.blob, Type::UUID), (&owner, Type::BYTEA)];
    let gone = execute(tx, include_str!("../../sql/postgres/delete_paste.sql"), &named).await? > 0;
    if gone {
        remove_unused(tx, &removal).await?;
    }
    Ok(gone)
}

async fn blob(tx: &PostgresTransaction<'_>, id: Uuid) -> Result<Option<Blob>, Error> {
    let rows = query(tx, include_str!("../../sql/postgres/find_blob.sql"), &[(&id, Type::UUID)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Blob::of(id, row.try_get(0)?, row.try_get(1)?).map(Some)
}

async fn end_upload(tx: &PostgresTransaction<'_>, upload: &Upload, end: &End) -> Result<(), Error> {
    let EndOfUpload { blob_state, status, s3_url } = EndOfUpload::of(end);
    let url: Parameter<'_> = (&s3_url, Type::TEXT);
    let id: Parameter<'_> = (&upload.blob, Type::UUID);
    let ended = [id.clone(), (&blob_state, Type::TEXT), url.clone()];
    execute(tx, include_str!("../../sql/postgres/end_blob.sql"), &ended).await?;
    let heard = [id.clone(), (&status, Type::TEXT), url];
    execute(tx, include_str!("../../sql/postgres/end_pastes.sql"), &heard).await?;
    execute(tx, include_str!("../../sql/postgres/drop_content.sql"), &[id]).await?;
    Ok(())
}

/// The state of a blob, whose pastes stay as they are until the transaction ends.
async fn lock(tx: &PostgresTransaction<'_>, blob: Uuid) -> Result<Option<String>, Error> {
    let rows = query(tx, include_str!("../../sql/postgres/lock_blob.sql"), &[(&blob, Type::UUID)]).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
}

/// Whether any paste has a blob that is locked.
async fn is_used(tx: &PostgresTransaction<'_>, blob: Uuid) -> Result<bool, Error> {
    let rows = query(tx, include_str!("../../sql/postgres/blob_used.sql"), &[(&blob, Type::UUID)]).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false))
}

/// Enqueues the removal of a blob that no paste has.
async fn remove_unused(tx: &PostgresTransaction<'_>, removal: &Removal) -> Result<(), Error> {
    if !is_used(tx, removal.blob).await? {
        tx.enqueue(&removal.job).await?;
    }
    Ok(())
}

async fn condemn(tx: &PostgresTransaction<'_>, id: Uuid) -> Result<Fate, Error> {
    let Some(state) = lock(tx, id).await? else { return Ok(Fate::Gone) };
    let Some(blob) = blob(tx, id).await? else { return Ok(Fate::Gone) };
    let fate = Fate::decide(&state, is_used(tx, id).await?, blob);
    if let Fate::Condemned(_) = fate {
        execute(tx, include_str!("../../sql/postgres/condemn_blob.sql"), &[(&id, Type::UUID)]).await?;
    }
    Ok(fate)
}
