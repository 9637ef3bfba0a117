//! One address decides which store it is.

use crate::Error;

/// Which store an address names.
#[derive(Debug)]
pub(crate) enum Place<'a> {
    /// A file, or `:memory:`.
    Sqlite(&'a str),
    /// The whole address: the store reads it itself.
    Postgres(&'a str),
    /// The same.
    Redis(&'a str),
}

impl<'a> Place<'a> {
    /// Reads an address; one that names no store says what would.
    pub(crate) fn of(address: &'a str) -> Result<Self, Error> {
        match address.split_once(':') {
            // Tolerates the two slashes that other programs put before a path.
            Some(("sqlite", path)) => match path.strip_prefix("//").unwrap_or(path) {
                "" => Err(Error::Address(format!("sqlite: names no file; {KNOWN}"))),
                path => Ok(Self::Sqlite(path)),
            },
            Some(("postgres" | "postgresql", _)) => Ok(Self::Postgres(address)),
            Some(("redis" | "rediss" | "redis-cluster" | "rediss-cluster", _)) => Ok(Self::Redis(address)),
            Some((other, _)) => Err(Error::Address(format!("{other:?} is no store of this build; {KNOWN}"))),
            None => Err(Error::Address(format!("{:?} is no address; {KNOWN}", shown(address)))),
        }
    }
}

const KNOWN: &str = "write sqlite:FILE, for instance sqlite:redrive.db, or sqlite::memory:, or \
    postgres://USER:PASSWORD@HOST/DATABASE, or redis://USER:PASSWORD@HOST, or redis-cluster://USER:PASSWORD@HOST";

#[cfg(feature = "sqlite")]
pub(crate) async fn sqlite(path: &str) -> Result<redrive_store_sqlite::SqliteStore, Error> {
    use redrive_store_sqlite::{Options, SqliteStore};
    let path = path.to_owned();
    let open = move || match path.as_str() {
        ":memory:" => SqliteStore::open_in_memory(),
        path => SqliteStore::open(path, Options::default()),
    };
    Ok(blocking(open).await?)
}

/// Runs what blocks beside the runtime.
#[cfg(feature = "sqlite")]
pub(crate) async fn blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let ran = tokio::task::spawn_blocking(run).await;
    ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// The error for a store that this build was made without.
#[cfg(not(all(feature = "sqlite", feature = "postgres", feature = "redis")))]
pub(crate) fn lacks(store: &str) -> Error {
    Error::Address(format!("{store}: needs the feature {store:?} of the redrive crate"))
}

/// Fails when an address names no store that this build knows. Nothing is opened.
///
/// ```
/// assert!(redrive::check_address("sqlite:redrive.db").is_ok());
/// assert!(redrive::check_address("mongodb://db/jobs").is_err());
/// ```
pub fn check_address(address: &str) -> Result<(), Error> {
    Place::of(address).map(drop)
}

/// Whether the store at `address` is one that nodes on several machines can share. A SQLite file is not.
///
/// ```
/// assert!(redrive::is_shared("postgres://db/jobs")? && !redrive::is_shared("sqlite:redrive.db")?);
/// # Ok::<_, redrive::Error>(())
/// ```
pub fn is_shared(address: &str) -> Result<bool, Error> {
    match Place::of(address)? {
        Place::Sqlite(_) => Ok(false),
        Place::Postgres(_) | Place::Redis(_) => Ok(true),
    }
}

/// The address as it may be shown: a password in it is hidden, and the whole login where the address is malformed.
///
/// Every message that names an address uses this.
///
/// ```
/// assert_eq!(redrive::shown("postgres://me:secret@db/jobs"), "postgres://me:***@db/jobs");
/// assert_eq!(redrive::shown("sqlite:redrive.db"), "sqlite:redrive.db");
/// ```
pub fn shown(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return shown_without_scheme(address) };
    let (login, place) = rest.split_at(login_end(rest).unwrap_or(0));
    let login = login.split_once(':').map_or(login.to_owned(), |(user, _)| format!("{user}:***"));
    // libpq takes a password among the parameters too.
    let (place, parameters) =
        place.split_once('?').map_or((place, None), |(place, rest)| (place, Some(rest)));
    let parameters = parameters.map(|all| all.split('&').map(shown_parameter).collect::<Vec<_>>().join("&"));
    let parameters = parameters.map_or(String::new(), |all| format!("?{all}"));
    format!("{scheme}://{login}{place}{parameters}")
}

/// Where the login ends. A password may have a `/` or a `?` in it that should have been encoded.
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

/// A path of a file is shown as it is; anything else may have a login before its last `@`.
fn shown_without_scheme(address: &str) -> String {
    match address.rsplit_once('@') {
        Some((_, place)) if !address.starts_with("sqlite:") && !address.starts_with("file:") => {
            format!("***@{place}")
        }
        Some(_) | None => address.to_owned(),
    }
}

fn shown_parameter(pair: &str) -> String {
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
    async fn an_address_that_names_no_store_says_what_would() {
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
            assert_eq!(shown(address), safe);
        }
    }
}
