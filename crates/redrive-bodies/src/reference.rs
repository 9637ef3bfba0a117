//! The reference of a stored body. It is safe to accept from any caller, because it contains no path.

use std::fmt;
use std::str::FromStr;

use redrive_core::Invalid;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::BODY_BYTES_MAX;

/// A reference to a stored body, with its id, length and SHA-256. The text form is `b1.<id>.<length>.<sha256>`, in lower-case
/// hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BodyRef {
    id: Uuid,
    length: u64,
    sha256: [u8; 32],
}

impl BodyRef {
    pub(super) fn new(id: Uuid, length: u64, sha256: [u8; 32]) -> Self {
        Self { id, length, sha256 }
    }

    /// The body's length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The body's SHA-256.
    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    pub(super) fn id(&self) -> Uuid {
        self.id
    }
}

/// The ids of the bodies that a payload refers to, at any position.
pub(super) fn body_ids_in(payload: &[u8]) -> impl Iterator<Item = Uuid> {
    const START: &[u8] = b"b1.";
    const ID_DIGITS: usize = 32;
    payload.windows(START.len() + ID_DIGITS + 1).filter_map(|window| {
        let (id, end) = window.strip_prefix(START)?.split_at(ID_DIGITS);
        if end == b"." { Uuid::try_parse_ascii(id).ok() } else { None }
    })
}

impl fmt::Display for BodyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b1.{}.{:x}.{}", self.id.simple(), self.length, hex::encode(self.sha256))
    }
}

impl FromStr for BodyRef {
    type Err = Invalid;

    /// Accepts exactly what `Display` writes, so that a body has only one reference.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("bodyRef", "must be a reference that PUT /v1/bodies returned");
        let body = parse(text).ok_or_else(invalid)?;
        if body.to_string() == text && body.length <= BODY_BYTES_MAX { Ok(body) } else { Err(invalid()) }
    }
}

impl TryFrom<String> for BodyRef {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<BodyRef> for String {
    fn from(body: BodyRef) -> Self {
        body.to_string()
    }
}

fn parse(text: &str) -> Option<BodyRef> {
    let mut parts = text.strip_prefix("b1.")?.split('.');
    let (id, length, digest) = (parts.next()?, parts.next()?, parts.next()?);
    if !text.is_ascii() || digest.len() != 64 || parts.next().is_some() {
        return None;
    }
    let mut sha256 = [0; 32];
    for (at, byte) in sha256.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digest[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(BodyRef { id: Uuid::try_parse(id).ok()?, length: u64::from_str_radix(length, 16).ok()?, sha256 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_read_as_it_was_written() {
        let body = BodyRef::new(Uuid::from_u128(0x18f), 70_000, [0xab; 32]);
        let text = format!("b1.0000000000000000000000000000018f.11170.{}", "ab".repeat(32));
        assert_eq!((body.to_string(), text.parse()), (text.clone(), Ok(body)));
        assert_eq!(serde_json::to_string(&body).unwrap(), format!("{text:?}"));
    }

    #[test]
    fn references_are_found_anywhere_in_a_payload() {
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let text = |id| BodyRef::new(id, 70_000, [0xab; 32]).to_string();
        let body_ids = |payload: String| body_ids_in(payload.as_bytes()).collect::<Vec<_>>();
        assert_eq!(body_ids(format!("redrive-body:{}", text(one))), [one]);
        assert_eq!(body_ids(format!("{{\"a\":\"{}\",\"b\":\"{}\"}}", text(one), text(two))), [one, two]);
        let cut = &text(one)[..35];
        for other in ["", "b1.", "b1.b1.x", cut, &format!("b2{}", &text(one)[2..]), &format!("{cut}x")] {
            assert!(body_ids(other.to_owned()).is_empty(), "{other}");
        }
    }

    #[test]
    fn an_invalid_reference_is_rejected() {
        let (id, digest) = ("0".repeat(32), "ab".repeat(32));
        for text in [
            String::new(),
            "b1".into(),
            "b1...".into(),
            format!("b2.{id}.1.{digest}"),
            format!("b1.{id}.1.{digest}."),
            format!("b1.{id}.1.{digest}.x"),
            format!("b1.{id}.01.{digest}"),
            format!("b1.{id}.+1.{digest}"),
            format!("b1.{id}.-1.{digest}"),
            format!("b1.{id}..{digest}"),
            format!("b1.{id}.{:x}.{digest}", BODY_BYTES_MAX + 1),
            format!("b1.{id}.ffffffffffffffffff.{digest}"),
            format!("b1.{id}.1.{}", "AB".repeat(32)),
            format!("b1.{id}.1.{}", "+b".repeat(32)),
            format!("b1.{id}.1.{}", "é".repeat(32)),
            format!("b1.{id}.1.{}", &digest[2..]),
            format!("b1.00000000-0000-0000-0000-000000000000.1.{digest}"),
            format!("b1.{{{id}}}.1.{digest}"),
            format!("b1.../../../../etc/passwd.1.{digest}"),
            format!("b1.{}.1.{digest}", "../".repeat(10)),
            format!(" b1.{id}.1.{digest}"),
            format!("b1.{id}.1.{digest}\n"),
            format!("b1.{id}.1.{digest}\0"),
        ] {
            assert!(text.parse::<BodyRef>().is_err(), "{text:?}");
        }
        assert!(format!("b1.{id}.{BODY_BYTES_MAX:x}.{digest}").parse::<BodyRef>().is_ok());
    }
}
