//! The owner's token: shown once, kept as a hash.

use sha2::{Digest as _, Sha256};

use crate::code::letters;

/// Letters of a token: 190 bits.
const TOKEN_CHARS: usize = 32;

/// What the database keeps of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerHash(pub [u8; 32]);

impl OwnerHash {
    /// Of a token that someone shows.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }
}

/// A new token.
pub fn draw() -> Result<String, getrandom::Error> {
    letters(TOKEN_CHARS)
}
