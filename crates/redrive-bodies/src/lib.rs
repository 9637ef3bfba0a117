//! Bodies too large for a row, in an object store: body first, then row, and checked before they are sent.

mod address;
mod claim;
mod collect;
mod encoding;
mod place;
mod reference;
mod tenant;
mod whole;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, TryStreamExt};
use http_body::Frame;
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, ObjectStore, ObjectStoreExt, PutPayload, PutPayloadMut, WriteMultipart,
};
use redrive_core::records::{Expect, Written};
use redrive_core::store::Cause;
use redrive_core::{Records, StoreError, Tenant, Timestamp};
use ring::digest::{Context, SHA256};
use uuid::Uuid;

pub use address::OpenError;
use claim::{BodyState, Held};
pub use claim::{ClaimError, claim_for, claim_for_replacement, confirm_user, release};
pub use collect::ORPHAN_AGE;
pub use encoding::hex;
pub use place::{MARKER_FILE, Place};
pub use reference::BodyRef;
pub use tenant::folder;

/// The kind of the records, one for each body.
pub const KIND: &str = "body";
/// Bytes of one body.
pub const BODY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Tasks that may use one body.
pub const TASKS_MAX: usize = 1_000;

/// Bytes of a body that is read once only, since so much may be held in memory for each call under way.
const KEPT_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes sent to the store at once; S3 takes no smaller parts.
const PART_BYTES: usize = 5 * 1024 * 1024;
/// Parts under way at once: with the one that fills up, what an upload holds in memory.
const PARTS_UNDER_WAY: usize = 2;
/// Bytes that an upload holds in memory, however long it is.
pub const UPLOAD_BYTES_HELD_MAX: usize = PART_BYTES * (PARTS_UNDER_WAY + 1);

/// The object store with the bodies. Clones share it.
#[derive(Debug, Clone)]
pub struct Bodies {
    store: Arc<dyn ObjectStore>,
    /// The folder of a file store.
    folder: Option<PathBuf>,
    place: Place,
}

impl Bodies {
    /// Opens `file:FOLDER` (and makes the folder), `s3://BUCKET/PREFIX` (with the usual `AWS_…` variables), or `memory:`.
    pub fn open(address: &str) -> Result<Self, OpenError> {
        address::connect(address)
    }

    /// Where the bodies are.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The place that an address names, without making anything; none for a folder that holds no bodies yet, and for memory.
    pub fn look(address: &str) -> Result<Option<Place>, OpenError> {
        address::look(address)
    }

    /// Stores what `stream` brings, up to [`BODY_BYTES_MAX`], without ever holding the whole of it.
    ///
    /// The record comes first, so that no object is ever without one; nothing is visible before it is whole.
    pub async fn put<E: Into<Cause>>(
        &self,
        records: &dyn Records,
        tenant: &Tenant,
        stream: impl Stream<Item = Result<Bytes, E>> + Send,
        now: Timestamp,
    ) -> Result<BodyRef, PutError> {
        let at = Uuid::now_v7();
        let id = id_of(tenant, at);
        let mut held = Held {
            tenant: tenant.clone(),
            created_at_ms: now.as_ms(),
            touched_at_ms: now.as_ms(),
            state: BodyState::Uploading,
            tasks: vec![],
            place: Some(self.place.clone()),
            may_have_other_user: false,
        };
        let version = expect_done(held.write(records, id.clone(), Expect::Absent).await?)?;
        match self.upload(&id, stream).await {
            Ok((length, sha256)) => {
                let body = BodyRef::new(at, length, sha256);
                held.state = BodyState::Stored { body };
                expect_done(held.write(records, id, Expect::Version(version)).await?)?;
                Ok(body)
            }
            Err(error) => {
                // What cannot be undone now is collected later.
                if self.remove_object(&id).await.is_ok() {
                    let _ = claim::remove(records, &id, version).await;
                }
                Err(error)
            }
        }
    }

