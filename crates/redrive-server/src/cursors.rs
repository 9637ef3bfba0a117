//! The cursors of lists. A list may stop at a job of another tenant, so the cursors of a caller who sees only one tenant are
//! encrypted.

use redrive_core::Tenant;
use redrive_core::store::{Cursor, PageRequest};
use redrive_delivery::secrets::Vault;

use crate::api::Api;
use crate::auth::Caller;
use crate::error::{Answer, Problem};
use redrive_wire::page::PageQuery;

/// The purpose that the ciphertext of a cursor is bound to, together with its tenant.
const PURPOSE: &str = "cursor";

/// Writes and reads the cursors of one caller.
pub(crate) struct Cursors<'a> {
    vault: &'a Vault,
    /// The only tenant whose jobs the caller sees; `None` if the caller sees every tenant.
    tenant: Option<&'a Tenant>,
}

impl Api {
    /// The cursors for `caller`.
    pub(crate) fn cursors<'a>(&'a self, caller: &'a Caller) -> Cursors<'a> {
        Cursors { vault: &self.parts.vault, tenant: caller.tenant.as_ref() }
    }
}

impl Cursors<'_> {
    /// The text of a cursor for the caller.
    pub(crate) fn show(&self, cursor: Cursor) -> String {
        match self.tenant {
            None => cursor.to_string(),
            Some(tenant) => url_safe(&self.vault.seal_text(PURPOSE, tenant, &cursor.to_string())),
        }
    }

    /// The page that a query asks for.
    pub(crate) fn page(&self, query: &PageQuery) -> Answer<PageRequest> {
        let after = query.cursor.as_deref().map(|text| self.read(text)).transpose()?;
        Ok(PageRequest { after, limit: query.limit()? })
    }

    fn read(&self, text: &str) -> Answer<Cursor> {
        let invalid = || Problem::invalid("cursor", "must be a cursor that a list returned to this caller");
        match self.tenant {
            None => Ok(text.parse()?),
            Some(tenant) => {
                let opened = self.vault.open_text(PURPOSE, tenant, &from_url_safe(text));
                opened.map_err(|_| invalid())?.parse().map_err(|_| invalid())
            }
        }
    }
}

/// Replaces the characters of base64 that have a meaning in a query.
fn url_safe(base64: &str) -> String {
    base64.trim_end_matches('=').replace('+', "-").replace('/', "_")
}

/// Reverses [`url_safe`].
fn from_url_safe(text: &str) -> String {
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
    fn a_cursor_for_one_tenant_is_encrypted_and_useless_to_others() {
        let vault = Vault::new(&SecretKey::from_base64(&format!("{}=", "A".repeat(43))).unwrap());
        let (acme, other) = (Tenant::new("acme").unwrap(), Tenant::new("other").unwrap());
        let cursors = |tenant| Cursors { vault: &vault, tenant };
        for number in 0..32 {
            let cursor = Cursor::Job(JobId(uuid::Uuid::from_u128(number << 77)));
            let text = cursors(Some(&acme)).show(cursor);
            assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{text}");
            assert!(!text.contains(&cursor.to_string()[1..]));
            assert_eq!(cursors(Some(&acme)).read(&text).unwrap(), cursor);
            for other_caller in [Some(&other), None] {
                assert_eq!(cursors(other_caller).read(&text).unwrap_err().field.as_deref(), Some("cursor"));
            }
            assert_eq!(cursors(None).read(&cursors(None).show(cursor)).unwrap(), cursor);
        }
    }
}
