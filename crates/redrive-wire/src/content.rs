//! Payloads, outputs and metadata of a job, in a readable form.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// The largest content that a list shows. An answer about one job shows contents of any size.
pub const LISTED_BYTES_MAX: usize = 1024;

/// How much to show of the payload, output, metadata and steps of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Contents of any size, in an answer about one job.
    Whole,
    /// Contents of at most [`LISTED_BYTES_MAX`] bytes, in a list of jobs.
    Listed,
    /// No contents, because the caller's key may not see bodies.
    Hidden,
}

/// Data that a program stored with a job: its size, and the first of `json`, `text` and `base64` that can
/// represent it. All three are absent if the content is left out: because it is too large for a list, because
/// it may contain secrets, or because the caller's key may not see bodies.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Content {
    /// The size of the content, even if the content is left out.
    pub size_bytes: usize,
    /// The content, if it is JSON.
    #[serde(default, deserialize_with = "null_as_value", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub json: Option<Box<RawValue>>,
    /// The content, if it is text but not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub text: Option<String>,
    /// The content in base64, if it is not UTF-8 text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub base64: Option<String>,
    /// True if the content is left out because the caller's key may not see bodies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub hidden: bool,
}

impl Content {
    /// The content, or only its size, depending on `detail`.
    pub fn show(bytes: &[u8], detail: Detail) -> Self {
        match detail {
            Detail::Hidden => Self { hidden: true, ..Self::size_only(bytes) },
            Detail::Listed if bytes.len() > LISTED_BYTES_MAX => Self::size_only(bytes),
            Detail::Listed | Detail::Whole => Self::whole(bytes),
        }
    }

    /// Only the size.
    pub fn size_only(bytes: &[u8]) -> Self {
        Self { size_bytes: bytes.len(), json: None, text: None, base64: None, hidden: false }
    }

    fn whole(bytes: &[u8]) -> Self {
        let shown = Self::size_only(bytes);
        // The JSON text stays unchanged, so a number keeps its digits.
        if let Ok(json) = serde_json::from_slice(bytes) {
            return Self { json: Some(json), ..shown };
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { text: Some(text.to_owned()), ..shown },
            Err(_) => Self { base64: Some(BASE64_STANDARD.encode(bytes)), ..shown },
        }
    }
}

/// Reads `null` as a value: it is a content like any other JSON, and not an absent field.
fn null_as_value<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], detail: Detail, shown: &str) {
        assert_eq!(serde_json::to_string(&Content::show(bytes, detail)).unwrap(), shown);
        let read: Content = serde_json::from_str(shown).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), shown);
    }

    #[test]
    fn content_is_shown_as_json_text_or_base64() {
        check(b"null", Detail::Whole, r#"{"sizeBytes":4,"json":null}"#);
        check(br#"{"n":1.10e400}"#, Detail::Whole, r#"{"sizeBytes":14,"json":{"n":1.10e400}}"#);
        check(b"{", Detail::Listed, r#"{"sizeBytes":1,"text":"{"}"#);
        check(b"", Detail::Whole, r#"{"sizeBytes":0,"text":""}"#);
        check(b"\xff\x00", Detail::Whole, r#"{"sizeBytes":2,"base64":"/wA="}"#);
        let large = vec![b'7'; LISTED_BYTES_MAX + 1];
        check(&large, Detail::Listed, r#"{"sizeBytes":1025}"#);
        assert!(Content::show(&large, Detail::Whole).json.is_some());
        check(b"secret", Detail::Hidden, r#"{"sizeBytes":6,"hidden":true}"#);
    }
}
