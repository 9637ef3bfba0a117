//! Reads content: from the cache, or from the object store through a circuit breaker.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::breaker::Breaker;
use crate::cache::{Cache, ITEM_BYTES_MAX};
use crate::database::Blob;
use crate::objects::ObjectError;
use crate::site::Site;

/// The size of the cache.
const CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// `Retry-After` after a failure while the breaker does not block.
const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The cache and the breaker of a node.
pub struct ContentReader {
    cache: Mutex<Cache>,
    breaker: Mutex<Breaker>,
}

impl Default for ContentReader {
    fn default() -> Self {
        Self { cache: Mutex::new(Cache::new(CACHE_BYTES_MAX)), breaker: Mutex::default() }
    }
}

/// The bytes of a content.
pub enum ContentBytes {
    /// All bytes.
    Whole(Bytes),
    /// The bytes as they arrive.
    Stream(BoxStream<'static, Result<Bytes, ObjectError>>),
}

/// The content cannot be read now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentUnavailable {
    /// When to try again.
    pub retry_after: Duration,
}

impl Site {
    /// Reads the content of a blob. Fails at once while the object store keeps failing.
    pub async fn read(&self, blob: &Blob) -> Result<ContentBytes, ContentUnavailable> {
        if let Some(content) = lock(&self.reader.cache).get(blob.id) {
            return Ok(ContentBytes::Whole(content));
        }
        lock(&self.reader.breaker)
            .admit(Instant::now())
            .map_err(|retry_after| ContentUnavailable { retry_after })?;
        match self.fetch(blob).await {
            Ok(content) => {
                lock(&self.reader.breaker).succeeded();
                Ok(content)
            }
            Err(error) => {
                tracing::warn!(%error, blob = %blob.id, "could not read content from the object store");
                match error {
                    ObjectError::NotFound => lock(&self.reader.breaker).succeeded(),
                    ObjectError::Failed(_) | ObjectError::TooSlow(_) => {
                        lock(&self.reader.breaker).failed(Instant::now());
                    }
                }
                Err(ContentUnavailable { retry_after: RETRY_AFTER_FAILURE })
            }
        }
    }

    /// Reads a small content as a whole and caches it. Streams a large one.
    async fn fetch(&self, blob: &Blob) -> Result<ContentBytes, ObjectError> {
        let chunks = self.objects.get(&blob.key()).await?;
        if blob.size > ITEM_BYTES_MAX as u64 {
            return Ok(ContentBytes::Stream(chunks));
        }
        let content: Vec<Bytes> = chunks.try_collect().await?;
        let content = Bytes::from(content.concat());
        if Sha256::digest(&content)[..] != blob.sha256 {
            tracing::error!(blob = %blob.id, "the object in the object store does not have the hash of its blob");
            return Err(ObjectError::NotFound);
        }
        lock(&self.reader.cache).put(blob.id, content.clone());
        Ok(ContentBytes::Whole(content))
    }
}

impl ContentBytes {
    /// The bytes as a stream, with `change` applied to each chunk.
    pub fn map(self, change: fn(&Bytes) -> Bytes) -> BoxStream<'static, Result<Bytes, ObjectError>> {
        match self {
            Self::Whole(content) => futures_util::stream::iter([Ok(change(&content))]).boxed(),
            Self::Stream(chunks) => chunks.map_ok(move |chunk| change(&chunk)).boxed(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
