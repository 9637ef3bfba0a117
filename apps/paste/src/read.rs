//! Reads content: from memory where it is, else from the object store behind a breaker.

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

/// Bytes of content that a node keeps in memory.
const CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What a reader is told to wait after a failure that has not opened the breaker.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What a node remembers of what it has read.
pub struct Reads {
    cache: Mutex<Cache>,
    breaker: Mutex<Breaker>,
}

impl Default for Reads {
    fn default() -> Self {
        Self { cache: Mutex::new(Cache::new(CACHE_BYTES_MAX)), breaker: Mutex::default() }
    }
}

/// The bytes of a content.
pub enum Readable {
    /// All of them.
    Whole(Bytes),
    /// As they come.
    Stream(BoxStream<'static, Result<Bytes, ObjectError>>),
}

/// The content cannot be read now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotNow {
    /// It may be worth another try after this.
    pub retry_after: Duration,
}

impl Site {
    /// The content of a blob. While the object store keeps failing the answer is no, at once.
    pub async fn read(&self, blob: &Blob) -> Result<Readable, NotNow> {
        if let Some(content) = lock(&self.reads.cache).get(blob.id) {
            return Ok(Readable::Whole(content));
        }
        lock(&self.reads.breaker).admit(Instant::now()).map_err(|retry_after| NotNow { retry_after })?;
        match self.fetch(blob).await {
            Ok(content) => {
                lock(&self.reads.breaker).succeeded();
                Ok(content)
            }
            Err(error) => {
                tracing::warn!(%error, blob = %blob.id, "content could not be read");
                match error {
                    ObjectError::NotFound => lock(&self.reads.breaker).succeeded(),
                    ObjectError::Failed(_) | ObjectError::TooSlow(_) => {
                        lock(&self.reads.breaker).failed(Instant::now());
                    }
                }
                Err(NotNow { retry_after: AFTER_FAILURE })
            }
        }
    }

    /// A small content as a whole, which is kept; a large one as it comes.
    async fn fetch(&self, blob: &Blob) -> Result<Readable, ObjectError> {
        let chunks = self.objects.get(&blob.key()).await?;
        if blob.size > ITEM_BYTES_MAX as u64 {
            return Ok(Readable::Stream(chunks));
        }
        let content: Vec<Bytes> = chunks.try_collect().await?;
        let content = Bytes::from(content.concat());
        if Sha256::digest(&content)[..] != blob.sha256 {
            tracing::error!(blob = %blob.id, "the object store has another content than was put there");
            return Err(ObjectError::NotFound);
        }
        lock(&self.reads.cache).put(blob.id, content.clone());
        Ok(Readable::Whole(content))
    }
}

impl Readable {
    /// The bytes as they come, each chunk changed on its way.
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
