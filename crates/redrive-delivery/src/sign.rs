//! Standard Webhooks signatures: the receiver of a call can verify who sent it and that it was not changed.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use redrive_core::Invalid;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::encoding::LENIENT_BASE64;

/// The header with the id of the message: the task's id, the same on each attempt.
pub const ID_HEADER: &str = "webhook-id";
/// The header with the time of the attempt, in seconds since the Unix epoch.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// The header with a signature for each active secret.
pub const SIGNATURE_HEADER: &str = "webhook-signature";
/// The fewest bytes of a secret.
pub const SECRET_BYTES_MIN: usize = 24;
/// The most bytes of a secret.
pub const SECRET_BYTES_MAX: usize = 64;

const PREFIX: &str = "whsec_";
const GENERATED_BYTES: usize = 32;

/// A key that signs calls. It is wiped from memory when it is dropped, and `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret(Zeroizing<Vec<u8>>);

impl SigningSecret {
    /// Reads `whsec_` and the base64 of 24 to 64 bytes.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let invalid = || {
            Invalid::new(
                "secret",
                format!("must be {PREFIX} and the base64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes"),
            )
        };
        let encoded = text.strip_prefix(PREFIX).ok_or_else(invalid)?;
        let bytes = LENIENT_BASE64.decode(encoded).map(Zeroizing::new).map_err(|_| invalid())?;
        Self::from_bytes(bytes).ok_or_else(invalid)
    }

    /// Generates a secret with the secure random numbers of the system.
    pub fn generate() -> Self {
        let mut bytes = Zeroizing::new(vec![0; GENERATED_BYTES]);
        SystemRandom::new().fill(&mut bytes).expect("the system gives random bytes");
        Self(bytes)
    }

    /// The secret as text, to be shown once to its creator.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{PREFIX}{}", STANDARD.encode(&*self.0)))
    }

    pub(crate) fn from_bytes(bytes: Zeroizing<Vec<u8>>) -> Option<Self> {
        (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()).then_some(Self(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(…)")
    }
}

/// Signs one attempt while its body is read in parts, so that a large body is never in memory as a whole.
///
/// ```
/// use redrive_delivery::sign::{Signer, SigningSecret};
///
/// let secret = SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
/// let mut signer = Signer::new(&[secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330);
/// signer.update(br#"{"test": 2432232314}"#);
/// assert_eq!(signer.finish().signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
/// ```
pub struct Signer {
    id: String,
    timestamp_s: i64,
    signatures: Vec<hmac::Context>,
}

impl Signer {
    /// Starts the signature of the message `id`, sent at `timestamp_s` seconds since the Unix epoch, with each of the secrets.
    pub fn new(secrets: &[SigningSecret], id: &str, timestamp_s: i64) -> Self {
        let begin = |secret: &SigningSecret| {
            let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()));
            context.update(format!("{id}.{timestamp_s}.").as_bytes());
            context
        };
        Self { id: id.to_owned(), timestamp_s, signatures: secrets.iter().map(begin).collect() }
    }

    /// Adds the next part of the body.
    pub fn update(&mut self, chunk: &[u8]) {
        for context in &mut self.signatures {
            context.update(chunk);
        }
    }

    /// The headers, after the whole body was added.
    pub fn finish(self) -> SignatureHeaders {
        let encode = |context: hmac::Context| format!("v1,{}", STANDARD.encode(context.sign()));
        SignatureHeaders {
            id: self.id,
            timestamp: self.timestamp_s.to_string(),
            signature: self.signatures.into_iter().map(encode).collect::<Vec<_>>().join(" "),
        }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The headers of a signed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureHeaders {
    /// For [`ID_HEADER`].
    pub id: String,
    /// For [`TIMESTAMP_HEADER`].
    pub timestamp: String,
    /// For [`SIGNATURE_HEADER`].
    pub signature: String,
}

impl SignatureHeaders {
    /// Names and values, in this order.
    pub fn iter(&self) -> [(&'static str, &str); 3] {
        [(ID_HEADER, &self.id), (TIMESTAMP_HEADER, &self.timestamp), (SIGNATURE_HEADER, &self.signature)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(secrets: &[SigningSecret], id: &str, timestamp_s: i64, chunks: &[&[u8]]) -> String {
        let mut signer = Signer::new(secrets, id, timestamp_s);
        chunks.iter().for_each(|chunk| signer.update(chunk));
        signer.finish().signature
    }

    /// The first signature comes from the libraries of the specification; the others were computed with `standardwebhooks` 1.1.0
    /// from PyPI.
    #[test]
    fn signatures_are_those_of_the_reference_implementation() {
        let short = SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let long = SigningSecret(Zeroizing::new((0..64).collect()));
        let published = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let message = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330);
        let whole: &[&[u8]] = &[br#"{"test": 2432232314}"#];
        let parts: &[&[u8]] = &[b"{\"te", b"", b"st\": 2432", b"232314}"];
        assert_eq!(sign(std::slice::from_ref(&short), message.0, message.1, whole), published);
        assert_eq!(sign(std::slice::from_ref(&short), message.0, message.1, parts), published);
        let empty = "v1,8rM1EnAVQz+sBb90ILpuDQs/Wzzo7pFWx/CRmG7bx5A=";
        let task = "018f0000-0000-7000-8000-000000000001";
        assert_eq!(sign(std::slice::from_ref(&long), task, 1_700_000_000, &[]), empty);
        let both = sign(&[short, long.clone()], message.0, message.1, whole);
        let second = sign(&[long], message.0, message.1, whole);
        assert_eq!(both, format!("{published} {second}"), "each active secret signs, the newest first");
    }

    #[test]
    fn a_secret_is_a_prefix_and_the_base64_of_24_to_64_bytes() {
        let encode = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for bytes in [24, 25, 32, 64] {
            let text = encode(bytes);
            let secret = SigningSecret::parse(&text).unwrap();
            assert_eq!(*secret.reveal(), text);
            assert_eq!(
                SigningSecret::parse(text.trim_end_matches('=')).unwrap(),
                secret,
                "padding is optional"
            );
        }
        for text in ["", "whsec_", "whsec_!!!!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", &encode(23), &encode(65)]
        {
            let error = SigningSecret::parse(text).unwrap_err().to_string();
            assert!(error.contains("24 to 64 bytes"), "{error}");
        }
    }

    #[test]
    fn a_generated_secret_is_new_and_not_printed() {
        let (one, two) = (SigningSecret::generate(), SigningSecret::generate());
        assert_ne!(one, two);
        assert_eq!(SigningSecret::parse(&one.reveal()).unwrap(), one);
        assert_eq!(format!("{one:?}"), "SigningSecret(…)");
    }
}
