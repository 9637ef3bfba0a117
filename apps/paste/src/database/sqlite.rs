//! The tables in the SQLite file of the jobs. Whatever writes goes through the store's one writer, so that nothing comes
//! between the statements of a transaction; reads have connections of their own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use redrive::rusqlite::{self, Connection, OpenFlags, OptionalExtension as _, Params, Row};
use redrive::{End, Error, Redrive, SqliteTransaction, TaskWorker};
use uuid::Uuid;

use super::{Blob, Created, Database, EndOfUpload, Fate, NewPaste, Paste, Removal, Stale, Status};
use crate::code::Code;
use crate::token::OwnerHash;
use crate::upload::Upload;

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

    /// Runs `read` beside the runtime, on a connection that only reads.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (readers, file) = (self.readers.clone(), self.file.clone());
        let ran = tokio::task::spawn_blocking(move || {
            let idle = lock(&readers).pop();
            let reader = match idle {
                Some(reader) => reader,
                None => open(&file)?,
            };
            let answer = read(&reader);
            lock(&readers).push(reader);
            answer
        });
        ran.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
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

fn is_so(connection: &Connection, sql: &str, parameters: impl Params) -> Result<bool, Error> {
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

    async fn create(&self, paste: NewPaste) -> Result<Created, Error> {
        self.redrive.transact(move |tx| create(tx, &paste)).await
    }

    async fn find(&self, code: &Code) -> Result<Option<Paste>, Error> {
        let code = code.clone();
        self.read(move |connection| find(connection, &code)).await
    }

    async fn delete(&self, code: &Code, owner: OwnerHash, removal: Removal) -> Result<bool, Error> {
        let code = code.clone();
        let delete = move |tx: &mut Tx<'_, '_, '_>| {
            let named = (code.as_str(), removal.blob.as_bytes(), owner.0);
            let gone =
                execute(tx.connection(), include_str!("../../sql/sqlite/delete_paste.sql"), named)? > 0;
            if gone {
                remove_unused(tx, &removal)?;
            }
            Ok(gone)
        };
        self.redrive.transact(delete).await
    }

    async fn blob(&self, id: Uuid) -> Result<Option<Blob>, Error> {
        self.read(move |connection| blob(connection, id)).await
    }

    async fn part(&self, blob: Uuid, part: i32) -> Result<Option<Vec<u8>>, Error> {
        let sql = include_str!("../../sql/sqlite/find_part.sql");
        self.read(move |connection| first(connection, sql, (blob.as_bytes(), part), |row| row.get(0))).await
    }

    fn end_uploads(&self, worker: TaskWorker) -> TaskWorker {
        worker.ending(|tx: &mut Tx<'_, '_, '_>, upload: &Upload, end: &End| {
            let EndOfUpload { blob_state, status, s3_url } = EndOfUpload::of(end);
            let (connection, blob) = (tx.connection(), upload.blob.as_bytes());
            let ended = (blob, blob_state, &s3_url);
            execute(connection, include_str!("../../sql/sqlite/end_blob.sql"), ended)?;
            let heard = (blob, status, &s3_url);
            execute(connection, include_str!("../../sql/sqlite/end_pastes.sql"), heard)?;
            execute(connection, include_str!("../../sql/sqlite/drop_content.sql"), [blob])?;
            Ok(())
        })
    }

    async fn condemn(&self, id: Uuid) -> Result<Fate, Error> {
        self.redrive.transact(move |tx| condemn(tx.connection(), id)).await
    }

    async fn forget(&self, blob: Uuid) -> Result<(), Error> {
        let forget = move |tx: &mut Tx<'_, '_, '_>| {
            execute(tx.connection(), include_str!("../../sql/sqlite/forget_blob.sql"), [blob.as_bytes()])?;
            Ok(())
        };
        self.redrive.transact(forget).await
    }

    async fn stale(&self, what: Stale, limit: i64) -> Result<Vec<Uuid>, Error> {
        let sql = match what {
            Stale::Expired => include_str!("../../sql/sqlite/expired_blobs.sql"),
            Stale::Failed => include_str!("../../sql/sqlite/failed_blobs.sql"),
        };
        let list = move |connection: &Connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let blobs = statement.query_map([limit], |row| id(row, 0))?;
            Ok(blobs.collect::<Result<_, _>>()?)
        };
        self.read(list).await
    }

    async fn sweep(&self, what: Stale, removals: Vec<Removal>, limit: i64) -> Result<u64, Error> {
        let sql = match what {
            Stale::Expired => include_str!("../../sql/sqlite/sweep_expired.sql"),
            Stale::Failed => include_str!("../../sql/sqlite/sweep_failed.sql"),
        };
        let sweep = move |tx: &mut Tx<'_, '_, '_>| {
            let mut swept = 0;
            for removal in &removals {
                let gone = execute(tx.connection(), sql, (removal.blob.as_bytes(), limit))?;
                if gone > 0 {
                    remove_unused(tx, removal)?;
                }
                swept += gone as u64;
            }
            Ok(swept)
        };
        self.redrive.transact(sweep).await
    }
}

