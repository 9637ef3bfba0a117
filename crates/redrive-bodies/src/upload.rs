//! Uploads a body: its record first, then the object.

use std::convert::Infallible;
use std::pin::pin;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use object_store::{Error, ObjectStoreExt as _, PutPayload, PutPayloadMut, WriteMultipart};
use redrive_core::records::Records;
use redrive_core::store::BoxError;
use redrive_core::{RecordStore, StoreError, Tenant, Timestamp};
use ring::digest::{Context, SHA256};
use uuid::Uuid;

use super::attach::{BodyRecord, BodyState};
use super::{BODY_BYTES_MAX, Bodies, BodyRef, PART_BYTES, PARTS_IN_PROGRESS, id_of, path};

impl Bodies {
    /// Stores a stream of up to [`BODY_BYTES_MAX`] bytes, without holding all of it in memory.
    ///
    /// The record is written first, so that every object has one. The object is visible only once it is complete.
    pub async fn put<E: Into<BoxError>>(
        &self,
        records: &dyn RecordStore,
        tenant: &Tenant,
        stream: impl Stream<Item = Result<Bytes, E>> + Send,
        now: Timestamp,
    ) -> Result<BodyRef, PutError> {
        let uuid = Uuid::now_v7();
        let id = id_of(tenant, uuid);
        let mut record = BodyRecord {
            tenant: tenant.clone(),
            created_at_ms: now.as_ms(),
            touched_at_ms: now.as_ms(),
            state: BodyState::Uploading,
            tasks: vec![],
            location: Some(self.location.clone()),
            may_have_other_user: false,
        };
        let version = Records::new(records).create(&id, &record).await?.ok_or_else(deleted_during_upload)?;
        match self.upload(&id, stream).await {
            Ok((length, sha256)) => {
                let body = BodyRef::new(uuid, length, sha256);
                record.state = BodyState::Stored { body };
                Records::new(records)
                    .replace(&id, version, &record)
                    .await?
                    .ok_or_else(deleted_during_upload)?;
                Ok(body)
            }
            Err(error) => {
                // If this fails, the collector deletes both later.
                if self.remove_object(&id).await.is_ok() {
                    let _ = Records::<BodyRecord>::new(records).remove_version(&id, version).await;
                }
                Err(error)
            }
        }
    }

    /// Stores bytes, like [`Bodies::put`] stores a stream.
    pub async fn put_bytes(
        &self,
        records: &dyn RecordStore,
        tenant: &Tenant,
        bytes: impl Into<Bytes>,
        now: Timestamp,
    ) -> Result<BodyRef, PutError> {
        let once = stream::iter([Ok::<_, Infallible>(bytes.into())]);
        self.put(records, tenant, once, now).await
    }

    async fn upload<E: Into<BoxError>>(
        &self,
        id: &str,
        stream: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<(u64, [u8; 32]), PutError> {
        let mut meter = UploadMeter::new();
        let mut stream = pin!(stream);
        let mut first = PutPayloadMut::new();
        while first.content_length() < PART_BYTES {
            match meter.next(&mut stream).await? {
                Some(chunk) => first.push(chunk),
                // Most bodies fit into one part, and need one request instead of three.
                None => {
                    self.store.put(&path(id), first.freeze()).await?;
                    return Ok(meter.finish());
                }
            }
        }
        let mut upload =
            WriteMultipart::new_with_chunk_size(self.store.put_multipart(&path(id)).await?, PART_BYTES);
        match fill(&mut upload, first.freeze(), &mut meter, &mut stream).await {
            Ok(()) => upload.finish().await?,
            Err(error) => {
                let _ = upload.abort().await;
                return Err(error);
            }
        };
        Ok(meter.finish())
    }
}

/// Why a body was not stored or deleted.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// The body is too large.
    #[error("the body is larger than {BODY_BYTES_MAX} bytes")]
    TooLarge,
    /// The object store or the store of the records failed.
    #[error("the body could not be stored; try again")]
    Store(#[source] BoxError),
    /// The stream ended with an error.
    #[error("the upload was interrupted; send the body again")]
    Interrupted(#[source] BoxError),
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

/// Counts and digests the bytes of an upload.
struct UploadMeter {
    length: u64,
    digest: Context,
}

impl UploadMeter {
    fn new() -> Self {
        Self { length: 0, digest: Context::new(&SHA256) }
    }

    async fn next<E: Into<BoxError>>(
        &mut self,
        stream: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin),
    ) -> Result<Option<Bytes>, PutError> {
        let Some(chunk) = stream.next().await else { return Ok(None) };
        let chunk = chunk.map_err(|error| PutError::Interrupted(error.into()))?;
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

async fn fill<E: Into<BoxError>>(
    upload: &mut WriteMultipart,
    first: PutPayload,
    meter: &mut UploadMeter,
    stream: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin),
) -> Result<(), PutError> {
    first.into_iter().for_each(|chunk| upload.put(chunk));
    while let Some(chunk) = meter.next(stream).await? {
        upload.wait_for_capacity(PARTS_IN_PROGRESS).await?;
        upload.put(chunk);
    }
    Ok(())
}

/// The error if the record of an upload has changed: only the collector changes it, if the upload takes longer than
/// [`super::ORPHAN_AGE`].
fn deleted_during_upload() -> PutError {
    PutError::Store("the body was deleted before its upload was complete".into())
}
