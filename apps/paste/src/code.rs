//! Short codes in Base62: random, so that nobody can guess the next one, or chosen by the user.

use std::fmt;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The length of a random code. There are 62^7, about 3.5 trillion.
pub const RANDOM_CHARS: usize = 7;
/// The longest alias.
pub const ALIAS_CHARS_MAX: usize = 8;

/// Words that are paths of the site, or may become paths.
const RESERVED: [&str; 14] = [
    "about", "admin", "api", "assets", "edit", "favicon", "health", "help", "index", "login", "new", "raw",
    "robots", "static",
];

/// A code that names a paste.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(String);

/// Why an alias is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AliasError {
    /// It is empty, too long, or has invalid characters.
    #[error("an alias has 1 to {ALIAS_CHARS_MAX} characters, each one of 0-9, A-Z and a-z")]
    Malformed,
    /// It is a reserved word.
    #[error("this word is reserved; choose another alias")]
    Reserved,
}

impl Code {
    /// A new random code.
    pub fn random() -> Result<Self, getrandom::Error> {
        Ok(Self(random_letters(RANDOM_CHARS)?))
    }

    /// Parses an alias.
    pub fn alias(text: &str) -> Result<Self, AliasError> {
        let code = Self::parse(text).ok_or(AliasError::Malformed)?;
        if RESERVED.iter().any(|word| word.eq_ignore_ascii_case(text)) {
            return Err(AliasError::Reserved);
        }
        Ok(code)
    }

    /// Parses a code. Other text names no paste.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = (1..=ALIAS_CHARS_MAX).contains(&text.len());
        (fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric())).then(|| Self(text.to_owned()))
    }

    /// The code as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Letters of the alphabet, each with the same probability, from the system's random source.
pub(crate) fn random_letters(count: usize) -> Result<String, getrandom::Error> {
    let mut text = String::with_capacity(count);
    let mut random = [0; 32];
    while text.len() < count {
        getrandom::fill(&mut random)?;
        // Bytes above the largest multiple of 62 would make the first letters more likely.
        let uniform = random.iter().filter(|byte| **byte < 248).map(|byte| ALPHABET[usize::from(byte % 62)]);
        text.extend(uniform.map(char::from).take(count - text.len()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn random_codes_use_the_whole_alphabet_and_do_not_repeat() {
        let codes: BTreeSet<Code> = (0..2_000).map(|_| Code::random().unwrap()).collect();
        assert_eq!(codes.len(), 2_000);
        let used: BTreeSet<u8> = codes.iter().flat_map(|code| code.as_str().bytes()).collect();
        assert_eq!(used.len(), 62);
        assert!(
            codes
                .iter()
                .all(|code| code.as_str().len() == RANDOM_CHARS && Code::parse(code.as_str()).is_some())
        );
    }

    #[test]
    fn an_alias_is_short_base62_and_not_reserved() {
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