    /// The body as a stream of exactly its length, unchecked otherwise.
    pub async fn get(
        &self,
        records: &dyn Records,
        body: &BodyRef,
        tenant: &Tenant,
    ) -> Result<StoredBody, GetError> {
        self.fetch(records, body, tenant, None).await.map(|(stored, _)| stored)
    }

    /// The body, after its length and SHA-256 were checked: it is read through once, then streamed afresh.
    ///
    /// A request streams, so a damaged body must be found before the first byte is sent. The second pass over a file
    /// comes out of the page cache; from S3 it is a second download. A body of up to 1 MiB is kept from the first.
    pub async fn verified(
        &self,
        records: &dyn Records,
        body: &BodyRef,
        tenant: &Tenant,
    ) -> Result<StoredBody, GetError> {
        self.verified_with(records, body, tenant, |_| ()).await
    }

    /// Like [`Bodies::verified`], and shows each part on the first pass, for a signature over the whole body.
    pub async fn verified_with(
        &self,
        records: &dyn Records,
        body: &BodyRef,
        tenant: &Tenant,
        mut look: impl FnMut(&[u8]) + Send,
    ) -> Result<StoredBody, GetError> {
        let (stored, tag) = self.fetch(records, body, tenant, None).await?;
        let mut digest = Context::new(&SHA256);
        let mut kept = vec![];
        let mut stream = stored.stream;
        while let Some(chunk) = stream.try_next().await.map_err(sort)? {
            digest.update(&chunk);
            look(&chunk);
            if body.length() <= KEPT_BYTES_MAX {
                kept.push(Ok(chunk));
            }
        }
        if digest.finish().as_ref() != body.sha256() {
            return Err(GetError::Lost(format!("body {body} is stored with other content")));
        }
        if body.length() <= KEPT_BYTES_MAX {
            let stream = futures_util::stream::iter(kept).boxed();
            return Ok(StoredBody { length: body.length(), stream });
        }
        // The tag pins what was checked: an object that is replaced between the passes is not sent.
        self.fetch(records, body, tenant, tag).await.map(|(stored, _)| stored)
    }

    /// Whether the store has the body, in its length.
    pub async fn exists(&self, body: &BodyRef, tenant: &Tenant) -> Result<bool, GetError> {
        match self.store.head(&path(&record_id(tenant, body))).await.map_err(Into::into).map_err(sort) {
            Ok(meta) => Ok(meta.size == body.length()),
            Err(GetError::Lost(_)) => Ok(false),
            Err(error @ (GetError::Unavailable(_) | GetError::Elsewhere { .. })) => Err(error),
        }
    }

    /// Deletes the body and its record, whoever uses it. Deleting what is gone is fine.
    pub async fn delete(
        &self,
        records: &dyn Records,
        body: &BodyRef,
        tenant: &Tenant,
    ) -> Result<(), PutError> {
        let id = record_id(tenant, body);
        self.remove_object(&id).await.map_err(|error| PutError::Store(Box::new(error)))?;
        if let Some(record) = records.read(KIND, &id).await? {
            claim::remove(records, &id, record.version).await?;
        }
        Ok(())
    }

