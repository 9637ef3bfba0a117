//! Brings the tables of the store at an address up to date, and does nothing else.

use crate::Error;
use crate::open::Place;

/// Makes or updates the tables of the store at `address` and says which schema they are at.
///
/// Opening a store does this too; a deploy that gives its nodes a role without the right to change tables does it apart.
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
    match Place::of(address)? {
        Place::Sqlite(":memory:") => {
            Err(Error::Address("sqlite::memory: has no tables that stay; name a file".to_owned()))
        }
        Place::Sqlite(path) => sqlite(path).await,
        Place::Postgres(address) => postgres(address).await,
        Place::Redis(address) => redis(address).await,
    }
}

#[cfg(feature = "sqlite")]
async fn sqlite(path: &str) -> Result<u32, Error> {
    let path = path.to_owned();
    Ok(crate::open::blocking(move || redrive_store_sqlite::SqliteStore::migrate(path)).await?)
}

#[cfg(not(feature = "sqlite"))]
async fn sqlite(_: &str) -> Result<u32, Error> {
    Err(crate::open::lacks("sqlite"))
}

#[cfg(feature = "postgres")]
async fn postgres(address: &str) -> Result<u32, Error> {
    Ok(redrive_store_postgres::PostgresStore::migrate(address).await?)
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_: &str) -> Result<u32, Error> {
    Err(crate::open::lacks("postgres"))
}

#[cfg(feature = "redis")]
async fn redis(address: &str) -> Result<u32, Error> {
    use redrive_store_redis::{Options, RedisStore};
    // There are no tables to make: opening it agrees on the layout.
    Ok(RedisStore::open(address, Options::default()).await?.layout())
}

#[cfg(not(feature = "redis"))]
async fn redis(_: &str) -> Result<u32, Error> {
    Err(crate::open::lacks("redis"))
}
