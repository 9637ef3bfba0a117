//! The object store: a folder or a bucket. It never retries by itself, so that an attempt of a job is one request. Every call has a
//! timeout.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    ClientOptions, MultipartUpload, ObjectStore, ObjectStoreExt as _, PutPayload, RetryConfig,
};
use tokio::time::timeout;

/// The largest object that is sent in one request. Larger ones are streamed in parts of this size, the smallest that S3 accepts.
const REQUEST_BYTES: usize = 5 * 1024 * 1024;
/// The timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait for the next bytes of an object.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// The timeout of a removal, and of the removal of parts after a failure.
const DELETE_TIMEOUT: Duration = Duration::from_secs(5);

/// An object store.
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    address: String,
    upload_timeout: Duration,
}

/// Why an object could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// The object store failed.
    #[error(transparent)]
    Store(ObjectError),
    /// The content could not be read from the database.
    #[error(transparent)]
    Source(redrive::Error),
}

/// Why a call to the object store failed.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// There is no such object.
    #[error("the object does not exist")]
    NotFound,
    /// The object store failed. A retry may succeed.
    #[error("the object store failed: {}", causes(.0))]
    Failed(#[source] object_store::Error),
    /// The call took too long.
    #[error("the object store did not answer within {0:?}")]
    TooSlow(Duration),
}

/// The text of an error with its causes, because only the text is stored with an attempt.
fn causes(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

impl From<object_store::Error> for ObjectError {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::NotFound,
            error => Self::Failed(error),
        }
    }
}

impl Objects {
    /// Opens `file:FOLDER` or `s3://BUCKET`.
    pub fn open(address: &str, upload_timeout: Duration) -> anyhow::Result<Self> {
        let store = match address.split_once(':') {
            Some(("file", folder)) if !folder.is_empty() => open_folder(folder)?,
            Some(("s3", bucket)) => open_bucket(bucket.trim_start_matches('/'))?,
            Some(_) | None => {
                anyhow::bail!("{address:?} is not an object store; use file:FOLDER or s3://BUCKET")
            }
        };
        Ok(Self::new(store, address, upload_timeout))
    }

    /// Uses a store that is open already. It should not retry by itself, because that makes attempts last longer.
    pub fn new(store: Arc<dyn ObjectStore>, address: &str, upload_timeout: Duration) -> Self {
        Self { store, address: address.trim_end_matches('/').to_owned(), upload_timeout }
    }

    /// The address of an object.
    pub fn url(&self, key: &str) -> String {
        format!("{}/{key}", self.address)
    }

    /// The timeout of an upload.
    pub fn upload_timeout(&self) -> Duration {
        self.upload_timeout
    }

    /// Stores an object of `size` bytes, completely or not at all.
    pub async fn put(
        &self,
        key: &str,
        size: u64,
        parts: impl Stream<Item = Result<Bytes, redrive::Error>> + Send,
    ) -> Result<(), PutError> {
        let path = Path::from(key);
        if size <= REQUEST_BYTES as u64 {
            let whole: Vec<Bytes> = parts.try_collect().await.map_err(PutError::Source)?;
            let put = self.store.put(&path, PutPayload::from_iter(whole));
            return self.with_timeout(put).await.map(|_| ()).map_err(PutError::Store);
        }
        let mut upload = self.with_timeout(self.store.put_multipart(&path)).await.map_err(PutError::Store)?;
        let put = match timeout(self.upload_timeout, put_parts(&mut *upload, parts)).await {
            Ok(put) => put,
            Err(_) => Err(PutError::Store(ObjectError::TooSlow(self.upload_timeout))),
        };
        if put.is_err() {
            // Removes the parts of the failed upload. If that fails too, a lifecycle rule of the bucket must remove them.
            let _ = timeout(DELETE_TIMEOUT, upload.abort()).await;
        }
        put
    }

