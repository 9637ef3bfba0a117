//! Names in object stores: a folder for each tenant.

use redrive_core::Tenant;
use ring::digest::{SHA256, digest};

/// The folder of a tenant: the SHA-256 of its name. It has a fixed length and is safe in a path, whatever the name contains.
pub fn tenant_folder(tenant: &Tenant) -> String {
    hex::encode(digest(&SHA256, tenant.as_str().as_bytes()))
}
