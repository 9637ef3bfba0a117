//! Bodies that are at hand as a whole, for callers that need all of one at once.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use redrive_core::{Records, Tenant, Timestamp};
use ring::digest::{SHA256, digest};

use super::{Bodies, BodyRef, GetError, PutError, sort};

impl Bodies {
    /// Stores bytes, like [`Bodies::put`].
    pub async fn put_bytes(
        &self,
        records: &dyn Records,
        tenant: &Tenant,
        bytes: impl Into<Bytes>,
        now: Timestamp,
    ) -> Result<BodyRef, PutError> {
        let once = stream::iter([Ok::<_, Infallible>(bytes.into())]);
        self.put(records, tenant, once, now).await
    }

    /// The whole body, after its length and SHA-256 were checked; read once.
    pub async fn whole(
        &self,
        records: &dyn Records,
        body: &BodyRef,
        tenant: &Tenant,
    ) -> Result<Vec<u8>, GetError> {
        let mut stream = self.get(records, body, tenant).await?.into_stream();
        let mut bytes = Vec::with_capacity(usize::try_from(body.length()).unwrap_or(0));
        while let Some(chunk) = stream.try_next().await.map_err(sort)? {
            bytes.extend_from_slice(&chunk);
        }
        if digest(&SHA256, &bytes).as_ref() != body.sha256() {
            return Err(GetError::Lost(format!("body {body} is stored with other content")));
        }
        Ok(bytes)
    }
}
