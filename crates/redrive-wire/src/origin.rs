//! Gates of origins, uploaded bodies, and signing secrets.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The gate of one origin, on this node.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OriginGate {
    /// Scheme, host and port.
    pub origin: String,
    /// The state of its gate.
    pub state: GateState,
    /// How many calls may be in progress at once.
    pub limit: u32,
    /// How many calls are in progress.
    pub in_flight: u32,
    /// Tasks that the gate holds, as an estimate.
    pub waiting: u64,
    /// The number of recent answers.
    pub answered: u32,
    /// The number of recent failures.
    pub failed: u32,
    /// The smoothed duration of recent calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// How long the gate has been blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_for_ms: Option<u64>,
    /// When the next call may be sent, if none may be sent now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_call_in_ms: Option<u64>,
}

/// The state of an origin's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateState {
    /// Calls go through, up to the limit.
    Passing,
    /// The origin asked for a pause, with `Retry-After`.
    Held,
    /// No calls go through, because the origin failed too often.
    Blocked,
    /// One call goes through, to test whether the origin works again.
    Probing,
}

/// An uploaded body.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UploadedBody {
    /// Its name, for `bodyRef`. It is kept for a day if no task uses it.
    pub body_ref: String,
    /// Its length.
    pub bytes: u64,
}

/// A request to store a signing secret. The service generates the secret if the request has none.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRequest {
    /// `whsec_` and the base64 of 24 to 64 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// A secret that was just created or replaced.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShownSecret {
    /// Its name.
    pub name: String,
    /// The secret itself; shown once.
    pub secret: String,
}

/// A signing secret without the secret itself.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SigningSecretInfo {
    /// Its name.
    pub name: String,
    /// When it was created, in epoch ms.
    pub created_at: i64,
    /// When it was last replaced, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<i64>,
    /// Whether the previous secret still signs deliveries too.
    pub has_previous: bool,
}
