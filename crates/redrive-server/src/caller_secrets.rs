//! The format of API keys and session tokens: `<prefix><id>_<secret>`. Only a hash of the secret is stored.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use redrive_core::StoreError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

/// A key or token that a caller sent, split into its parts.
pub(crate) struct PresentedSecret<'a> {
    /// The part that may be shown.
    pub(crate) id: &'a str,
    secret: &'a str,
}

impl<'a> PresentedSecret<'a> {
    /// Splits a text that starts with `prefix`; `None` if it does not have the right format.
    pub(crate) fn parse(prefix: &str, text: &'a str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(prefix)?.split_once('_')?;
        let plausible = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        plausible.then_some(Self { id, secret })
    }

    /// Whether the secret has this hash, in constant time.
    pub(crate) fn matches(&self, hash: &SecretHash) -> bool {
        SecretHash::of(self.secret).0.ct_eq(&hash.0).into()
    }
}

/// The SHA-256 hash of a secret. It is stored as base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SecretHash([u8; 32]);

impl SecretHash {
    fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret).into())
    }
}

impl From<SecretHash> for String {
    fn from(hash: SecretHash) -> Self {
        BASE64_URL_SAFE_NO_PAD.encode(hash.0)
    }
}

impl TryFrom<String> for SecretHash {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|error| error.to_string())?;
        Ok(Self(bytes.try_into().map_err(|_| "the hash is not 32 bytes long")?))
    }
}

/// A new secret. Its text is shown once and cannot be read again.
pub(crate) struct NewSecret {
    pub(crate) id: String,
    pub(crate) hash: SecretHash,
    pub(crate) text: String,
}

impl NewSecret {
    /// A random secret that starts with `prefix`.
    pub(crate) fn random(prefix: &str) -> Result<Self, StoreError> {
        let (id, secret) = (hex::encode(random::<8>()?), BASE64_URL_SAFE_NO_PAD.encode(random::<32>()?));
        let text = format!("{prefix}{id}_{secret}");
        Ok(Self { id, hash: SecretHash::of(&secret), text })
    }
}

fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| StoreError::Failed(e.into()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_secret_is_not_looked_up() {
        for text in ["", "rdk_", "rdk_x_y", "Basic abc", "rdk_0123456789abcdeg_x", "rdk_0123456789abcdef"] {
            assert!(PresentedSecret::parse("rdk_", text).is_none(), "{text}");
        }
        assert!(PresentedSecret::parse("rds_", "rdk_0123456789abcdef_x").is_none());
    }
}
