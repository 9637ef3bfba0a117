//! Bytes that programs keep with a job, as people can read them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// Bytes of a content that a list shows; a larger one is shown with its job.
pub const LISTED_BYTES_MAX: usize = 1024;

/// How much of a job's contents to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// All of them, for one job.
    Whole,
    /// Those up to [`LISTED_BYTES_MAX`], for many.
    Listed,
    /// None of them: the caller's key may not see bodies.
    Hidden,
}

/// What a program keeps with a job: its size, and one of `json`, `text` and `base64`, whichever fits first. None of them
/// where it is left out: for its size in a list, because it may hold secrets, or because the caller's key may not see bodies.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Content {
    /// How large it is.
    pub size_bytes: usize,
    /// The content, where it is JSON.
    #[serde(default, deserialize_with = "stated", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub json: Option<Box<RawValue>>,
    /// The content, where it is other text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub text: Option<String>,
    /// The content, where it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub base64: Option<String>,
    /// True where it is left out because the caller's key may not see bodies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub hidden: bool,
}

impl Content {
    /// The content as far as `detail` says.
    pub fn show(bytes: &[u8], detail: Detail) -> Self {
        match detail {
            Detail::Hidden => Self { hidden: true, ..Self::left_out(bytes) },
            Detail::Listed if bytes.len() > LISTED_BYTES_MAX => Self::left_out(bytes),
            Detail::Listed | Detail::Whole => Self::whole(bytes),
        }
    }

    /// The size alone.
    pub fn left_out(bytes: &[u8]) -> Self {
        Self { size_bytes: bytes.len(), json: None, text: None, base64: None, hidden: false }
    }

    fn whole(bytes: &[u8]) -> Self {
        let shown = Self::left_out(bytes);
        // As it was written: a number keeps its digits.
        if let Ok(json) = serde_json::from_slice(bytes) {
            return Self { json: Some(json), ..shown };
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { text: Some(text.to_owned()), ..shown },
            Err(_) => Self { base64: Some(BASE64_STANDARD.encode(bytes)), ..shown },
        }
    }
}

/// A content that is `null` is there all the same.
fn stated<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
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
    fn a_content_is_shown_as_what_it_is() {
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
