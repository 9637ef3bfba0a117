//! Keeps what is likely a secret off the screen, and lays out what programs keep with a job.

use redrive_server::wire::content::Content;
use redrive_server::wire::is_sensitive;
use serde_json::Value;
use url::Url;

use crate::words;

/// What is shown instead.
pub(crate) const MASK: &str = "••••••";
/// What is shown instead of what the visitor's key may not see.
pub(crate) const HIDDEN: &str = "hidden: this key may not see bodies";

/// A header's value, unless its name tells of a secret. The API masks it already.
pub(crate) fn header(name: &str, value: &str) -> String {
    if is_sensitive(name) { MASK.to_owned() } else { value.to_owned() }
}

/// An address without the password and the secrets in its query.
pub(crate) fn address(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return text.to_owned() };
    let hides = url.query_pairs().any(|(name, _)| is_sensitive(&name));
    if url.password().is_none() && !hides {
        return text.to_owned();
    }
    if url.password().is_some() {
        // It fails for addresses that cannot have one.
        let _ = url.set_password(Some("masked"));
    }
    if hides {
        let shown = |(name, value): (std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)| {
            let value = if is_sensitive(&name) { "masked".to_owned() } else { value.into_owned() };
            (name.into_owned(), value)
        };
        let pairs: Vec<(String, String)> = url.query_pairs().map(shown).collect();
        url.query_pairs_mut().clear().extend_pairs(pairs);
    }
    url.to_string()
}

/// What a program keeps with a job, as text to look at.
pub(crate) fn content(content: &Content) -> String {
    if content.hidden {
        return HIDDEN.to_owned();
    }
    if let Some(json) = &content.json {
        return layout(json.get());
    }
    match (&content.text, &content.base64) {
        (Some(text), _) => text.clone(),
        (None, Some(base64)) => {
            format!("{} that are no text, in base64:\n{base64}", words::bytes(content.size_bytes))
        }
        (None, None) => format!("{}, not shown", words::bytes(content.size_bytes)),
    }
}

/// JSON over several lines, with what is likely a secret masked. Numbers keep their digits where they can be kept.
fn layout(json: &str) -> String {
    match serde_json::from_str::<Value>(json) {
        Ok(mut value) => {
            mask(&mut value);
            serde_json::to_string_pretty(&value).unwrap_or_default()
        }
        // A number beyond what a program here can hold; nothing of it is known to be a secret or not.
        Err(_) => format!("{} of JSON, not shown", words::bytes(json.len())),
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
    fn secrets_are_told_by_their_names() {
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
    fn addresses_and_payloads_keep_the_rest() {
        assert_eq!(address("https://a/b?c=d"), "https://a/b?c=d");
        assert_eq!(address("https://u:p@a/b"), "https://u:masked@a/b");
        assert_eq!(address("https://a/?token=x&c=d"), "https://a/?token=masked&c=d");
        let shown = layout(r#"{"user":"u","password":"p","inner":[{"apiKey":7,"n":1}]}"#);
        assert!(!shown.contains("\"p\"") && !shown.contains('7') && shown.contains("\"u\""), "{shown}");
        assert!(layout("1e999").contains("not shown"));
    }
}
