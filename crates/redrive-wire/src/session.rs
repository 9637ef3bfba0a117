//! Sessions of the console.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The prefix of session tokens.
pub const TOKEN_PREFIX: &str = "rds_";

/// A session that was just opened.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenedSession {
    /// The part of the token that may be shown.
    pub session_id: String,
    /// The token to send instead of the API key, as `Authorization: Bearer rds_…`; shown once.
    pub token: String,
    /// When the session ends, in epoch ms.
    pub expires_at: i64,
}
