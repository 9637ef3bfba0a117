//! Cursors as callers get them. A list may stop at a job of another tenant, so a caller who is bound to one gets a cursor
//! that only the service can read.

use redrive_core::Tenant;
use redrive_core::store::{Cursor, PageRequest};
use redrive_delivery::secrets::Vault;

use crate::api::Api;
use crate::auth::Caller;
use crate::error::{Answer, Problem};
use crate::wire::page;

/// What the ciphertext of a cursor is bound to, beside its tenant.
const PURPOSE: &str = "cursor";

/// Writes and reads the cursors of one caller.
pub(crate) struct Cursors<'a> {
    vault: &'a Vault,
    /// The tenant that the caller is bound to.
    tenant: Option<&'a Tenant>,
}

impl Api {
    /// The cursors of lists of jobs, as `caller` gets them.
    pub(crate) fn cursors<'a>(&'a self, caller: &'a Caller) -> Cursors<'a> {
        Cursors { vault: &self.parts.vault, tenant: caller.tenant.as_ref() }
    }
}

impl Cursors<'_> {
    /// The cursor as the caller gets it.
    pub(crate) fn show(&self, cursor: Cursor) -> String {
        match self.tenant {
            None => cursor.to_string(),
            Some(tenant) => url_safe(&self.vault.seal_text(PURPOSE, tenant, &cursor.to_string())),
        }
    }

    /// The page of a list of jobs that a query asks for.
    pub(crate) fn page(&self, limit: Option<usize>, cursor: Option<&str>) -> Answer<PageRequest> {
        let after = cursor.map(|text| self.read(text)).transpose()?;
        Ok(PageRequest { after, limit: page::limit(limit)? })
    }

    fn read(&self, text: &str) -> Answer<Cursor> {
        let foreign = || Problem::invalid("cursor", "is not one that a list returned");
        match self.tenant {
            None => Ok(text.parse()?),
            Some(tenant) => {
                let opened = self.vault.open_text(PURPOSE, tenant, &padded(text));
                opened.map_err(|_| foreign())?.parse().map_err(|_| foreign())
            }
        }
    }
}

/// Base64 without the characters that mean something in a query.
fn url_safe(base64: &str) -> String {
    base64.trim_end_matches('=').replace('+', "-").replace('/', "_")
}

/// The base64 that [`url_safe`] was made of.
fn padded(text: &str) -> String {
    let base64 = text.replace('-', "+").replace('_', "/");
    let missing = (4 - base64.len() % 4) % 4;
    base64 + &"=".repeat(missing)
}

#[cfg(test)]
mod tests {
    use redrive_core::JobId;
    use redrive_delivery::secrets::SecretKey;

    use super::*;

    #[test]
    fn a_bound_caller_gets_a_cursor_that_says_nothing_and_that_is_theirs() {
        let vault = Vault::new(&SecretKey::from_base64(&format!("{}=", "A".repeat(43))).unwrap());
        let (acme, other) = (Tenant::new("acme").unwrap(), Tenant::new("other").unwrap());
        let cursors = |tenant| Cursors { vault: &vault, tenant };
        for number in 0..32 {
            let cursor = Cursor::Job(JobId(uuid::Uuid::from_u128(number << 77)));
            let text = cursors(Some(&acme)).show(cursor);
            assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{text}");
            assert!(!text.contains(&cursor.to_string()[1..]));
            assert_eq!(cursors(Some(&acme)).read(&text).unwrap(), cursor);
            for thief in [Some(&other), None] {
                assert_eq!(cursors(thief).read(&text).unwrap_err().field.as_deref(), Some("cursor"));
            }
            assert_eq!(cursors(None).read(&cursors(None).show(cursor)).unwrap(), cursor);
        }
    }
}