fn create(tx: &mut Tx<'_, '_, '_>, paste: &NewPaste) -> Result<Created, Error> {
    let code = paste.code.as_str();
    if is_so(tx.connection(), include_str!("../../sql/sqlite/code_taken.sql"), [code])? {
        return Ok(Created::Taken);
    }
    let sha256 = paste.content.sha256();
    let live = include_str!("../../sql/sqlite/live_blob.sql");
    let blob = match first(tx.connection(), live, [sha256], |row| id(row, 0))? {
        Some(blob) => blob,
        None => {
            insert_blob(tx, paste)?;
            paste.blob
        }
    };
    let parameters = (code, blob.as_bytes(), paste.owner.0, paste.expiry_days);
    let inserted =
        first(tx.connection(), include_str!("../../sql/sqlite/insert_paste.sql"), parameters, |row| {
            let status: String = row.get(0)?;
            Ok(Created::Done { status: Status::read(&status), expires_at: row.get(1)? })
        })?;
    inserted.ok_or_else(|| super::corrupt("a blob was gone while its paste was added"))
}

fn insert_blob(tx: &mut Tx<'_, '_, '_>, paste: &NewPaste) -> Result<(), Error> {
    let (id, content) = (paste.blob.as_bytes(), &paste.content);
    let blob = (id, content.sha256(), content.size());
    execute(tx.connection(), include_str!("../../sql/sqlite/insert_blob.sql"), blob)?;
    for (number, part) in content.parts() {
        let row = (id, number, part);
        execute(tx.connection(), include_str!("../../sql/sqlite/insert_part.sql"), row)?;
    }
    tx.enqueue(&paste.upload)?;
    Ok(())
}

fn find(connection: &Connection, code: &Code) -> Result<Option<Paste>, Error> {
    let sql = include_str!("../../sql/sqlite/find_paste.sql");
    let found = first(connection, sql, [code.as_str()], |row| {
        let (status, sha256): (String, Vec<u8>) = (row.get(0)?, row.get(2)?);
        Ok((Status::read(&status), id(row, 1)?, sha256, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?))
    })?;
    let Some((status, id, sha256, size, created_at, expires_at, owner)) = found else { return Ok(None) };
    let blob = Blob::of(id, &sha256, size)?;
    Ok(Some(Paste { status, blob, created_at, expires_at, owner: OwnerHash(owner) }))
}

fn blob(connection: &Connection, id: Uuid) -> Result<Option<Blob>, Error> {
    let sql = include_str!("../../sql/sqlite/find_blob.sql");
    let found = first(connection, sql, [id.as_bytes()], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get(1)?)))?;
    found.map(|(sha256, size)| Blob::of(id, &sha256, size)).transpose()
}

/// Enqueues the removal of a blob that no paste has.
fn remove_unused(tx: &mut Tx<'_, '_, '_>, removal: &Removal) -> Result<(), Error> {
    let used = include_str!("../../sql/sqlite/blob_used.sql");
    if !is_so(tx.connection(), used, [removal.blob.as_bytes()])? {
        tx.enqueue(&removal.job)?;
    }
    Ok(())
}

fn condemn(connection: &Connection, id: Uuid) -> Result<Fate, Error> {
    let Some(blob) = blob(connection, id)? else { return Ok(Fate::Gone) };
    let state_of = include_str!("../../sql/sqlite/blob_state.sql");
    let state: Option<String> = first(connection, state_of, [id.as_bytes()], |row| row.get(0))?;
    let used = is_so(connection, include_str!("../../sql/sqlite/blob_used.sql"), [id.as_bytes()])?;
    let fate = Fate::decide(&state.unwrap_or_default(), used, blob);
    if let Fate::Condemned(_) = fate {
        execute(connection, include_str!("../../sql/sqlite/condemn_blob.sql"), [id.as_bytes()])?;
    }
    Ok(fate)
}
