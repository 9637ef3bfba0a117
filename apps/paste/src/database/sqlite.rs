//! The tables in the SQLite file of the jobs. All writes go through the single writer of the store, so that transactions do not
//! interleave. Reads have connections of their own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use redrive::rusqlite::{self, Connection, OpenFlags, OptionalExtension as _, Params, Row};
use redrive::{EndedJob, Error, Redrive, SqliteTransaction, TaskWorker};
use redrive_sql::{SqlFile, Statement};
use uuid::Uuid;

use super::{
    Blob, CondemnResult, CreateResult, Database, NewPaste, Paste, Removal, StalePastes, Status, UploadEnd,
};
use crate::code::Code;
use crate::token::OwnerHash;
use crate::upload::Upload;

/// The placeholders of the files: the current time in milliseconds.
const VALUES: &[(&str, &str)] = &[("now", "CAST(unixepoch('subsec') * 1000 AS INTEGER)")];

const PASTES: SqlFile = SqlFile::new(include_str!("../../sql/sqlite/pastes.sql"), VALUES);
const BLOBS: SqlFile = SqlFile::new(include_str!("../../sql/sqlite/blobs.sql"), VALUES);
const SWEEP: SqlFile = SqlFile::new(include_str!("../../sql/sqlite/sweep.sql"), VALUES);

static DELETE_PASTE: Statement = PASTES.statement("delete_paste");
static FIND_PART: Statement = BLOBS.statement("find_part");
static END_BLOB: Statement = BLOBS.statement("end_blob");
static END_PASTES: Statement = PASTES.statement("end_pastes");
static DROP_CONTENT: Statement = BLOBS.statement("drop_content");
static FORGET_BLOB: Statement = BLOBS.statement("forget_blob");
static EXPIRED_BLOBS: Statement = SWEEP.statement("expired_blobs");
static FAILED_BLOBS: Statement = SWEEP.statement("failed_blobs");
static SWEEP_EXPIRED: Statement = SWEEP.statement("sweep_expired");
static SWEEP_FAILED: Statement = SWEEP.statement("sweep_failed");
static CODE_TAKEN: Statement = PASTES.statement("code_taken");
static LIVE_BLOB: Statement = BLOBS.statement("live_blob");
static INSERT_PASTE: Statement = PASTES.statement("insert_paste");
static INSERT_BLOB: Statement = BLOBS.statement("insert_blob");
static INSERT_PART: Statement = BLOBS.statement("insert_part");
static FIND_PASTE: Statement = PASTES.statement("find_paste");
static FIND_BLOB: Statement = BLOBS.statement("find_blob");
static BLOB_USED: Statement = BLOBS.statement("blob_used");
static BLOB_STATE: Statement = BLOBS.statement("blob_state");
static CONDEMN_BLOB: Statement = BLOBS.statement("condemn_blob");

type Tx<'a, 'b, 'c> = SqliteTransaction<'a, 'b, 'c>;

/// The tables in a file.
pub(super) struct Sqlite {
    redrive: Redrive,
    file: PathBuf,
    readers: Arc<Mutex<Vec<Connection>>>,
}

impl Sqlite {
    pub(super) fn new(redrive: Redrive, file: &str) -> Self {
        let file = file.strip_prefix("//").unwrap_or(file).into();
        Self { redrive, file, readers: Arc::default() }
    }

