//! What a caller is told about themselves and about who answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::keys::Scope;

/// Who is calling, and who answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Me {
    /// What the caller may do.
    pub scope: Scope,
    /// Whether they may see request and response bodies, payloads, outputs and steps.
    pub bodies: bool,
    /// The only tenant they see; absent when they see all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Whether no key is needed here, because there is none.
    pub open: bool,
    /// Whether tasks may call services on this machine; for admins who see all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loopback_targets: Option<LoopbackTargets>,
    /// The version of the service.
    pub version: String,
    /// The name of the node that answers.
    pub node: String,
}

/// Whether tasks may call services on the machine that this node runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoopbackTargets {
    /// Whether they may.
    pub allowed: bool,
    /// Why.
    pub reason: String,
}
