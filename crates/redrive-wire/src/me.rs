//! The caller and the node that answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::key::Scope;

/// The caller and the node that answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Me {
    /// What the caller may do.
    pub scope: Scope,
    /// Whether they may see request and response bodies, payloads, outputs and steps.
    pub bodies: bool,
    /// The only tenant that they see; absent if they see every tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Whether calls need no API key, because none has been created.
    pub open: bool,
    /// Whether tasks may call services on this machine. Only an admin who sees all tenants gets it.
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
    /// Whether such calls are allowed.
    pub allowed: bool,
    /// Why they are allowed or not.
    pub reason: String,
}
