//! The object store: a folder or a bucket. It never tries again by itself, so that an attempt of a job is one request, and
//! it never hangs.

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

/// Bytes that go in one request; what is larger is streamed in parts of this size, the least that S3 takes.
const REQUEST_BYTES: usize = 5 * 1024 * 1024;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);
/// How long an object may take to begin, or to go on.
const READ: Duration = Duration::from_secs(2);
/// How long a removal may take, and the clearing away of parts after a failure.
const DELETE: Duration = Duration::from_secs(5);

/// Where objects are.
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    address: String,
    upload_timeout: Duration,
}

/// Why an object could not be put.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// The object store failed.
    #[error(transparent)]
    Store(ObjectError),
    /// What was to be put could not be read.
    #[error(transparent)]
    Source(redrive::Error),
}

/// Why the object store did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// There is no such object.
    #[error("there is no such object")]
    NotFound,
    /// It failed; another try may work.
    #[error("the object store failed: {}", causes(.0))]
    Failed(#[source] object_store::Error),
    /// It took too long.
    #[error("the object store did not answer within {0:?}")]
    TooSlow(Duration),
}

/// Only the text of an error is kept with an attempt, so that it has its causes in it.
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
    /// The objects at `file:FOLDER` or `s3://BUCKET`.
    pub fn open(address: &str, upload_timeout: Duration) -> anyhow::Result<Self> {
        let store = match address.split_once(':') {
            Some(("file", folder)) if !folder.is_empty() => folder_at(folder)?,
            Some(("s3", bucket)) => bucket_at(bucket.trim_start_matches('/'))?,
            Some(_) | None => {
                anyhow::bail!("{address:?} is no place for objects; use file:FOLDER or s3://BUCKET")
            }
        };
        Ok(Self::on(store, address, upload_timeout))
    }

    /// The objects in a store that is open already; one that tries again by itself makes attempts last longer.
    pub fn on(store: Arc<dyn ObjectStore>, address: &str, upload_timeout: Duration) -> Self {
        Self { store, address: address.trim_end_matches('/').to_owned(), upload_timeout }
    }

    /// The address of an object.
    pub fn url(&self, key: &str) -> String {
        format!("{}/{key}", self.address)
    }

    /// How long an object may take to be put.
    pub fn upload_timeout(&self) -> Duration {
        self.upload_timeout
    }

    /// Puts an object of `size` bytes. It is there whole or not at all.
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
            return self.in_time(put).await.map(|_| ()).map_err(PutError::Store);
        }
        let mut upload = self.in_time(self.store.put_multipart(&path)).await.map_err(PutError::Store)?;
        let put = match timeout(self.upload_timeout, put_parts(&mut *upload, parts)).await {
            Ok(put) => put,
            Err(_) => Err(PutError::Store(ObjectError::TooSlow(self.upload_timeout))),
        };
        if put.is_err() {
            // Parts of an object that never came to be cost room; what cannot be cleared now is the bucket's to expire.
            let _ = timeout(DELETE, upload.abort()).await;
        }
        put
    }

    async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, ObjectError> {
        let called = timeout(self.upload_timeout, call).await;
        called.map_err(|_| ObjectError::TooSlow(self.upload_timeout))?.map_err(ObjectError::from)
    }

    /// The bytes of an object, as they come; the first have come when this returns.
    pub async fn get(
        &self,
        key: &str,
    ) -> Result<BoxStream<'static, Result<Bytes, ObjectError>>, ObjectError> {
        let path = Path::from(key);
        let got = timeout(READ, self.store.get(&path)).await.map_err(|_| ObjectError::TooSlow(READ))??;
        let mut chunks = paced(got.into_stream());
        match chunks.next().await {
            Some(Ok(first)) => Ok(futures_util::stream::iter([Ok(first)]).chain(chunks).boxed()),
            Some(Err(error)) => Err(error),
            None => Ok(chunks),
        }
    }

    /// Removes an object; one that is not there is removed.
    pub async fn delete(&self, key: &str) -> Result<(), ObjectError> {
        let path = Path::from(key);
        match timeout(DELETE, self.store.delete(&path)).await {
            Ok(Ok(()) | Err(object_store::Error::NotFound { .. })) => Ok(()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(ObjectError::TooSlow(DELETE)),
        }
    }
}

/// The chunks of an object, none of which may take too long.
fn paced(
    chunks: BoxStream<'static, Result<Bytes, object_store::Error>>,
) -> BoxStream<'static, Result<Bytes, ObjectError>> {
    futures_util::stream::unfold(chunks, async |mut chunks| match timeout(READ, chunks.next()).await {
        Ok(chunk) => chunk.map(|chunk| (chunk.map_err(ObjectError::from), chunks)),
        Err(_) => Some((Err(ObjectError::TooSlow(READ)), futures_util::stream::empty().boxed())),
    })
    .boxed()
}

async fn put_parts(
    upload: &mut dyn MultipartUpload,
    parts: impl Stream<Item = Result<Bytes, redrive::Error>> + Send,
) -> Result<(), PutError> {
    let failed = |error| PutError::Store(ObjectError::from(error));
    let mut parts = std::pin::pin!(parts);
    let (mut gathered, mut bytes) = (Vec::new(), 0);
    while let Some(part) = parts.try_next().await.map_err(PutError::Source)? {
        bytes += part.len();
        gathered.push(part);
        if bytes >= REQUEST_BYTES {
            let payload = PutPayload::from_iter(std::mem::take(&mut gathered));
            upload.put_part(payload).await.map_err(failed)?;
            bytes = 0;
        }
    }
    if !gathered.is_empty() {
        upload.put_part(PutPayload::from_iter(gathered)).await.map_err(failed)?;
    }
    upload.complete().await.map(|_| ()).map_err(failed)
}

/// What is acknowledged is on disk.
fn folder_at(folder: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::canonicalize(folder))
        .and_then(|folder| Ok(LocalFileSystem::new_with_prefix(folder)?))
        .map(|store| Arc::new(store.with_fsync(true)) as Arc<dyn ObjectStore>)
        .with_context(|| {
            format!("the folder {folder} for objects cannot be made; choose one that can be written")
        })
}

fn bucket_at(bucket: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
    // The client has no provider of its own. One that the process installed before stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let endpoint =
        ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().find_map(std::env::var_os);
    let plain = endpoint.is_some_and(|url| url.as_encoded_bytes().starts_with(b"http://"));
    // Timeouts are this module's: the client's would end the download of a slow reader.
    let options =
        ClientOptions::new().with_connect_timeout(CONNECT).with_timeout_disabled().with_allow_http(plain);
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let store = AmazonS3Builder::from_env()
        .with_client_options(options)
        .with_retry(once)
        .with_bucket_name(bucket)
        .build()
        .context("the bucket cannot be addressed; set AWS_REGION, AWS_ENDPOINT_URL and the credentials")?;
    Ok(Arc::new(store))
}