    /// Runs `read` on a blocking thread, with a read-only connection.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (readers, file) = (self.readers.clone(), self.file.clone());
        let task = tokio::task::spawn_blocking(move || {
            let idle = lock(&readers).pop();
            let reader = match idle {
                Some(reader) => reader,
                None => open(&file)?,
            };
            let result = read(&reader);
            lock(&readers).push(reader);
            result
        });
        task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

fn open(file: &PathBuf) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let reader = Connection::open_with_flags(file, flags)?;
    reader.pragma_update(None, "query_only", true)?;
    reader.busy_timeout(std::time::Duration::from_secs(5))?;
    Ok(reader)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn execute(connection: &Connection, sql: &str, parameters: impl Params) -> Result<usize, Error> {
    Ok(connection.prepare_cached(sql)?.execute(parameters)?)
}

fn first<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, Error> {
    Ok(connection.prepare_cached(sql)?.query_row(parameters, read).optional()?)
}

fn read_bool(connection: &Connection, sql: &str, parameters: impl Params) -> Result<bool, Error> {
    Ok(connection.prepare_cached(sql)?.query_row(parameters, |row| row.get(0))?)
}

fn id(row: &Row<'_>, column: usize) -> rusqlite::Result<Uuid> {
    Ok(Uuid::from_bytes(row.get(column)?))
}

#[async_trait]
impl Database for Sqlite {
    async fn prepare(&self) -> Result<(), Error> {
        let tables = |tx: &mut Tx<'_, '_, '_>| {
            Ok(tx.connection().execute_batch(include_str!("../../sql/sqlite/tables.sql"))?)
        };
        self.redrive.transact(tables).await
    }

    async fn create(&self, paste: NewPaste) -> Result<CreateResult, Error> {
        self.redrive.transact(move |tx| create(tx, &paste)).await
    }

    async fn find(&self, code: &Code) -> Result<Option<Paste>, Error> {
        let code = code.clone();
        self.read(move |connection| find(connection, &code)).await
    }

    async fn delete(&self, code: &Code, owner: OwnerHash, removal: Removal) -> Result<bool, Error> {
        let code = code.clone();
        let delete = move |tx: &mut Tx<'_, '_, '_>| {
            let parameters = (code.as_str(), removal.blob.as_bytes(), owner.0);
            let was_removed = execute(tx.connection(), &DELETE_PASTE, parameters)? > 0;
            if was_removed {
                remove_unused(tx, &removal)?;
            }
            Ok(was_removed)
        };
        self.redrive.transact(delete).await
    }

    async fn blob(&self, id: Uuid) -> Result<Option<Blob>, Error> {
        self.read(move |connection| blob(connection, id)).await
    }

    async fn part(&self, blob: Uuid, part: i32) -> Result<Option<Vec<u8>>, Error> {
        let sql = &FIND_PART;
        self.read(move |connection| first(connection, sql, (blob.as_bytes(), part), |row| row.get(0))).await
    }

    fn end_uploads(&self, worker: TaskWorker) -> TaskWorker {
        worker.on_end(|tx: &mut Tx<'_, '_, '_>, upload: &Upload, end: &EndedJob| {
            let UploadEnd { blob_state, status, s3_url } = UploadEnd::new(end);
            let (connection, blob) = (tx.connection(), upload.blob.as_bytes());
            execute(connection, &END_BLOB, (blob, blob_state, &s3_url))?;
            execute(connection, &END_PASTES, (blob, status, &s3_url))?;
            execute(connection, &DROP_CONTENT, [blob])?;
            Ok(())
        })
    }

    async fn condemn(&self, id: Uuid) -> Result<CondemnResult, Error> {
        self.redrive.transact(move |tx| condemn(tx.connection(), id)).await
    }

    async fn forget(&self, blob: Uuid) -> Result<(), Error> {
        let forget = move |tx: &mut Tx<'_, '_, '_>| {
            execute(tx.connection(), &FORGET_BLOB, [blob.as_bytes()])?;
            Ok(())
        };
        self.redrive.transact(forget).await
    }

    async fn stale_blobs(&self, what: StalePastes, limit: i64) -> Result<Vec<Uuid>, Error> {
        let sql = match what {
            StalePastes::Expired => &EXPIRED_BLOBS,
            StalePastes::Failed => &FAILED_BLOBS,
        };
        let list = move |connection: &Connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let blobs = statement.query_map([limit], |row| id(row, 0))?;
            Ok(blobs.collect::<Result<_, _>>()?)
        };
        self.read(list).await
    }

    async fn sweep(&self, what: StalePastes, removals: Vec<Removal>, limit: i64) -> Result<u64, Error> {
        let sql = match what {
            StalePastes::Expired => &SWEEP_EXPIRED,
            StalePastes::Failed => &SWEEP_FAILED,
        };
        let sweep = move |tx: &mut Tx<'_, '_, '_>| {
            let mut swept = 0;
            for removal in &removals {
                let removed = execute(tx.connection(), sql, (removal.blob.as_bytes(), limit))?;
                if removed > 0 {
                    remove_unused(tx, removal)?;
                }
                swept += removed as u64;
            }
            Ok(swept)
        };
        self.redrive.transact(sweep).await
    }
}

