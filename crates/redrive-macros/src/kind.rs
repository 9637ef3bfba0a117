//! The kind of a task: the option `kind`, or the name of the type in snake_case.

use syn::{Ident, LitStr};

/// The longest kind that a store accepts, in bytes. It equals `NAME_BYTES_MAX` of `redrive-core`.
const KIND_BYTES_MAX: usize = 128;

/// Rejects a kind that every enqueue would reject.
pub(crate) fn check(kind: &LitStr) -> syn::Result<()> {
    let text = kind.value();
    let problem = if text.is_empty() {
        "a kind must not be empty".to_owned()
    } else if text.len() > KIND_BYTES_MAX {
        format!("this kind is {} bytes long, at most {KIND_BYTES_MAX} are allowed", text.len())
    } else if text.chars().any(char::is_control) {
        "a kind must not have control characters".to_owned()
    } else {
        return Ok(());
    };
    Err(syn::Error::new(kind.span(), problem))
}

/// The kind of a type without the option `kind`.
pub(crate) fn of_type(name: &Ident) -> LitStr {
    let text = name.to_string();
    LitStr::new(&snake_case(text.trim_start_matches("r#")), name.span())
}

/// `SendReceipt` as `send_receipt`, `HTTPCall` as `http_call`, `Sha256Sum` as `sha256_sum`.
fn snake_case(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut snake = String::with_capacity(name.len() + 4);
    for (at, letter) in letters.iter().enumerate() {
        if at > 0 && starts_word(letters[at - 1], *letter, letters.get(at + 1).copied()) {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// An uppercase letter starts a word after a lowercase letter or a digit. The last of several uppercase letters also starts a word
/// if a lowercase letter follows.
fn starts_word(before: char, letter: char, after: Option<char>) -> bool {
    let ends_acronym = before.is_uppercase() && after.is_some_and(char::is_lowercase);
    letter.is_uppercase() && before != '_' && (!before.is_uppercase() || ends_acronym)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_name_becomes_snake_case() {
        for (name, kind) in [
            ("SendReceipt", "send_receipt"),
            ("Welcome", "welcome"),
            ("HTTPCall", "http_call"),
            ("CallHTTP", "call_http"),
            ("Sha256Sum", "sha256_sum"),
            ("A", "a"),
            ("AB", "ab"),
            ("ATask", "a_task"),
            ("Already_Snake", "already_snake"),
            ("Überweisung", "überweisung"),
        ] {
            assert_eq!(snake_case(name), kind, "{name}");
        }
    }
}
