//! Masks likely secrets, and formats payloads, outputs and metadata.

use redrive_core::sensitive::is_sensitive;
use redrive_wire::content::Content;
use serde_json::Value;
use url::Url;

use crate::text;

/// Replaces a secret.
pub(crate) const MASK: &str = "••••••";
/// Replaces a body that the API key may not read.
pub(crate) const HIDDEN: &str = "hidden: your API key may not read bodies";

/// Masks the value of a header with a sensitive name. The API masks it already.
pub(crate) fn header(name: &str, value: &str) -> String {
    if is_sensitive(name) { MASK.to_owned() } else { value.to_owned() }
}

/// Masks the password and sensitive query parameters of an address.
pub(crate) fn address(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return text.to_owned() };
    let has_sensitive_parameter = url.query_pairs().any(|(name, _)| is_sensitive(&name));
    if url.password().is_none() && !has_sensitive_parameter {
        return text.to_owned();
    }
    if url.password().is_some() {
        // Fails for addresses that cannot have a password.
        let _ = url.set_password(Some("masked"));
    }
    if has_sensitive_parameter {
        let mask_value = |(name, value): (std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)| {
            let value = if is_sensitive(&name) { "masked".to_owned() } else { value.into_owned() };
            (name.into_owned(), value)
        };
        let pairs: Vec<(String, String)> = url.query_pairs().map(mask_value).collect();
        url.query_pairs_mut().clear().extend_pairs(pairs);
    }
    url.to_string()
}

/// Formats a payload, an output or metadata.
pub(crate) fn content(content: &Content) -> String {
    if content.hidden {
        return HIDDEN.to_owned();
    }
    if let Some(json) = &content.json {
        return indented(json.get());
    }
    match (&content.text, &content.base64) {
        (Some(text), _) => text.clone(),
        (None, Some(base64)) => {
            format!("{} of binary data, in base64:\n{base64}", text::bytes(content.size_bytes))
        }
        (None, None) => format!("{}, not shown", text::bytes(content.size_bytes)),
    }
}

/// Indents JSON and masks likely secrets.
fn indented(json: &str) -> String {
    match serde_json::from_str::<Value>(json) {
        Ok(mut value) => {
            mask(&mut value);
            serde_json::to_string_pretty(&value).unwrap_or_default()
        }
        // The JSON has a number that is out of range, so its fields cannot be checked for secrets.
        Err(_) => format!("{} of JSON, not shown", text::bytes(json.len())),
    }
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if is_sensitive(name) && !value.is_object() && !value.is_array() && !value.is_null() {
                    *value = Value::String(MASK.to_owned());
                } else {
                    mask(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sensitive_name_masks_the_value() {
        for (name, hidden) in [
            ("Authorization", true),
            ("proxy-authorization", true),
            ("X-Api-Key", true),
            ("Cookie", true),
            ("webhook-signature", true),
            ("X-Session-Token", true),
            ("content-type", false),
            ("idempotency-key", false),
        ] {
            assert_eq!(header(name, "v") == MASK, hidden, "{name}");
        }
    }

    #[test]
    fn other_parts_of_addresses_and_payloads_are_kept() {
        assert_eq!(address("https://a/b?c=d"), "https://a/b?c=d");
        assert_eq!(address("https://u:p@a/b"), "https://u:masked@a/b");
        assert_eq!(address("https://a/?token=x&c=d"), "https://a/?token=masked&c=d");
        let shown = indented(r#"{"user":"u","password":"p","inner":[{"apiKey":7,"n":1}]}"#);
        assert!(!shown.contains("\"p\"") && !shown.contains('7') && shown.contains("\"u\""), "{shown}");
        assert!(indented("1e999").contains("not shown"));
    }
}
