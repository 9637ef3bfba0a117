//! Migrates and examines the store at an address.

use redrive_core::Finding;

use crate::Error;
use crate::address::StoreAddress;

/// Creates or migrates the tables of the store at `address`, and returns the version of their schema.
///
/// [`crate::Redrive::open`] does this too. Call this from a deployment whose nodes use a role that cannot change tables.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let address = format!("sqlite:{}", folder.path().join("jobs.db").display());
/// let schema = redrive::migrate(&address).await?;
/// assert_eq!(redrive::migrate(&address).await?, schema);
/// # Ok(()) }
/// ```
pub async fn migrate(address: &str) -> Result<u32, Error> {
    match StoreAddress::parse(address)? {
        StoreAddress::Sqlite(":memory:") => {
            Err(Error::Address("sqlite::memory: keeps no tables after this call; use a file".to_owned()))
        }
        StoreAddress::Sqlite(path) => migrate_sqlite(path).await,
        StoreAddress::Postgres(address) => migrate_postgres(address).await,
        StoreAddress::Redis(address) => migrate_redis(address).await,
    }
}

#[cfg(feature = "sqlite")]
async fn migrate_sqlite(path: &str) -> Result<u32, Error> {
    let path = path.to_owned();
    Ok(crate::address::run_blocking(move || redrive_store_sqlite::SqliteStore::migrate(path)).await?)
}

#[cfg(not(feature = "sqlite"))]
async fn migrate_sqlite(_: &str) -> Result<u32, Error> {
    Err(crate::address::missing_feature("sqlite"))
}

#[cfg(feature = "postgres")]
async fn migrate_postgres(address: &str) -> Result<u32, Error> {
    Ok(redrive_store_postgres::PostgresStore::migrate(address).await?)
}

#[cfg(not(feature = "postgres"))]
async fn migrate_postgres(_: &str) -> Result<u32, Error> {
    Err(crate::address::missing_feature("postgres"))
}

#[cfg(feature = "redis")]
async fn migrate_redis(address: &str) -> Result<u32, Error> {
    use redrive_store_redis::{Options, RedisStore};
    // Redis has no tables: opening the store checks the version of its layout.
    Ok(RedisStore::open(address, Options::default()).await?.layout_version())
}

#[cfg(not(feature = "redis"))]
async fn migrate_redis(_: &str) -> Result<u32, Error> {
    Err(crate::address::missing_feature("redis"))
}

/// Examines the store at `address` and returns current and likely problems as findings, the most severe first. Changes
/// nothing, and does not disturb a service that uses the store. Fails only if the store cannot be reached.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let address = format!("sqlite:{}", folder.path().join("jobs.db").display());
/// # redrive::migrate(&address).await?;
/// let findings = redrive::doctor(&address).await?;
/// assert!(findings.iter().all(|finding| finding.severity < redrive::Severity::Warning));
/// # Ok(()) }
/// ```
pub async fn doctor(address: &str) -> Result<Vec<Finding>, Error> {
    let mut findings = match StoreAddress::parse(address)? {
        StoreAddress::Sqlite(":memory:") => {
            return Err(Error::Address("sqlite::memory: has nothing to examine; use a file".to_owned()));
        }
        StoreAddress::Sqlite(path) => doctor_sqlite(path).await?,
        StoreAddress::Postgres(address) => doctor_postgres(address).await?,
        StoreAddress::Redis(address) => doctor_redis(address).await?,
    };
    Finding::sort(&mut findings);
    Ok(findings)
}

#[cfg(feature = "sqlite")]
async fn doctor_sqlite(path: &str) -> Result<Vec<Finding>, Error> {
    let path = path.to_owned();
    Ok(crate::address::run_blocking(move || redrive_store_sqlite::SqliteStore::doctor(path)).await?)
}

#[cfg(not(feature = "sqlite"))]
async fn doctor_sqlite(_: &str) -> Result<Vec<Finding>, Error> {
    Err(crate::address::missing_feature("sqlite"))
}

#[cfg(feature = "postgres")]
async fn doctor_postgres(address: &str) -> Result<Vec<Finding>, Error> {
    use redrive_store_postgres::{PostgresStore, Thresholds};
    Ok(PostgresStore::doctor(address, &Thresholds::default()).await?)
}

#[cfg(not(feature = "postgres"))]
async fn doctor_postgres(_: &str) -> Result<Vec<Finding>, Error> {
    Err(crate::address::missing_feature("postgres"))
}

#[cfg(feature = "redis")]
async fn doctor_redis(address: &str) -> Result<Vec<Finding>, Error> {
    Ok(redrive_store_redis::RedisStore::doctor(address).await?)
}

#[cfg(not(feature = "redis"))]
async fn doctor_redis(_: &str) -> Result<Vec<Finding>, Error> {
    Err(crate::address::missing_feature("redis"))
}
