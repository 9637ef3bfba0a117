//! What an attempt leaves behind in the log: how far it came, and what the target said.

use serde::{Deserialize, Serialize};

/// How far a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Phase {
    /// No byte of it went out.
    NeverSent,
    /// Some of it may have arrived, but no answer came.
    NoAnswer,
    /// A status came back.
    Answered,
}

/// The JSON in an attempt's detail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// How far the request came.
    pub phase: Phase,
    /// The HTTP status of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The gRPC code of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_code: Option<u16>,
    /// How the answer begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<String>,
    /// The address that was dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What was spoken there: `http/1.1`, `h2` or `h2c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Something about the answer that changed nothing, such as a body that broke off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Evidence {
    /// Evidence of nothing but how far the request came.
    pub fn new(phase: Phase) -> Self {
        Self {
            phase,
            status: None,
            grpc_code: None,
            excerpt: None,
            address: None,
            protocol: None,
            note: None,
        }
    }

    /// As kept in the log.
    pub fn to_json(&self) -> String {
        // Text, numbers and options always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`Evidence::to_json`] wrote; none for anything else, such as another kind's detail.
    pub fn from_json(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_survives_the_log() {
        let bare = Evidence::new(Phase::NeverSent);
        assert_eq!(bare.to_json(), r#"{"phase":"NEVER_SENT"}"#);
        let full = Evidence {
            phase: Phase::Answered,
            status: Some(503),
            grpc_code: Some(14),
            excerpt: Some("bu\"sy".into()),
            address: Some("192.0.2.1:443".into()),
            protocol: Some("h2".into()),
            note: Some("the body broke off".into()),
        };
        for evidence in [bare, full] {
            assert_eq!(Evidence::from_json(&evidence.to_json()), Some(evidence));
        }
        assert_eq!(Evidence::from_json("{}"), None);
        assert_eq!(Evidence::from_json("what"), None);
    }
}
