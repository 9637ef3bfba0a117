//! Looks at the store at an address for what would hurt.

use redrive_core::Finding;

use crate::Error;
use crate::open::Place;

/// Looks at the store at `address` for what hurts or will, the gravest first. It changes nothing and disturbs no service
/// that runs on it. Fails only when the store cannot be reached at all.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let address = format!("sqlite:{}", folder.path().join("jobs.db").display());
/// # redrive::migrate(&address).await?;
/// let findings = redrive::doctor(&address).await?;
/// assert!(findings.iter().all(|finding| finding.gravity < redrive::Gravity::Warning));
/// # Ok(()) }
/// ```
pub async fn doctor(address: &str) -> Result<Vec<Finding>, Error> {
    let mut findings = match Place::of(address)? {
        Place::Sqlite(":memory:") => {
            return Err(Error::Address("sqlite::memory: has nothing to look at; name a file".to_owned()));
        }
        Place::Sqlite(path) => sqlite(path).await?,
        Place::Postgres(address) => postgres(address).await?,
        Place::Redis(address) => redis(address).await?,
    };
    Finding::sort(&mut findings);
    Ok(findings)
}

#[cfg(feature = "sqlite")]
async fn sqlite(path: &str) -> Result<Vec<Finding>, Error> {
    let path = path.to_owned();
    Ok(crate::open::blocking(move || redrive_store_sqlite::SqliteStore::doctor(path)).await?)
}

#[cfg(not(feature = "sqlite"))]
async fn sqlite(_: &str) -> Result<Vec<Finding>, Error> {
    Err(crate::open::lacks("sqlite"))
}

#[cfg(feature = "postgres")]
async fn postgres(address: &str) -> Result<Vec<Finding>, Error> {
    use redrive_store_postgres::{PostgresStore, Thresholds};
    Ok(PostgresStore::doctor(address, &Thresholds::default()).await?)
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_: &str) -> Result<Vec<Finding>, Error> {
    Err(crate::open::lacks("postgres"))
}

#[cfg(feature = "redis")]
async fn redis(address: &str) -> Result<Vec<Finding>, Error> {
    Ok(redrive_store_redis::RedisStore::doctor(address).await?)
}

#[cfg(not(feature = "redis"))]
async fn redis(_: &str) -> Result<Vec<Finding>, Error> {
    Err(crate::open::lacks("redis"))
}