    async fn upload<E: Into<Cause>>(
        &self,
        id: &str,
        stream: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<(u64, [u8; 32]), PutError> {
        let mut metered = Metered::new();
        let mut stream = pin!(stream);
        let mut first = PutPayloadMut::new();
        while first.content_length() < PART_BYTES {
            match metered.next(&mut stream).await? {
                Some(chunk) => first.push(chunk),
                // Most bodies end here: one request instead of three.
                None => {
                    self.store.put(&path(id), first.freeze()).await?;
                    return Ok(metered.finish());
                }
            }
        }
        let mut upload =
            WriteMultipart::new_with_chunk_size(self.store.put_multipart(&path(id)).await?, PART_BYTES);
        match fill(&mut upload, first.freeze(), &mut metered, &mut stream).await {
            Ok(()) => upload.finish().await?,
            Err(error) => {
                let _ = upload.abort().await;
                return Err(error);
            }
        };
        Ok(metered.finish())
    }

    async fn fetch(
        &self,
        records: &dyn Records,
        body: &BodyRef,
        tenant: &Tenant,
        tag: Option<String>,
    ) -> Result<(StoredBody, Option<String>), GetError> {
        let options = GetOptions { if_match: tag, ..GetOptions::default() };
        let found = match self.store.get_opts(&path(&record_id(tenant, body)), options).await {
            Ok(found) => found,
            Err(error @ Error::NotFound { .. }) => {
                return Err(self.explain_absence(records, body, tenant, error).await);
            }
            Err(error) => return Err(sort(error.into())),
        };
        if found.meta.size != body.length() {
            let size = found.meta.size;
            return Err(GetError::Lost(format!("body {body} is stored with {size} bytes")));
        }
        let tag = found.meta.e_tag.clone();
        let length = body.length();
        Ok((StoredBody { length, stream: exactly(length, found.into_stream()) }, tag))
    }

    /// Why an object is not here. It is lost only if it was stored in this very place.
    async fn explain_absence(
        &self,
        records: &dyn Records,
        body: &BodyRef,
        tenant: &Tenant,
        error: Error,
    ) -> GetError {
        if let Some(folder) = self.folder.as_ref().filter(|folder| !self.place.is_at(folder)) {
            let what =
                format!("{} is not the folder that it was at the start; is it mounted?", folder.display());
            return GetError::Unavailable(what.into());
        }
        // S3 answers 404 for an object in a bucket that does not exist, too.
        if format!("{error:?}").contains("NoSuchBucket") {
            return GetError::Unavailable(Box::new(error));
        }
        let record = match records.read(KIND, &record_id(tenant, body)).await {
            Ok(record) => record,
            Err(error) => return GetError::Unavailable(Box::new(error)),
        };
        let stored = record.and_then(|record| Held::parse(&record).ok()?.place);
        match stored.filter(|place| place.id != self.place.id) {
            Some(stored) => GetError::Elsewhere { stored, here: self.place.clone() },
            None => GetError::Lost("the body is not in the object store".to_owned()),
        }
    }

    /// Deletes an object and what a crash left of its upload.
    async fn remove_object(&self, id: &str) -> Result<(), Error> {
        if let Some(folder) = &self.folder {
            // An unfinished upload to a file is there under this name; uploads of one object happen once.
            let _ = std::fs::remove_file(folder.join(format!("{id}#1")));
        }
        match self.store.delete(&path(id)).await {
            Err(Error::NotFound { .. }) => Ok(()),
            deleted => deleted,
        }
    }
}

/// A body on its way out of the store.
pub struct StoredBody {
    length: u64,
    stream: BoxStream<'static, std::io::Result<Bytes>>,
}

impl StoredBody {
    /// How many bytes will come.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The bytes. A stream that would be shorter or longer ends with an error instead.
    pub fn into_stream(self) -> BoxStream<'static, std::io::Result<Bytes>> {
        self.stream
    }

    /// The body of a request.
    pub fn into_body(self) -> UnsyncBoxBody<Bytes, std::io::Error> {
        UnsyncBoxBody::new(StreamBody::new(self.stream.map_ok(Frame::data)))
    }
}

impl std::fmt::Debug for StoredBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredBody").field("length", &self.length).finish_non_exhaustive()
    }
}

/// Why a body was not stored or deleted.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// It is too large.
    #[error("a body may have at most {BODY_BYTES_MAX} bytes")]
    TooLarge,
    /// The object store or the records failed.
    #[error("the body could not be stored; try again")]
    Store(#[source] Cause),
    /// The sender failed.
    #[error("the body broke off; send it again")]
    Broken(#[source] Cause),
}

impl From<Error> for PutError {
    fn from(error: Error) -> Self {
        Self::Store(Box::new(error))
    }
}

impl From<StoreError> for PutError {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}

/// Why a body was not found.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// It is missing or is not what it was: another try will not cure it.
    #[error("{0}")]
    Lost(String),
    /// It was stored in a place that is not this one: try again where that place can be reached.
    #[error(
        "the body was stored in {stored}, and it is not in {here}, which this node uses; start the node with the same --bodies, or copy the bodies"
    )]
    Elsewhere {
        /// Where it was stored.
        stored: Place,
        /// Where it was looked for.
        here: Place,
    },
    /// The store cannot be reached: try again.
    #[error("the object store is unavailable for now")]
    Unavailable(#[source] Cause),
}

