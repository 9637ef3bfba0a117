//! API keys on the wire.

use redrive_core::Tenant;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::keys::{Key, Scope};

/// A key to make.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyRequest {
    /// What people call it.
    #[schema(min_length = 1, max_length = 128)]
    pub name: String,
    /// The only tenant it acts for; without one it sees all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    pub tenant: Option<String>,
    /// What it allows; `write` when absent. The first key must have `admin` and no tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Whether it may see request and response bodies, payloads, outputs and steps; a key of scope `admin` may in any case.
    #[serde(default)]
    #[schema(required = false)]
    pub bodies: bool,
}

/// A key without its secret.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// The part of the key that may be shown.
    pub key_id: String,
    /// What people call it.
    pub name: String,
    /// The only tenant it acts for; without one it sees all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it allows.
    pub scope: Scope,
    /// Whether it may see request and response bodies, payloads, outputs and steps.
    pub bodies: bool,
    /// When it was made, in epoch ms.
    pub created_at: i64,
    /// The key itself; shown once, when it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl ApiKey {
    /// As it is shown; with the key itself when it was just made.
    pub fn show(key: Key, text: Option<String>) -> Self {
        Self {
            bodies: key.sees_bodies(),
            key_id: key.id,
            name: key.name,
            tenant: key.tenant.map(|tenant: Tenant| tenant.as_str().to_owned()),
            scope: key.scope,
            created_at: key.created_at.as_ms(),
            key: text,
        }
    }
}
