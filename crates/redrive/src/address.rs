//! Addresses of stores: which store an address names, and how it is shown without its password.

use crate::Error;

/// The address of a store, by the kind of store that it names.
#[derive(Debug)]
pub(crate) enum StoreAddress<'a> {
    /// A path, or `:memory:`.
    Sqlite(&'a str),
    /// The whole address, which the store parses.
    Postgres(&'a str),
    /// The whole address, which the store parses.
    Redis(&'a str),
}

impl<'a> StoreAddress<'a> {
    /// Parses an address. The error lists the addresses that are possible.
    pub(crate) fn parse(address: &'a str) -> Result<Self, Error> {
        match address.split_once(':') {
            // Accepts the two slashes that other programs put before a path.
            Some(("sqlite", path)) => match path.strip_prefix("//").unwrap_or(path) {
                "" => Err(Error::Address(format!("the address sqlite: has no file; {KNOWN}"))),
                path => Ok(Self::Sqlite(path)),
            },
            Some(("postgres" | "postgresql", _)) => Ok(Self::Postgres(address)),
            Some(("redis" | "rediss" | "redis-cluster" | "rediss-cluster", _)) => Ok(Self::Redis(address)),
            Some((other, _)) => {
                Err(Error::Address(format!("unknown kind of store {other:?} in the address; {KNOWN}")))
            }
            None => Err(Error::Address(format!(
                "{:?} is not an address of a store; {KNOWN}",
                mask_password(address)
            ))),
        }
    }
}

const KNOWN: &str = "use sqlite:FILE, for example sqlite:redrive.db, or sqlite::memory:, or \
    postgres://USER:PASSWORD@HOST/DATABASE, or redis://USER:PASSWORD@HOST, or redis-cluster://USER:PASSWORD@HOST";

#[cfg(feature = "sqlite")]
pub(crate) async fn open_sqlite(path: &str) -> Result<redrive_store_sqlite::SqliteStore, Error> {
    use redrive_store_sqlite::{Options, SqliteStore};
    let path = path.to_owned();
    let open = move || match path.as_str() {
        ":memory:" => SqliteStore::open_in_memory(),
        path => SqliteStore::open(path, Options::default()),
    };
    Ok(run_blocking(open).await?)
}

/// Runs a blocking function on a thread for blocking work.
#[cfg(feature = "sqlite")]
pub(crate) async fn run_blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let result = tokio::task::spawn_blocking(run).await;
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// The error for a store whose feature is off in this build.
#[cfg(not(all(feature = "sqlite", feature = "postgres", feature = "redis")))]
pub(crate) fn missing_feature(store: &str) -> Error {
    Error::Address(format!(
        "this program was built without {store}; enable the feature {store:?} of the redrive crate"
    ))
}

/// Fails if `address` is not the address of a SQLite, Postgres or Redis store. Opens nothing, and does not check whether this build
/// supports the store.
///
/// ```
/// assert!(redrive::check_address("sqlite:redrive.db").is_ok());
/// assert!(redrive::check_address("mongodb://db/jobs").is_err());
/// ```
pub fn check_address(address: &str) -> Result<(), Error> {
    StoreAddress::parse(address).map(drop)
}

/// Whether several machines can share the store at `address`. They can share Postgres and Redis, but not a SQLite file.
///
/// ```
/// assert!(redrive::is_shared("postgres://db/jobs")? && !redrive::is_shared("sqlite:redrive.db")?);
/// # Ok::<_, redrive::Error>(())
/// ```
pub fn is_shared(address: &str) -> Result<bool, Error> {
    match StoreAddress::parse(address)? {
        StoreAddress::Sqlite(_) => Ok(false),
        StoreAddress::Postgres(_) | StoreAddress::Redis(_) => Ok(true),
    }
}

/// Replaces the password in an address with `***`, for messages and logs. In a malformed address it replaces the whole login.
///
/// ```
/// assert_eq!(redrive::mask_password("postgres://me:secret@db/jobs"), "postgres://me:***@db/jobs");
/// assert_eq!(redrive::mask_password("sqlite:redrive.db"), "sqlite:redrive.db");
/// ```
pub fn mask_password(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return mask_without_scheme(address) };
    let (login, host) = rest.split_at(login_end(rest).unwrap_or(0));
    let login = login.split_once(':').map_or(login.to_owned(), |(user, _)| format!("{user}:***"));
    // libpq also accepts a password among the parameters.
    let (host, parameters) = host.split_once('?').map_or((host, None), |(host, rest)| (host, Some(rest)));
    let parameters = parameters.map(|all| all.split('&').map(mask_parameter).collect::<Vec<_>>().join("&"));
    let parameters = parameters.map_or(String::new(), |all| format!("?{all}"));
    format!("{scheme}://{login}{host}{parameters}")
}

/// The position where the login ends. Finds it even if the password contains a `/` or a `?` that should have been encoded.
fn login_end(rest: &str) -> Option<usize> {
    let (authority, path) = (rest.split(['/', '?']).next(), rest.split('?').next());
    let within = |part: Option<&str>| part.and_then(|part| part.rfind('@'));
    within(authority).or_else(|| within(path)).or_else(|| {
        let query = rest.find('?')? + 1;
        let first = rest[query..].split('&').next()?;
        let end = first.rfind('@').filter(|end| !first[..*end].contains('='))?;
        Some(query + end)
    })
}

/// Leaves a path unchanged. Any other text may have a login before its last `@`, so it masks everything before that.
fn mask_without_scheme(address: &str) -> String {
    match address.rsplit_once('@') {
        Some((_, host)) if !address.starts_with("sqlite:") && !address.starts_with("file:") => {
            format!("***@{host}")
        }
        Some(_) | None => address.to_owned(),
    }
}

fn mask_parameter(pair: &str) -> String {
    let (name, _) = pair.split_once('=').unwrap_or((pair, ""));
    let lower = name.to_ascii_lowercase();
    let is_secret = ["passw", "secret", "token"].iter().any(|part| lower.contains(part));
    if is_secret { format!("{name}=***") } else { pair.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Redrive;

    #[tokio::test]
    async fn the_error_for_an_unknown_address_lists_the_possible_ones() {
        for address in ["redrive.db", "sqlite:", "mongodb://x", ""] {
            let error = Redrive::open(address).await.expect_err(address).to_string();
            assert!(
                error.contains("sqlite:redrive.db") && error.contains("postgres://"),
                "{address}: {error}"
            );
        }
        assert!(Redrive::open("sqlite::memory:").await.is_ok());
    }

    #[test]
    fn no_password_is_shown() {
        for (address, safe) in [
            (
                "postgres://me:se@cr:et@db:5432/jobs?connections=4",
                "postgres://me:***@db:5432/jobs?connections=4",
            ),
            ("postgres://me@db/jobs", "postgres://me@db/jobs"),
            ("postgres://db/jobs?password=secret&user=me", "postgres://db/jobs?password=***&user=me"),
            ("postgres://db", "postgres://db"),
            ("postgres://me:se/cr?et@db/jobs", "postgres://me:***@db/jobs"),
            ("postgres://me:se?cr/et@db/jobs?user=me", "postgres://me:***@db/jobs?user=me"),
            (
                "postgres://db/jobs?user=me@corp&sslpassword=secret",
                "postgres://db/jobs?user=me@corp&sslpassword=***",
            ),
            ("me:secret@db", "***@db"),
            ("sqlite:a@b/redrive.db", "sqlite:a@b/redrive.db"),
        ] {
            assert_eq!(mask_password(address), safe);
        }
    }
}
