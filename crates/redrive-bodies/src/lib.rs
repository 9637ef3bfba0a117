//! Large bodies in an object store. The body is stored before the job that refers to it, and verified before it is sent.

mod address;
mod attach;
mod collect;
mod download;
mod location;
mod names;
mod reference;
mod upload;

use std::path::PathBuf;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use redrive_core::{RecordStore, Records, Tenant};
use uuid::Uuid;

pub use address::OpenError;
use attach::BodyRecord;
pub use attach::{AttachError, attach, attach_to_replacement, confirm_attached, detach};
pub use collect::ORPHAN_AGE;
pub use download::{GetError, StoredBody};
pub use location::{BodyLocation, MARKER_FILE};
pub use names::tenant_folder;
pub use reference::BodyRef;
pub use upload::PutError;

/// The kind of the records, one for each body.
pub const KIND: &str = "body";
/// The largest body, in bytes.
pub const BODY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The most tasks that can use one body.
pub const TASKS_PER_BODY_MAX: usize = 1_000;

/// The largest body, in bytes, that is kept in memory between its verification and its use. A larger one is read twice.
const KEPT_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes in one part of an upload. S3 accepts no smaller parts.
const PART_BYTES: usize = 5 * 1024 * 1024;
/// Parts of an upload that are sent at once.
const PARTS_IN_PROGRESS: usize = 2;
/// The most bytes that an upload holds in memory: the parts that are sent, and the one that is being filled.
pub const UPLOAD_BYTES_HELD_MAX: usize = PART_BYTES * (PARTS_IN_PROGRESS + 1);

/// The object store with the bodies. Clones share it.
#[derive(Debug, Clone)]
pub struct Bodies {
    store: Arc<dyn ObjectStore>,
    /// The folder, if the bodies are in files.
    folder: Option<PathBuf>,
    location: BodyLocation,
}

impl Bodies {
    /// Opens `file:FOLDER` (and creates the folder), `s3://BUCKET/PREFIX` (with the usual `AWS_…` variables), or `memory:`.
    pub fn open(address: &str) -> Result<Self, OpenError> {
        address::open(address)
    }

    /// The location of the bodies.
    pub fn location(&self) -> &BodyLocation {
        &self.location
    }

    /// The location that an address names. Creates nothing. Returns none for memory, and for a folder that has no bodies yet.
    pub fn find_location(address: &str) -> Result<Option<BodyLocation>, OpenError> {
        address::find_location(address)
    }

    /// Whether the object store has the body, with the right length.
    pub async fn exists(&self, body: &BodyRef, tenant: &Tenant) -> Result<bool, GetError> {
        let head = self.store.head(&path(&record_id(tenant, body))).await;
        match head.map_err(|error| GetError::from_io(error.into())) {
            Ok(meta) => Ok(meta.size == body.length()),
            Err(GetError::Lost(_)) => Ok(false),
            Err(error @ (GetError::Unavailable(_) | GetError::OtherLocation { .. })) => Err(error),
        }
    }

    /// Deletes the body and its record, even if tasks use it. Succeeds if the body is already gone.
    pub async fn delete(
        &self,
        records: &dyn RecordStore,
        body: &BodyRef,
        tenant: &Tenant,
    ) -> Result<(), PutError> {
        let id = record_id(tenant, body);
        self.remove_object(&id).await.map_err(|error| PutError::Store(Box::new(error)))?;
        Ok(Records::<BodyRecord>::new(records).remove(&id).await?)
    }

    /// Deletes an object, and the file of an upload that crashed.
    async fn remove_object(&self, id: &str) -> Result<(), Error> {
        if let Some(folder) = &self.folder {
            // An unfinished upload to a file has this name. An object is uploaded only once.
            let _ = std::fs::remove_file(folder.join(format!("{id}#1")));
        }
        match self.store.delete(&path(id)).await {
            Err(Error::NotFound { .. }) => Ok(()),
            deleted => deleted,
        }
    }
}

fn record_id(tenant: &Tenant, body: &BodyRef) -> String {
    id_of(tenant, body.id())
}

/// The name of the object and of its record. It consists of a digest and a UUID, so it contains no text of a caller.
fn id_of(tenant: &Tenant, id: Uuid) -> String {
    format!("{}/{}", tenant_folder(tenant), id.simple())
}

fn path(id: &str) -> Path {
    Path::from(id)
}

#[cfg(test)]
mod tests;