fn create(tx: &mut Tx<'_, '_, '_>, paste: &NewPaste) -> Result<CreateResult, Error> {
    let code = paste.code.as_str();
    if read_bool(tx.connection(), &CODE_TAKEN, [code])? {
        return Ok(CreateResult::Taken);
    }
    let sha256 = paste.content.sha256();
    let live = &LIVE_BLOB;
    let blob = match first(tx.connection(), live, [sha256], |row| id(row, 0))? {
        Some(blob) => blob,
        None => {
            insert_blob(tx, paste)?;
            paste.blob
        }
    };
    let parameters = (code, blob.as_bytes(), paste.owner.0, paste.expiry_days);
    let inserted = first(tx.connection(), &INSERT_PASTE, parameters, |row| {
        let status: String = row.get(0)?;
        Ok(CreateResult::Done { status: Status::read(&status), expires_at: row.get(1)? })
    })?;
    inserted.ok_or_else(|| super::corrupt("a blob disappeared while its paste was added"))
}

fn insert_blob(tx: &mut Tx<'_, '_, '_>, paste: &NewPaste) -> Result<(), Error> {
    let (id, content) = (paste.blob.as_bytes(), &paste.content);
    let blob = (id, content.sha256(), content.size());
    execute(tx.connection(), &INSERT_BLOB, blob)?;
    for (number, part) in content.parts() {
        let row = (id, number, part);
        execute(tx.connection(), &INSERT_PART, row)?;
    }
    tx.enqueue(&paste.upload)?;
    Ok(())
}

fn find(connection: &Connection, code: &Code) -> Result<Option<Paste>, Error> {
    let sql = &FIND_PASTE;
    let found = first(connection, sql, [code.as_str()], |row| {
        let (status, sha256): (String, Vec<u8>) = (row.get(0)?, row.get(2)?);
        Ok((Status::read(&status), id(row, 1)?, sha256, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?))
    })?;
    let Some((status, id, sha256, size, created_at, expires_at, owner)) = found else { return Ok(None) };
    let blob = Blob::new(id, &sha256, size)?;
    Ok(Some(Paste { status, blob, created_at, expires_at, owner: OwnerHash(owner) }))
}

fn blob(connection: &Connection, id: Uuid) -> Result<Option<Blob>, Error> {
    let sql = &FIND_BLOB;
    let found = first(connection, sql, [id.as_bytes()], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get(1)?)))?;
    found.map(|(sha256, size)| Blob::new(id, &sha256, size)).transpose()
}

/// Enqueues the removal of a blob that no paste has.
fn remove_unused(tx: &mut Tx<'_, '_, '_>, removal: &Removal) -> Result<(), Error> {
    let used = &BLOB_USED;
    if !read_bool(tx.connection(), used, [removal.blob.as_bytes()])? {
        tx.enqueue(&removal.job)?;
    }
    Ok(())
}

fn condemn(connection: &Connection, id: Uuid) -> Result<CondemnResult, Error> {
    let Some(blob) = blob(connection, id)? else { return Ok(CondemnResult::Gone) };
    let state_of = &BLOB_STATE;
    let state: Option<String> = first(connection, state_of, [id.as_bytes()], |row| row.get(0))?;
    let used = read_bool(connection, &BLOB_USED, [id.as_bytes()])?;
    let result = CondemnResult::decide(&state.unwrap_or_default(), used, blob);
    if let CondemnResult::Condemned(_) = result {
        execute(connection, &CONDEMN_BLOB, [id.as_bytes()])?;
    }
    Ok(result)
}
