//! Opens the object store that an address names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, RetryConfig};
use redrive_core::store::BoxError;

use super::{Bodies, BodyLocation};

/// Retries of one request to S3, and the time for all of them. An attempt of a job has 30 s in all, and retries of its own.
const S3_RETRIES: usize = 3;
const S3_RETRY_TIMEOUT: Duration = Duration::from_secs(10);
const S3_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Why an object store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address is invalid.
    #[error("{0:?} is not an address for bodies; use file:FOLDER, s3://BUCKET/PREFIX or memory:")]
    Address(String),
    /// The folder cannot be created or read.
    #[error("the folder {} for bodies cannot be created; choose one that can be written", .0.display())]
    Folder(PathBuf, #[source] std::io::Error),
    /// The bucket cannot be configured.
    #[error("the bucket of {0:?} cannot be used; set AWS_REGION, AWS_ENDPOINT_URL and the credentials")]
    Bucket(String, #[source] BoxError),
}

/// Opens the object store at an address.
pub(super) fn open(address: &str) -> Result<Bodies, OpenError> {
    match address.split_once(':') {
        Some(("file", folder)) if !folder.is_empty() => open_folder(Path::new(folder)),
        Some(("s3", bucket)) => open_bucket(address, bucket),
        Some(("memory", "")) => {
            Ok(Bodies { store: Arc::new(InMemory::new()), folder: None, location: BodyLocation::memory() })
        }
        Some(_) | None => Err(OpenError::Address(without_login(address))),
    }
}

/// The location that an address names. Creates nothing, and returns none if it does not exist yet.
pub(super) fn find_location(address: &str) -> Result<Option<BodyLocation>, OpenError> {
    match address.split_once(':') {
        Some(("file", folder)) if !folder.is_empty() => {
            let folder = Path::new(folder);
            BodyLocation::find_folder(folder).map_err(|error| OpenError::Folder(folder.to_owned(), error))
        }
        Some(("s3", bucket)) => Bucket::parse(address, bucket).map(|bucket| Some(bucket.location())),
        Some(("memory", "")) => Ok(None),
        Some(_) | None => Err(OpenError::Address(without_login(address))),
    }
}

/// An address for a message. The text before an `@` may be a password, so it is masked.
fn without_login(address: &str) -> String {
    address.rsplit_once('@').map_or_else(|| address.to_owned(), |(_, place)| format!("***@{place}"))
}

/// Opens a folder. Every upload is synced to disk before it is acknowledged.
fn open_folder(folder: &Path) -> Result<Bodies, OpenError> {
    let failed = |error| OpenError::Folder(folder.to_owned(), error);
    create_private(folder).map_err(failed)?;
    let folder = folder.canonicalize().map_err(failed)?;
    let store = LocalFileSystem::new_with_prefix(&folder)
        .map_err(|error| OpenError::Folder(folder.clone(), error.into()))?
        .with_fsync(true);
    let location = BodyLocation::folder(&folder).map_err(|error| OpenError::Folder(folder.clone(), error))?;
    Ok(Bodies { store: Arc::new(store), folder: Some(folder), location })
}

/// Creates a folder that only its owner can read.
fn create_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn open_bucket(address: &str, bucket: &str) -> Result<Bodies, OpenError> {
    let bucket = Bucket::parse(address, bucket)?;
    // The client has no cryptography provider of its own. A provider that the process has installed stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let plain = bucket.endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
    let options = ClientOptions::new().with_connect_timeout(S3_CONNECT_TIMEOUT).with_allow_http(plain);
    let retry =
        RetryConfig { max_retries: S3_RETRIES, retry_timeout: S3_RETRY_TIMEOUT, ..RetryConfig::default() };
    let store = AmazonS3Builder::from_env()
        .with_client_options(options)
        .with_retry(retry)
        .with_bucket_name(&bucket.name)
        .build()
        .map_err(|error| OpenError::Bucket(without_login(address), Box::new(error)))?;
    let location = bucket.location();
    Ok(Bodies { store: Arc::new(PrefixStore::new(store, bucket.prefix)), folder: None, location })
}

/// A bucket of S3 and a prefix in it.
struct Bucket {
    endpoint: Option<String>,
    name: String,
    prefix: object_store::path::Path,
}

impl Bucket {
    /// Parses the part of the address after `s3:`.
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

    fn location(&self) -> BodyLocation {
        BodyLocation::bucket(self.endpoint.as_deref(), &self.name, self.prefix.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_address_is_rejected() {
        for address in
            ["", "bodies", "file:", "ftp://x", "s3:bucket", "s3://", "s3:///x", "memory:x", "s3://b/../x"]
        {
            assert!(matches!(open(address), Err(OpenError::Address(_))), "{address:?}");
        }
        assert!(open("memory:").is_ok());
        for address in ["s3://bucket", "s3://bucket/", "s3://bucket/some/prefix/"] {
            open(address).unwrap();
        }
    }

    #[test]
    fn a_folder_is_created_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        open(&format!("file:{}", path.display())).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
        std::fs::write(folder.path().join("file"), "").unwrap();
        let blocked = format!("file:{}", folder.path().join("file").display());
        assert!(open(&blocked).unwrap_err().to_string().contains("choose one that can be written"));
    }
}
