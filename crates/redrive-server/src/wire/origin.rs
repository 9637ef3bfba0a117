//! Gates on the wire, and what else is named by a word: bodies and secrets.

use redrive_delivery::gate::{OriginState, OriginStatus};
use redrive_delivery::secrets::SecretInfo;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::policy::ms;

/// Every origin that this node has called of late.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Origins {
    /// The origins, by name.
    pub items: Vec<OriginGate>,
}

/// The gate of one origin, on this node.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OriginGate {
    /// Scheme, host and port.
    pub origin: String,
    /// Where its gate stands.
    pub state: GateState,
    /// How many calls may be under way.
    pub limit: u32,
    /// How many are.
    pub in_flight: u32,
    /// Tasks that were parked and are expected back, as an estimate.
    pub waiting: u64,
    /// Answers of late.
    pub answered: u32,
    /// Failures of late.
    pub failed: u32,
    /// The smoothed duration of recent calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// How long it has been closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_for_ms: Option<u64>,
    /// When calls may go again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens_in_ms: Option<u64>,
}

/// Where a gate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum GateState {
    /// Calls go, up to the limit.
    Open,
    /// No calls go.
    Closed,
    /// One call goes, to find out whether the origin works again.
    Probing,
    /// The origin asked to be left alone.
    Held,
}

impl From<OriginState> for GateState {
    fn from(state: OriginState) -> Self {
        match state {
            OriginState::Open => Self::Open,
            OriginState::Closed => Self::Closed,
            OriginState::Probing => Self::Probing,
            OriginState::Held => Self::Held,
        }
    }
}

impl From<OriginStatus> for OriginGate {
    fn from(status: OriginStatus) -> Self {
        Self {
            origin: status.origin,
            state: status.state.into(),
            limit: status.limit,
            in_flight: status.in_flight,
            waiting: status.waiting,
            answered: status.answered,
            failed: status.failed,
            latency_ms: status.latency.map(ms),
            closed_for_ms: status.closed_for.map(ms),
            opens_in_ms: status.opens_in.map(ms),
        }
    }
}

/// A body that was uploaded.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UploadedBody {
    /// Its name: send it as `bodyRef`. It is kept for a day if no task uses it.
    pub body_ref: String,
    /// Its length.
    pub bytes: u64,
}

/// A secret to keep; without one, it is made.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRequest {
    /// `whsec_` and the base64 of 24 to 64 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// A secret that was just made or replaced.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShownSecret {
    /// Its name.
    pub name: String,
    /// The secret itself; shown this once.
    pub secret: String,
}

/// What may be known of a secret.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SigningSecretInfo {
    /// Its name.
    pub name: String,
    /// When it was made, in epoch ms.
    pub created_at: i64,
    /// When it was last replaced, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<i64>,
    /// Whether the one before signs too.
    pub has_previous: bool,
}

impl From<SecretInfo> for SigningSecretInfo {
    fn from(info: SecretInfo) -> Self {
        Self {
            name: info.name,
            created_at: info.created_at.as_ms(),
            rotated_at: info.rotated_at.map(|at| at.as_ms()),
            has_previous: info.has_previous,
        }
    }
}

/// Every secret of a tenant.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SigningSecrets {
    /// The secrets, by name, without what is secret.
    pub items: Vec<SigningSecretInfo>,
}
