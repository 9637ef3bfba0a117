//! A tenant's folder: a name of fixed length that is safe in a path and in a record's id.

use redrive_core::Tenant;
use ring::digest::{SHA256, digest};

use crate::encoding::hex;

/// The SHA-256 of the tenant's name: whatever it contains, it stays in its place, and no other tenant gets there.
pub fn folder(tenant: &Tenant) -> String {
    hex(digest(&SHA256, tenant.as_str().as_bytes()).as_ref())
}
