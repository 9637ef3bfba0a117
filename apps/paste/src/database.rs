//! What the site keeps: pastes, the blobs that they share, and content that waits for its upload. Each method is one
//! transaction, with the jobs that belong to it.
//!
//! Why no blob is ever lost that a paste needs, whatever crashes when:
//!
//! 1. A paste joins a blob only while that is live (`uploading` or `stored`), under a lock on the blob's row that lasts to
//!    the commit; one that finds none makes a new blob, with a new id and so with an object of another name.
//! 2. A blob is condemned (`removing`) only under the same row's lock, and only when no paste has it. From then on none
//!    can join it. So an object that is being removed has no paste, and never gets one.
//! 3. The object goes after that commit, by name: a late or repeated removal cannot hit the object of another blob.
//! 4. The row goes after the object. A crash in between leaves a condemned row and the job that goes on from there.
//!
//! And why none stays behind: the paste that leaves a blob without pastes enqueues its removal in the same transaction.

mod postgres;
mod sqlite;

use std::sync::Arc;

use async_trait::async_trait;
use redrive::{Error, Prepared, Redrive, TaskWorker};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::code::Code;
use crate::content::Content;
use crate::token::OwnerHash;

/// The site's tables.
#[async_trait]
pub trait Database: Send + Sync + 'static {
    /// Makes the tables if they are missing.
    async fn prepare(&self) -> Result<(), Error>;

    /// Adds a paste; where no live blob has its content, with a blob, the content and the upload that it needs.
    async fn create(&self, paste: NewPaste) -> Result<Created, Error>;

    /// A paste that may be shown: on its way or ready, and not expired.
    async fn find(&self, code: &Code) -> Result<Option<Paste>, Error>;

    /// Removes a paste for its owner; the last one of a blob takes that with it, by `removal`.
    async fn delete(&self, code: &Code, owner: OwnerHash, removal: Removal) -> Result<bool, Error>;

    /// What there is to upload.
    async fn blob(&self, id: Uuid) -> Result<Option<Blob>, Error>;

    /// A part of a content that waits for its upload.
    async fn part(&self, blob: Uuid, part: i32) -> Result<Option<Vec<u8>>, Error>;

    /// Has the worker write how uploads end, in the transaction that ends their jobs.
    fn end_uploads(&self, worker: TaskWorker) -> TaskWorker;

    /// Marks a blob that no paste has as on its way out.
    async fn condemn(&self, blob: Uuid) -> Result<Fate, Error>;

    /// Forgets a blob whose object is gone.
    async fn forget(&self, blob: Uuid) -> Result<(), Error>;

    /// Blobs of up to `limit` pastes that are to be swept.
    async fn stale(&self, what: Stale, limit: i64) -> Result<Vec<Uuid>, Error>;

    /// Removes stale pastes of these blobs, up to `limit` of each; says how many. A blob left without takes its removal.
    async fn sweep(&self, what: Stale, removals: Vec<Removal>, limit: i64) -> Result<u64, Error>;
}

/// The tables beside the jobs of a store.
pub fn beside(redrive: &Redrive, address: &str) -> Arc<dyn Database> {
    match address.strip_prefix("sqlite:") {
        Some(file) => Arc::new(sqlite::Sqlite::new(redrive.clone(), file)),
        None => Arc::new(postgres::Postgres::new(redrive.clone())),
    }
}

/// A paste to be added.
#[derive(Debug, Clone)]
pub struct NewPaste {
    /// Its code, which may turn out to be taken.
    pub code: Code,
    /// How long it is to be there.
    pub expiry_days: i32,
    /// Who may remove it.
    pub owner: OwnerHash,
    /// What is pasted.
    pub content: Content,
    /// The blob that is made where no other has this content.
    pub blob: Uuid,
    /// The upload of that blob.
    pub upload: Prepared,
}

/// What came of adding a paste.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It is there.
    Done {
        /// Whether it can be read already.
        status: Status,
        /// Until when it will be there, in milliseconds since 1970.
        expires_at: i64,
    },
    /// Another paste has its code; nothing was written.
    Taken,
}

/// Where a paste is on its way. A paste that has failed is never shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Its upload has not ended.
    InProgress,
    /// It can be read.
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
    /// What it consists of.
    pub blob: Blob,
    /// Since when it is there, in milliseconds since 1970.
    pub created_at: i64,
    /// Until when it will be there.
    pub expires_at: i64,
    /// Who may remove it.
    pub owner: OwnerHash,
}

/// A stored content: the same one for every paste of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blob {
    /// Which one; a content that comes again after its removal is another.
    pub id: Uuid,
    /// The hash of its content.
    pub sha256: [u8; 32],
    /// The length of its content.
    pub size: u64,
}

impl Blob {
    /// Of a row; a hash of another length is not one.
    fn of(id: Uuid, sha256: &[u8], size: i64) -> Result<Self, Error> {
        let sha256 = sha256.try_into().map_err(|_| corrupt("a blob's hash is not 32 bytes long"))?;
        Ok(Self { id, sha256, size: size.unsigned_abs() })
    }

    /// What its object is called. The id makes it the name of this generation alone.
    pub fn key(&self) -> String {
        use std::fmt::Write as _;
        let mut hex = String::with_capacity(64);
        for byte in self.sha256 {
            let _ = write!(hex, "{byte:02x}");
        }
        format!("{}/{hex}-{}", &hex[..2], self.id.simple())
    }
}

/// A blob with the job that removes it, should it be left without pastes.
#[derive(Debug, Clone)]
pub struct Removal {
    /// The blob.
    pub blob: Uuid,
    /// The job.
    pub job: Prepared,
}

/// What is to become of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is on its way out: its object can go.
    Condemned(Blob),
    /// Its upload has to end first.
    Uploading,
    /// A paste has it.
    Used,
    /// It is gone.
    Gone,
}

impl Fate {
    /// By the state of a blob under its lock, and whether a paste has it.
    fn decide(state: &str, used: bool, blob: Blob) -> Self {
        match state {
            _ if used => Self::Used,
            "uploading" => Self::Uploading,
            _ => Self::Condemned(blob),
        }
    }
}

/// What sweepers look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stale {
    /// Pastes whose time is over.
    Expired,
    /// Pastes that failed more than 24 hours ago.
    Failed,
}

/// What the end of an upload writes.
struct EndOfUpload {
    blob_state: &'static str,
    status: &'static str,
    s3_url: Option<String>,
}

impl EndOfUpload {
    fn of(end: &redrive::End) -> Self {
        match end.output::<String>() {
            Some(url) => Self { blob_state: "stored", status: "PROCESSED", s3_url: Some(url) },
            None => Self { blob_state: "failed", status: "FAILED", s3_url: None },
        }
    }
}

fn corrupt(what: &str) -> Error {
    redrive::StoreError::Corrupt(what.to_owned()).into()
}
