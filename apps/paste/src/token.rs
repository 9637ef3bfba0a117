//! The owner's token. It is shown once and stored as a hash.

use sha2::{Digest as _, Sha256};

use crate::code::random_letters;

/// The length of a token: 190 bits.
const TOKEN_CHARS: usize = 32;

/// The hash of a token, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerHash(pub [u8; 32]);

impl OwnerHash {
    /// The hash of a token.
    pub fn new(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }
}

/// A new random token.
pub fn random() -> Result<String, getrandom::Error> {
    random_letters(TOKEN_CHARS)
}
