//! One address decides which store it is.

use std::sync::Arc;

use redrive_core::store::Backend;

use crate::Error;

/// Opens the store at `address`.
pub(crate) fn open(address: &str) -> Result<Arc<dyn Backend>, Error> {
    let Some((scheme, rest)) = address.split_once(':') else {
        return Err(Error::Address(format!("{address:?} is no address; {KNOWN}")));
    };
    match scheme {
        "sqlite" => sqlite(rest),
        other => Err(Error::Address(format!("{other:?} is no store of this build; {KNOWN}"))),
    }
}

const KNOWN: &str = "write sqlite:FILE, for instance sqlite:redrive.db, or sqlite::memory:";

#[cfg(feature = "sqlite")]
fn sqlite(path: &str) -> Result<Arc<dyn Backend>, Error> {
    use redrive_store_sqlite::{Options, SqliteStore};
    // Tolerates the two slashes that other programs put before a path.
    let path = path.strip_prefix("//").unwrap_or(path);
    let store = match path {
        "" => return Err(Error::Address(format!("sqlite: names no file; {KNOWN}"))),
        ":memory:" => SqliteStore::open_in_memory()?,
        path => SqliteStore::open(path, Options::default())?,
    };
    Ok(Arc::new(store))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &str) -> Result<Arc<dyn Backend>, Error> {
    Err(Error::Address("sqlite: needs the feature \"sqlite\" of the redrive crate".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_names_no_store_says_what_would() {
        for address in ["redrive.db", "sqlite:", "mongodb://x", ""] {
            let error = open(address).err().expect(address).to_string();
            assert!(error.contains("sqlite:redrive.db"), "{address}: {error}");
        }
        assert!(open("sqlite::memory:").is_ok());
    }
}
