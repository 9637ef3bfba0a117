//! Secrets as callers send them, `<prefix><id>_<secret>`: API keys and session tokens. Only a hash of the secret is kept.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use redrive_core::StoreError;
use redrive_delivery::encoding::hex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

/// A secret that a caller sent, split into its parts.
pub(crate) struct PresentedSecret<'a> {
    /// The part that may be shown.
    pub(crate) id: &'a str,
    secret: &'a str,
}

impl<'a> PresentedSecret<'a> {
    /// Splits a text that begins with `prefix`; none if it cannot be such a secret.
    pub(crate) fn parse(prefix: &str, text: &'a str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(prefix)?.split_once('_')?;
        let plausible = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        plausible.then_some(Self { id, secret })
    }

    /// Whether the secret has this hash. The time it takes says nothing about the secret.
    pub(crate) fn matches(&self, hash: &[u8; 32]) -> bool {
        let own: [u8; 32] = Sha256::digest(self.secret).into();
        own.ct_eq(hash).into()
    }
}

/// A secret that was made just now. Its text is shown once and cannot be had again.
pub(crate) struct NewSecret {
    pub(crate) id: String,
    pub(crate) hash: [u8; 32],
    pub(crate) text: String,
}

impl NewSecret {
    /// A random secret that begins with `prefix`.
    pub(crate) fn random(prefix: &str) -> Result<Self, StoreError> {
        let (id, secret) = (hex(&random::<8>()?), BASE64_URL_SAFE_NO_PAD.encode(random::<32>()?));
        let text = format!("{prefix}{id}_{secret}");
        Ok(Self { id, hash: Sha256::digest(&secret).into(), text })
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
    fn what_is_no_secret_is_not_looked_up() {
        for text in ["", "rdk_", "rdk_x_y", "Basic abc", "rdk_0123456789abcdeg_x", "rdk_0123456789abcdef"] {
            assert!(PresentedSecret::parse("rdk_", text).is_none(), "{text}");
        }
        assert!(PresentedSecret::parse("rds_", "rdk_0123456789abcdef_x").is_none());
    }
}