/// Counts and digests what passes by.
struct Metered {
    length: u64,
    digest: Context,
}

impl Metered {
    fn new() -> Self {
        Self { length: 0, digest: Context::new(&SHA256) }
    }

    async fn next<E: Into<Cause>>(
        &mut self,
        stream: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin),
    ) -> Result<Option<Bytes>, PutError> {
        let Some(chunk) = stream.next().await else { return Ok(None) };
        let chunk = chunk.map_err(|error| PutError::Broken(error.into()))?;
        self.length += chunk.len() as u64;
        if self.length > BODY_BYTES_MAX {
            return Err(PutError::TooLarge);
        }
        self.digest.update(&chunk);
        Ok(Some(chunk))
    }

    fn finish(self) -> (u64, [u8; 32]) {
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(self.digest.finish().as_ref());
        (self.length, sha256)
    }
}

async fn fill<E: Into<Cause>>(
    upload: &mut WriteMultipart,
    first: PutPayload,
    metered: &mut Metered,
    stream: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin),
) -> Result<(), PutError> {
    first.into_iter().for_each(|chunk| upload.put(chunk));
    while let Some(chunk) = metered.next(stream).await? {
        upload.wait_for_capacity(PARTS_UNDER_WAY).await?;
        upload.put(chunk);
    }
    Ok(())
}

/// Passes on as many bytes as promised. Who promised a length to a peer must neither fall short nor go on.
fn exactly(
    length: u64,
    stream: BoxStream<'static, Result<Bytes, Error>>,
) -> BoxStream<'static, std::io::Result<Bytes>> {
    let wrong =
        || std::io::Error::new(std::io::ErrorKind::InvalidData, "the stored body changed while it was read");
    futures_util::stream::try_unfold((stream, length), move |(mut stream, left)| async move {
        match stream.try_next().await? {
            Some(chunk) => match left.checked_sub(chunk.len() as u64) {
                Some(left) => Ok(Some((chunk, (stream, left)))),
                None => Err(wrong()),
            },
            None if left == 0 => Ok(None),
            None => Err(wrong()),
        }
    })
    .boxed()
}

/// Missing or changed is lost; anything else may pass.
fn sort(error: std::io::Error) -> GetError {
    let lost = match error.kind() {
        std::io::ErrorKind::NotFound => Some("the body is not in the object store"),
        std::io::ErrorKind::InvalidData => Some("the body is stored with another length"),
        _ => match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
            Some(Error::Precondition { .. }) => Some("the body was replaced while it was read"),
            Some(_) | None => None,
        },
    };
    lost.map_or_else(|| GetError::Unavailable(Box::new(error)), |why| GetError::Lost(why.to_owned()))
}

fn record_id(tenant: &Tenant, body: &BodyRef) -> String {
    id_of(tenant, body.id())
}

/// The name of the object and of its record: a digest and a number, so nothing that a caller wrote.
fn id_of(tenant: &Tenant, id: Uuid) -> String {
    format!("{}/{}", folder(tenant), id.simple())
}

fn path(id: &str) -> Path {
    Path::from(id)
}

/// A record under a fresh id is touched by nobody else, unless the upload outlived [`ORPHAN_AGE`].
fn expect_done(written: Written) -> Result<u64, PutError> {
    match written {
        Written::Done(version) => Ok(version),
        Written::Conflict(_) => Err(PutError::Store("the body was collected before it was whole".into())),
    }
}

#[cfg(test)]
mod tests;
