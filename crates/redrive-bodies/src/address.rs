//! Where bodies are kept: one address decides.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, RetryConfig};
use redrive_core::store::Cause;

use super::{Bodies, Place};

/// Tries of one request to S3 and the time for all of them: an attempt has 30 s in all, and its own retries.
const S3_TRIES: usize = 3;
const S3_TIME: Duration = Duration::from_secs(10);
const S3_CONNECT: Duration = Duration::from_secs(2);

/// Why bodies cannot be kept at an address.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address is not one.
    #[error("{0:?} is no place for bodies; use file:FOLDER, s3://BUCKET/PREFIX or memory:")]
    Address(String),
    /// The folder cannot be made.
    #[error("the folder {} for bodies cannot be made; choose one that can be written", .0.display())]
    Folder(PathBuf, #[source] std::io::Error),
    /// The bucket cannot be addressed.
    #[error("the bucket of {0:?} cannot be addressed; set AWS_REGION, AWS_ENDPOINT_URL and the credentials")]
    Bucket(String, #[source] Cause),
}

/// The store at an address.
pub(super) fn connect(address: &str) -> Result<Bodies, OpenError> {
    match address.split_once(':') {
        Some(("file", folder)) if !folder.is_empty() => open_folder(Path::new(folder)),
        Some(("s3", bucket)) => open_bucket(address, bucket),
        Some(("memory", "")) => {
            Ok(Bodies { store: Arc::new(InMemory::new()), folder: None, place: Place::memory() })
        }
        Some(_) | None => Err(OpenError::Address(without_login(address))),
    }
}

/// The place that an address names, without making anything; none for one that does not exist yet.
pub(super) fn look(address: &str) -> Result<Option<Place>, OpenError> {
    match address.split_once(':') {
        Some(("file", folder)) if !folder.is_empty() => {
            let folder = Path::new(folder);
            Place::look(folder).map_err(|error| OpenError::Folder(folder.to_owned(), error))
        }
        Some(("s3", bucket)) => Bucket::parse(address, bucket).map(|bucket| Some(bucket.place())),
        Some(("memory", "")) => Ok(None),
        Some(_) | None => Err(OpenError::Address(without_login(address))),
    }
}

/// An address for a message: what stands before an `@` may be a password.
fn without_login(address: &str) -> String {
    address.rsplit_once('@').map_or_else(|| address.to_owned(), |(_, place)| format!("***@{place}"))
}

/// Every acknowledged body is on disk, as every acknowledged row is.
fn open_folder(folder: &Path) -> Result<Bodies, OpenError> {
    let failed = |error| OpenError::Folder(folder.to_owned(), error);
    make_private(folder).map_err(failed)?;
    let folder = folder.canonicalize().map_err(failed)?;
    let store = LocalFileSystem::new_with_prefix(&folder)
        .map_err(|error| OpenError::Folder(folder.clone(), error.into()))?
        .with_fsync(true);
    let place = Place::folder(&folder).map_err(|error| OpenError::Folder(folder.clone(), error))?;
    Ok(Bodies { store: Arc::new(store), folder: Some(folder), place })
}

/// Bodies are nobody else's business.
fn make_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn open_bucket(address: &str, bucket: &str) -> Result<Bodies, OpenError> {
    let bucket = Bucket::parse(address, bucket)?;
    // The client has no provider of its own. One that the process installed before stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let plain = bucket.endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
    let options = ClientOptions::new().with_connect_timeout(S3_CONNECT).with_allow_http(plain);
    let retry = RetryConfig { max_retries: S3_TRIES, retry_timeout: S3_TIME, ..RetryConfig::default() };
    let store = AmazonS3Builder::from_env()
        .with_client_options(options)
        .with_retry(retry)
        .with_bucket_name(&bucket.name)
        .build()
        .map_err(|error| OpenError::Bucket(without_login(address), Box::new(error)))?;
    let place = bucket.place();
    Ok(Bodies { store: Arc::new(PrefixStore::new(store, bucket.prefix)), folder: None, place })
}

/// Where in S3.
struct Bucket {
    endpoint: Option<String>,
    name: String,
    prefix: object_store::path::Path,
}

impl Bucket {
    /// Reads what follows `s3:`.
    fn parse(address: &str, rest: &str) -> Result<Self, OpenError> {
        let wrong = || OpenError::Address(without_login(address));
        let path = rest.strip_prefix("//").ok_or_else(wrong)?;
        let (name, prefix) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err(wrong());
        }
        let prefix = object_store::path::Path::parse(prefix.trim_end_matches('/')).map_err(|_| wrong())?;
        let endpoint =
            ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().find_map(std::env::var_os);
        let endpoint = endpoint.map(|endpoint| endpoint.to_string_lossy().into_owned());
        Ok(Self { endpoint, name: name.to_owned(), prefix })
    }

    fn place(&self) -> Place {
        Place::bucket(self.endpoint.as_deref(), &self.name, self.prefix.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_place_or_is_refused() {
        for address in
            ["", "bodies", "file:", "ftp://x", "s3:bucket", "s3://", "s3:///x", "memory:x", "s3://b/../x"]
        {
            assert!(matches!(connect(address), Err(OpenError::Address(_))), "{address:?}");
        }
        assert!(connect("memory:").is_ok());
        for address in ["s3://bucket", "s3://bucket/", "s3://bucket/some/prefix/"] {
            connect(address).unwrap();
        }
    }

    #[test]
    fn a_folder_is_made_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        connect(&format!("file:{}", path.display())).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
        std::fs::write(folder.path().join("file"), "").unwrap();
        let blocked = format!("file:{}", folder.path().join("file").display());
        assert!(connect(&blocked).unwrap_err().to_string().contains("choose one that can be written"));
    }
}
