//! Reads a body, and verifies its length and digest.

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use http_body::Frame;
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use object_store::{Error, GetOptions, ObjectStore as _};
use redrive_core::records::Records;
use redrive_core::store::BoxError;
use redrive_core::{RecordStore, StoreError, Tenant};
use ring::digest::{Context, SHA256, digest};

use super::attach::BodyRecord;
use super::{Bodies, BodyLocation, BodyRef, KEPT_BYTES_MAX, path, record_id};

impl Bodies {
    /// Reads the body as a stream of exactly its length. Does not verify its digest.
    pub async fn get(
        &self,
        records: &dyn RecordStore,
        body: &BodyRef,
        tenant: &Tenant,
    ) -> Result<StoredBody, GetError> {
        self.fetch(records, body, tenant, None).await.map(|(stored, _)| stored)
    }

    /// Reads the body and verifies its length and SHA-256, then returns it as a stream.
    ///
    /// A request streams the body, so a damaged body must be found before the first byte is sent. A body of up to 1 MiB stays in
    /// memory after the verification. A larger one is read a second time: a file from the page cache, an object of S3 with a
    /// second download.
    pub async fn get_verified(
        &self,
        records: &dyn RecordStore,
        body: &BodyRef,
        tenant: &Tenant,
    ) -> Result<StoredBody, GetError> {
        self.get_verified_with(records, body, tenant, |_| ()).await
    }

    /// Like [`Bodies::get_verified`]. Also calls `each_chunk` during the verification, for a signature over the whole body.
    pub async fn get_verified_with(
        &self,
        records: &dyn RecordStore,
        body: &BodyRef,
        tenant: &Tenant,
        mut each_chunk: impl FnMut(&[u8]) + Send,
    ) -> Result<StoredBody, GetError> {
        let (stored, tag) = self.fetch(records, body, tenant, None).await?;
        let mut digest = Context::new(&SHA256);
        let mut kept = vec![];
        let mut stream = stored.stream;
        while let Some(chunk) = stream.try_next().await.map_err(GetError::from_io)? {
            digest.update(&chunk);
            each_chunk(&chunk);
            if body.length() <= KEPT_BYTES_MAX {
                kept.push(Ok(chunk));
            }
        }
        if digest.finish().as_ref() != body.sha256() {
            return Err(GetError::Lost(format!("the content of body {body} has changed")));
        }
        if body.length() <= KEPT_BYTES_MAX {
            let stream = futures_util::stream::iter(kept).boxed();
            return Ok(StoredBody { length: body.length(), stream });
        }
        // The tag belongs to the verified object. If the object was replaced since, the second read fails.
        self.fetch(records, body, tenant, tag).await.map(|(stored, _)| stored)
    }

    /// Reads the whole body into memory and verifies its length and SHA-256.
    pub async fn get_bytes(
        &self,
        records: &dyn RecordStore,
        body: &BodyRef,
        tenant: &Tenant,
    ) -> Result<Vec<u8>, GetError> {
        let mut stream = self.get(records, body, tenant).await?.into_stream();
        let mut bytes = Vec::with_capacity(usize::try_from(body.length()).unwrap_or(0));
        while let Some(chunk) = stream.try_next().await.map_err(GetError::from_io)? {
            bytes.extend_from_slice(&chunk);
        }
        if digest(&SHA256, &bytes).as_ref() != body.sha256() {
            return Err(GetError::Lost(format!("the content of body {body} has changed")));
        }
        Ok(bytes)
    }

    async fn fetch(
        &self,
        records: &dyn RecordStore,
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
            Err(error) => return Err(GetError::from_io(error.into())),
        };
        if found.meta.size != body.length() {
            let size = found.meta.size;
            return Err(GetError::Lost(format!("body {body} has {size} bytes in the object store")));
        }
        let tag = found.meta.e_tag.clone();
        let length = body.length();
        Ok((StoredBody { length, stream: with_exact_length(length, found.into_stream()) }, tag))
    }

    /// Why an object is missing. It is lost only if it was stored in this location.
    async fn explain_absence(
        &self,
        records: &dyn RecordStore,
        body: &BodyRef,
        tenant: &Tenant,
        error: Error,
    ) -> GetError {
        if let Some(folder) = self.folder.as_ref().filter(|folder| !self.location.is_at(folder)) {
            let what = format!(
                "{} is not the folder that it was when the node started; check that it is mounted",
                folder.display()
            );
            return GetError::Unavailable(what.into());
        }
        // S3 also answers 404 if the bucket does not exist.
        if format!("{error:?}").contains("NoSuchBucket") {
            return GetError::Unavailable(Box::new(error));
        }
        let stored = match Records::<BodyRecord>::new(records).get(&record_id(tenant, body)).await {
            Ok(record) => record.and_then(|record| record.value.location),
            Err(StoreError::Corrupt(_)) => None,
            Err(error) => return GetError::Unavailable(Box::new(error)),
        };
        match stored.filter(|location| location.id != self.location.id) {
            Some(stored) => GetError::OtherLocation { stored, here: self.location.clone() },
            None => GetError::Lost("the body is not in the object store".to_owned()),
        }
    }
}

/// A body that is read from the object store.
pub struct StoredBody {
    length: u64,
    stream: BoxStream<'static, std::io::Result<Bytes>>,
}

impl StoredBody {
    /// The length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The bytes. If their number differs from the length, the stream ends with an error.
    pub fn into_stream(self) -> BoxStream<'static, std::io::Result<Bytes>> {
        self.stream
    }

    /// The bytes as the body of a request.
    pub fn into_body(self) -> UnsyncBoxBody<Bytes, std::io::Error> {
        UnsyncBoxBody::new(StreamBody::new(self.stream.map_ok(Frame::data)))
    }
}

impl std::fmt::Debug for StoredBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredBody").field("length", &self.length).finish_non_exhaustive()
    }
}

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// The body is missing or damaged. A repeat cannot succeed.
    #[error("{0}")]
    Lost(String),
    /// The body was stored in another location than that of this node. A node with the other location can read it.
    #[error(
        "the body was stored in {stored}, but this node uses {here}; start the node with the same --bodies, or copy the bodies"
    )]
    OtherLocation {
        /// Where it was stored.
        stored: BodyLocation,
        /// The location of this node.
        here: BodyLocation,
    },
    /// The object store cannot be reached. A repeat may succeed.
    #[error("the object store is unavailable; try again")]
    Unavailable(#[source] BoxError),
}

impl GetError {
    /// A missing or changed object is lost. Any other error may pass.
    pub(super) fn from_io(error: std::io::Error) -> Self {
        let lost = match error.kind() {
            std::io::ErrorKind::NotFound => Some("the body is not in the object store"),
            std::io::ErrorKind::InvalidData => Some("the body has another length in the object store"),
            _ => match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
                Some(Error::Precondition { .. }) => Some("the body was replaced while it was read"),
                Some(_) | None => None,
            },
        };
        lost.map_or_else(|| Self::Unavailable(Box::new(error)), |why| Self::Lost(why.to_owned()))
    }
}

/// Limits a stream to exactly `length` bytes. Fails if it has fewer or more, because the length was already sent to the peer.
pub(super) fn with_exact_length(
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
