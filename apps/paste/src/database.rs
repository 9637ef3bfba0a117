//! The tables of the site: pastes, the blobs that they share, and content that waits for its upload. Each method is one transaction,
//! with the jobs that belong to it.
//!
//! A crash never loses a blob that a paste needs:
//!
//! 1. A paste joins a blob only while the blob is live (`uploading` or `stored`), under a lock on the blob's row that lasts until the
//!    commit. If there is no live blob, the transaction adds one, with a new id and so with a new object name.
//! 2. A blob is condemned (`removing`) only under the lock of its row, and only if no paste has it. From then on no paste can join it. So
//!    an object that is being removed has no paste, and never gets one.
//! 3. The object is removed after that commit, by its name. A late or repeated removal cannot hit the object of another blob.
//! 4. The row is removed after the object. A crash in between leaves a condemned row, and the job that continues.
//!
//! No unused blob remains either: the transaction that removes the last paste of a blob enqueues the removal of the blob.

mod postgres;
mod sqlite;

use std::sync::Arc;

use async_trait::async_trait;
use redrive::{Error, PreparedTask, Redrive, TaskWorker};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::code::Code;
use crate::content::Content;
use crate::token::OwnerHash;

/// The site's tables.
#[async_trait]
pub trait Database: Send + Sync + 'static {
    /// Creates the tables if they are missing.
    async fn prepare(&self) -> Result<(), Error>;

    /// Adds a paste. If no live blob has its content, also adds a blob, the content and the upload.
    async fn create(&self, paste: NewPaste) -> Result<CreateResult, Error>;

    /// Finds a paste that has neither failed nor expired.
    async fn find(&self, code: &Code) -> Result<Option<Paste>, Error>;

    /// Removes a paste for its owner. If it was the last one of its blob, enqueues `removal`.
    async fn delete(&self, code: &Code, owner: OwnerHash, removal: Removal) -> Result<bool, Error>;

    /// Reads a blob.
    async fn blob(&self, id: Uuid) -> Result<Option<Blob>, Error>;

    /// Reads a part of a content that waits for its upload.
    async fn part(&self, blob: Uuid, part: i32) -> Result<Option<Vec<u8>>, Error>;

    /// Makes the worker write the result of uploads in the transaction that ends their jobs.
    fn end_uploads(&self, worker: TaskWorker) -> TaskWorker;

    /// Marks a blob for removal if no paste has it.
    async fn condemn(&self, blob: Uuid) -> Result<CondemnResult, Error>;

    /// Removes the row of a blob whose object was removed.
    async fn forget(&self, blob: Uuid) -> Result<(), Error>;

    /// Lists the blobs of up to `limit` stale pastes.
    async fn stale_blobs(&self, what: StalePastes, limit: i64) -> Result<Vec<Uuid>, Error>;

    /// Removes stale pastes of these blobs, up to `limit` of each, and returns their number. Enqueues the removal of blobs without
    /// pastes.
    async fn sweep(&self, what: StalePastes, removals: Vec<Removal>, limit: i64) -> Result<u64, Error>;
}

/// Opens the tables in the database of the jobs.
pub fn open(redrive: &Redrive, address: &str) -> Arc<dyn Database> {
    match address.strip_prefix("sqlite:") {
        Some(file) => Arc::new(sqlite::Sqlite::new(redrive.clone(), file)),
        None => Arc::new(postgres::Postgres::new(redrive.clone())),
    }
}

/// A paste to add.
#[derive(Debug, Clone)]
pub struct NewPaste {
    /// The code, which may be taken.
    pub code: Code,
    /// The number of days until it expires.
    pub expiry_days: i32,
    /// The hash of the token that may remove it.
    pub owner: OwnerHash,
    /// The content.
    pub content: Content,
    /// The id of the blob that is added if no live blob has this content.
    pub blob: Uuid,
    /// The job that uploads this blob.
    pub upload: PreparedTask,
}

/// The result of adding a paste.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateResult {
    /// The paste was added.
    Done {
        /// Whether the paste can be read already.
        status: Status,
        /// When it expires, in milliseconds since 1970.
        expires_at: i64,
    },
    /// Another paste has the code. Nothing was written.
    Taken,
}

/// The status of a paste. A failed paste is never shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// The upload has not ended.
    InProgress,
    /// The paste can be read.
    Processed,
}

impl Status {
    fn read(text: &str) -> Self {
        if text == "PROCESSED" { Self::Processed } else { Self::InProgress }
    }
}

/// A paste that may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paste {
    /// Whether it can be read.
    pub status: Status,
    /// The blob with its content.
    pub blob: Blob,
    /// When it was created, in milliseconds since 1970.
    pub created_at: i64,
    /// When it expires, in milliseconds since 1970.
    pub expires_at: i64,
    /// The hash of the token that may remove it.
    pub owner: OwnerHash,
}

/// A stored content, which all pastes with this content share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blob {
    /// The id. A content that is pasted again after its removal gets a new blob.
    pub id: Uuid,
    /// The hash of the content.
    pub sha256: [u8; 32],
    /// The length of the content in bytes.
    pub size: u64,
}

impl Blob {
    /// Reads a blob from the columns of a row.
    fn new(id: Uuid, sha256: &[u8], size: i64) -> Result<Self, Error> {
        let sha256 = sha256.try_into().map_err(|_| corrupt("the hash of a blob is not 32 bytes long"))?;
        Ok(Self { id, sha256, size: size.unsigned_abs() })
    }

    /// The name of the object. It contains the id, so that no other blob has the same name.
    pub fn key(&self) -> String {
        use std::fmt::Write as _;
        let mut hex = String::with_capacity(64);
        for byte in self.sha256 {
            let _ = write!(hex, "{byte:02x}");
        }
        format!("{}/{hex}-{}", &hex[..2], self.id.simple())
    }
}

/// A blob, and the job that removes it if it has no pastes.
#[derive(Debug, Clone)]
pub struct Removal {
    /// The blob.
    pub blob: Uuid,
    /// The job.
    pub job: PreparedTask,
}

/// The result of marking a blob for removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CondemnResult {
    /// The blob is marked. Its object can be removed.
    Condemned(Blob),
    /// The blob cannot be removed until its upload has ended.
    Uploading,
    /// A paste has the blob.
    Used,
    /// The blob does not exist.
    Gone,
}

impl CondemnResult {
    /// Decides from the state of a locked blob and from whether a paste has it.
    fn decide(state: &str, used: bool, blob: Blob) -> Self {
        match state {
            _ if used => Self::Used,
            "uploading" => Self::Uploading,
            _ => Self::Condemned(blob),
        }
    }
}

/// The pastes that a sweep removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StalePastes {
    /// Expired pastes.
    Expired,
    /// Failed pastes that were created more than 24 hours ago.
    Failed,
}

/// The values that are written at the end of an upload.
struct UploadEnd {
    blob_state: &'static str,
    status: &'static str,
    s3_url: Option<String>,
}

impl UploadEnd {
    fn new(end: &redrive::EndedJob) -> Self {
        match end.output::<String>() {
            Some(url) => Self { blob_state: "stored", status: "PROCESSED", s3_url: Some(url) },
            None => Self { blob_state: "failed", status: "FAILED", s3_url: None },
        }
    }
}

fn corrupt(problem: &str) -> Error {
    redrive::StoreError::Corrupt(problem.to_owned()).into()
}
