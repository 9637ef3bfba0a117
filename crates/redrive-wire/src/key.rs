//! API keys.

use std::fmt;
use std::str::FromStr;

use redrive_core::Invalid;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a key allows. Each scope includes the scopes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Read, and change nothing.
    Read,
    /// Create tasks; cancel, redrive, pause and signal tasks and jobs.
    Write,
    /// Change policies, queues, keys and secrets; start operations.
    Admin,
}

impl Scope {
    /// Every scope, from the weakest to the strongest.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = Invalid;
    fn from_str(name: &str) -> Result<Self, Invalid> {
        let known = Self::ALL.into_iter().find(|scope| scope.name() == name);
        known.ok_or_else(|| Invalid::new("scope", format!("must be one of read, write, admin, is {name:?}")))
    }
}

/// A request to create a key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyRequest {
    /// A name by which people recognise the key.
    #[schema(min_length = 1, max_length = 128)]
    pub name: String,
    /// The tenant that the key is bound to. A key without a tenant sees every tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    pub tenant: Option<String>,
    /// What the key allows; `write` when absent. The first key must have scope `admin` and no tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Whether the key may see request and response bodies, payloads, outputs and steps. A key of scope `admin` always may.
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
    /// A name by which people recognise the key.
    pub name: String,
    /// The tenant that the key is bound to. A key without a tenant sees every tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What the key allows.
    pub scope: Scope,
    /// Whether the key may see request and response bodies, payloads, outputs and steps.
    pub bodies: bool,
    /// When it was created, in epoch ms.
    pub created_at: i64,
    /// The key itself; shown once, when it is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}
