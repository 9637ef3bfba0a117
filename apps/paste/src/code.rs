//! Short codes: Base62, drawn by lot so that nobody can guess the next one, or chosen by whoever pastes.

use std::fmt;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Characters of a code that is drawn by lot: 62^7 is 3.5 million millions.
pub const DRAWN_CHARS: usize = 7;
/// Characters that an alias may have.
pub const ALIAS_CHARS_MAX: usize = 8;

/// Words that are paths of the site, or might become one.
const RESERVED: [&str; 14] = [
    "about", "admin", "api", "assets", "edit", "favicon", "health", "help", "index", "login", "new", "raw",
    "robots", "static",
];

/// A code that names a paste.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(String);

/// Why an alias is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AliasError {
    /// It has characters that no code has, or too many.
    #[error("an alias has 1 to {ALIAS_CHARS_MAX} characters, each one of 0-9, A-Z and a-z")]
    Malformed,
    /// It is a word of the site's own.
    #[error("this word is reserved; choose another alias")]
    Reserved,
}

impl Code {
    /// A new code that nobody can guess.
    pub fn draw() -> Result<Self, getrandom::Error> {
        Ok(Self(letters(DRAWN_CHARS)?))
    }

    /// The code that someone wants.
    pub fn alias(text: &str) -> Result<Self, AliasError> {
        let code = Self::parse(text).ok_or(AliasError::Malformed)?;
        if RESERVED.iter().any(|word| word.eq_ignore_ascii_case(text)) {
            return Err(AliasError::Reserved);
        }
        Ok(code)
    }

    /// What can be a code at all; anything else names no paste.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = (1..=ALIAS_CHARS_MAX).contains(&text.len());
        (fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric())).then(|| Self(text.to_owned()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// So many letters of the alphabet, each as likely as any other, from the system's own randomness.
pub(crate) fn letters(count: usize) -> Result<String, getrandom::Error> {
    let mut text = String::with_capacity(count);
    let mut drawn = [0; 32];
    while text.len() < count {
        getrandom::fill(&mut drawn)?;
        // What is over the largest multiple of 62 would make the first letters likelier.
        let fair = drawn.iter().filter(|byte| **byte < 248).map(|byte| ALPHABET[usize::from(byte % 62)]);
        text.extend(fair.map(char::from).take(count - text.len()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn drawn_codes_use_the_whole_alphabet_and_do_not_repeat() {
        let codes: BTreeSet<Code> = (0..2_000).map(|_| Code::draw().unwrap()).collect();
        assert_eq!(codes.len(), 2_000);
        let used: BTreeSet<u8> = codes.iter().flat_map(|code| code.as_str().bytes()).collect();
        assert_eq!(used.len(), 62);
        assert!(
            codes
                .iter()
                .all(|code| code.as_str().len() == DRAWN_CHARS && Code::parse(code.as_str()).is_some())
        );
    }

    #[test]
    fn an_alias_is_short_base62_and_no_word_of_the_site() {
        for good in ["a", "Zz9", "12345678", "rawx"] {
            assert_eq!(Code::alias(good).map(|code| code.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "123456789", "a-b", "ä", "a b", "../x", "x/y"] {
            assert_eq!(Code::alias(bad), Err(AliasError::Malformed), "{bad:?}");
        }
        for word in ["api", "raw", "API", "Assets", "health"] {
            assert_eq!(Code::alias(word), Err(AliasError::Reserved), "{word:?}");
        }
    }
}