    async fn with_timeout<T>(
        &self,
        call: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, ObjectError> {
        let called = timeout(self.upload_timeout, call).await;
        called.map_err(|_| ObjectError::TooSlow(self.upload_timeout))?.map_err(ObjectError::from)
    }

    /// Streams an object. Returns when the first bytes have arrived.
    pub async fn get(
        &self,
        key: &str,
    ) -> Result<BoxStream<'static, Result<Bytes, ObjectError>>, ObjectError> {
        let path = Path::from(key);
        let got = timeout(READ_TIMEOUT, self.store.get(&path))
            .await
            .map_err(|_| ObjectError::TooSlow(READ_TIMEOUT))??;
        let mut chunks = with_chunk_timeout(got.into_stream());
        match chunks.next().await {
            Some(Ok(first)) => Ok(futures_util::stream::iter([Ok(first)]).chain(chunks).boxed()),
            Some(Err(error)) => Err(error),
            None => Ok(chunks),
        }
    }

    /// Removes an object. Succeeds if there is none.
    pub async fn delete(&self, key: &str) -> Result<(), ObjectError> {
        let path = Path::from(key);
        match timeout(DELETE_TIMEOUT, self.store.delete(&path)).await {
            Ok(Ok(()) | Err(object_store::Error::NotFound { .. })) => Ok(()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(ObjectError::TooSlow(DELETE_TIMEOUT)),
        }
    }
}

/// The chunks of an object, each with a timeout.
fn with_chunk_timeout(
    chunks: BoxStream<'static, Result<Bytes, object_store::Error>>,
) -> BoxStream<'static, Result<Bytes, ObjectError>> {
    futures_util::stream::unfold(chunks, async |mut chunks| {
        match timeout(READ_TIMEOUT, chunks.next()).await {
            Ok(chunk) => chunk.map(|chunk| (chunk.map_err(ObjectError::from), chunks)),
            Err(_) => Some((Err(ObjectError::TooSlow(READ_TIMEOUT)), futures_util::stream::empty().boxed())),
        }
    })
    .boxed()
}

async fn put_parts(
    upload: &mut dyn MultipartUpload,
    parts: impl Stream<Item = Result<Bytes, redrive::Error>> + Send,
) -> Result<(), PutError> {
    let failed = |error| PutError::Store(ObjectError::from(error));
    let mut parts = std::pin::pin!(parts);
    let (mut buffered, mut bytes) = (Vec::new(), 0);
    while let Some(part) = parts.try_next().await.map_err(PutError::Source)? {
        bytes += part.len();
        buffered.push(part);
        if bytes >= REQUEST_BYTES {
            let payload = PutPayload::from_iter(std::mem::take(&mut buffered));
            upload.put_part(payload).await.map_err(failed)?;
            bytes = 0;
        }
    }
    if !buffered.is_empty() {
        upload.put_part(PutPayload::from_iter(buffered)).await.map_err(failed)?;
    }
    upload.complete().await.map(|_| ()).map_err(failed)
}

/// Opens a folder. Writes are synced to disk.
fn open_folder(folder: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::canonicalize(folder))
        .and_then(|folder| Ok(LocalFileSystem::new_with_prefix(folder)?))
        .map(|store| Arc::new(store.with_fsync(true)) as Arc<dyn ObjectStore>)
        .with_context(|| format!("cannot create the folder {folder} for objects; choose a writable folder"))
}

fn open_bucket(bucket: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
    // The client has no TLS provider of its own. This call changes nothing if the process has already installed one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let endpoint =
        ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().find_map(std::env::var_os);
    let allows_http = endpoint.is_some_and(|url| url.as_encoded_bytes().starts_with(b"http://"));
    // This module has its own timeouts. The timeout of the client would end the download of a slow reader.
    let options = ClientOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout_disabled()
        .with_allow_http(allows_http);
    let no_retries = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let store = AmazonS3Builder::from_env()
        .with_client_options(options)
        .with_retry(no_retries)
        .with_bucket_name(bucket)
        .build()
        .context("cannot use the bucket; set AWS_REGION, AWS_ENDPOINT_URL and the credentials")?;
    Ok(Arc::new(store))
}
