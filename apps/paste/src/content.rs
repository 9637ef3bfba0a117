//! The content of a paste: its limits, its hash, and the parts in which it waits for its upload.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// The largest content.
pub const CONTENT_BYTES_MAX: usize = 10 * 1024 * 1024;
/// The size of a part, which is stored in one row.
pub const PART_BYTES: usize = 1024 * 1024;

/// A content within the limits.
#[derive(Debug, Clone)]
pub struct Content {
    bytes: Bytes,
    sha256: [u8; 32],
}

/// Why a content is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// It is empty.
    #[error("content is empty; paste something")]
    Empty,
    /// It is too large.
    #[error("content has more than {CONTENT_BYTES_MAX} bytes; paste less")]
    TooLarge,
}

impl Content {
    /// A content. Fails if it is empty or too large.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, ContentError> {
        let bytes = bytes.into();
        match bytes.len() {
            0 => Err(ContentError::Empty),
            1..=CONTENT_BYTES_MAX => Ok(Self { sha256: Sha256::digest(&bytes).into(), bytes }),
            _ => Err(ContentError::TooLarge),
        }
    }

    /// The hash of the content.
    pub fn sha256(&self) -> [u8; 32] {
        self.sha256
    }

    /// The length in bytes.
    pub fn size(&self) -> i64 {
        self.bytes.len() as i64
    }

    /// The parts with their numbers. The last one may be shorter.
    pub fn parts(&self) -> impl Iterator<Item = (i32, &[u8])> {
        (0..).zip(self.bytes.chunks(PART_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_is_neither_empty_nor_too_large() {
        assert_eq!(Content::new("").unwrap_err(), ContentError::Empty);
        assert_eq!(Content::new(vec![b'x'; CONTENT_BYTES_MAX + 1]).unwrap_err(), ContentError::TooLarge);
        let largest = Content::new(vec![b'x'; CONTENT_BYTES_MAX]).unwrap();
        assert_eq!(largest.parts().map(|(_, part)| part.len()).sum::<usize>(), CONTENT_BYTES_MAX);
        assert_eq!(largest.parts().last().map(|(number, _)| number), Some(9));
    }
}
