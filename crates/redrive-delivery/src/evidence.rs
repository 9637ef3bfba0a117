//! The evidence of an attempt in the attempt log: how far the request got, and what the target answered.

use serde::{Deserialize, Serialize};

/// How far a request got. Earlier releases stored the names in upper case: they are still read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Nothing was sent.
    #[serde(alias = "NEVER_SENT")]
    NeverSent,
    /// At least a part may have been sent, but no answer came.
    #[serde(alias = "NO_ANSWER")]
    NoAnswer,
    /// The target answered with a status.
    #[serde(alias = "ANSWERED")]
    Answered,
}

/// The detail of an attempt, stored as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// How far the request got.
    pub phase: Phase,
    /// The HTTP status of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The gRPC code of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_code: Option<u16>,
    /// The start of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<String>,
    /// The address that was dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The protocol: `http/1.1`, `h2` or `h2c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// A remark about the answer that did not change the result, such as a body that broke off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Evidence {
    /// Evidence with nothing but the phase.
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

    /// The JSON for the log.
    pub fn to_json(&self) -> String {
        // Text, numbers and options always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the output of [`Evidence::to_json`]; `None` for anything else, such as the detail of another kind of job.
    pub fn from_json(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_unchanged_after_encoding_and_decoding() {
        let bare = Evidence::new(Phase::NeverSent);
        assert_eq!(bare.to_json(), r#"{"phase":"never_sent"}"#);
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
        let old = Evidence::from_json(r#"{"phase":"NO_ANSWER"}"#);
        assert_eq!(old, Some(Evidence::new(Phase::NoAnswer)), "as earlier releases stored it");
        assert_eq!(Evidence::from_json("{}"), None);
        assert_eq!(Evidence::from_json("what"), None);
    }
}
