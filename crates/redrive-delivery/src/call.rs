//! The call of a task, which is the payload of its job. It is checked before it is stored.

use std::fmt;

use http::HeaderMap;
use redrive_core::limits::{KEY_BYTES_MAX, NAME_BYTES_MAX};
use redrive_core::{IdempotencyKey, Invalid, Job, JobId, Tenant};
use serde::{Deserialize, Serialize};

use crate::bodies::BodyRef;
use crate::headers;
use crate::secrets::{Vault, VaultError};
use crate::target::Target;

/// The largest body that is stored in the job itself, in bytes. Larger bodies are stored in the object store.
pub const BODY_INLINE_BYTES_MAX: usize = 64 * 1024;

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// The call that each attempt of a task makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The target.
    pub target: Target,
    /// The HTTP method, in upper case.
    pub method: String,
    /// The headers of the caller, in their order.
    pub headers: Vec<(String, HeaderText)>,
    /// The body.
    pub body: CallBody,
    /// The name of the signing secret.
    pub signing_secret: Option<String>,
    /// The callback URL for success.
    pub on_success: Option<Target>,
    /// The callback URL for a task that is dead.
    pub on_failure: Option<Target>,
}

/// The value of a header. `Debug` does not show it: it may be a credential.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, rename_all = "camelCase")]
pub enum HeaderText {
    /// Plain text.
    Plain(String),
    /// Encrypted with the key of the service, in base64.
    Sealed {
        /// The ciphertext, bound to its tenant, job and header.
        sealed: String,
    },
}

impl HeaderText {
    /// The value for people. A credential is masked, encrypted or not.
    pub fn masked(&self, name: &str) -> String {
        match self {
            Self::Plain(text) if !redrive_core::sensitive::is_sensitive(name) => text.clone(),
            Self::Plain(_) | Self::Sealed { .. } => redrive_core::sensitive::MASK.to_owned(),
        }
    }

    /// The value that is sent; `None` while it is encrypted.
    pub fn plain(&self) -> Option<&str> {
        match self {
            Self::Plain(text) => Some(text),
            Self::Sealed { .. } => None,
        }
    }
}

impl<T: Into<String>> From<T> for HeaderText {
    fn from(text: T) -> Self {
        Self::Plain(text.into())
    }
}

impl fmt::Debug for HeaderText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain(…)",
            Self::Sealed { .. } => "Sealed(…)",
        })
    }
}

/// The body of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallBody {
    /// No body.
    None,
    /// Bytes in the job.
    Inline(Vec<u8>),
    /// A body in the object store.
    Stored(BodyRef),
}

impl Call {
    /// A POST without headers and body.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            method: "POST".into(),
            headers: Vec::new(),
            body: CallBody::None,
            signing_secret: None,
            on_success: None,
            on_failure: None,
        }
    }

    /// Checks what the types do not guarantee: method, headers, size of the body, signing secret and callback URLs.
    pub fn check(&self) -> Result<(), Invalid> {
        self.header_map()?;
        check_method(&self.method, &self.target)?;
        if let CallBody::Inline(body) = &self.body
            && body.len() > BODY_INLINE_BYTES_MAX
        {
            let limit =
                format!("must be at most {BODY_INLINE_BYTES_MAX} bytes; upload it with `PUT /v1/bodies`");
            return Err(Invalid::new("body", limit));
        }
        if let Some(name) = &self.signing_secret {
            check_text("signingSecret", name, NAME_BYTES_MAX)?;
            headers::refuse_signature_headers(self.headers.iter().map(|(name, _)| name.as_str()))?;
        }
        for (field, target) in [("onSuccessUrl", &self.on_success), ("onFailureUrl", &self.on_failure)] {
            target.as_ref().map_or(Ok(()), |target| check_callback_target(field, target))?;
        }
        Ok(())
    }

    /// Whether a payload may have a callback URL. `false` is certain, and much cheaper than decoding the payload.
    pub fn may_have_callback(payload: &[u8]) -> bool {
        let head = payload.get(..4).and_then(|length| length.try_into().ok()).map(u32::from_le_bytes);
        let head = head.and_then(|length| payload.get(4..4 + length as usize)).unwrap_or(payload);
        [&b"\"onSuccess\""[..], b"\"onFailure\"", b"\"onExhausted\""]
            .iter()
            .any(|name| head.windows(name.len()).any(|part| part == *name))
    }

    /// The headers of the caller as they are sent. Fails while one of them is encrypted.
    pub fn header_map(&self) -> Result<HeaderMap, Invalid> {
        let plain = |(name, value): &'_ (String, HeaderText)| match value {
            HeaderText::Plain(text) => Ok((name.clone(), text.clone())),
            HeaderText::Sealed { .. } => Err(Invalid::new("headers", format!("{name} is still encrypted"))),
        };
        let plain = self.headers.iter().map(plain).collect::<Result<Vec<_>, _>>()?;
        let plain: Vec<(&str, &str)> = plain.iter().map(|(name, text)| (&**name, &**text)).collect();
        headers::read(&plain, self.target.scheme())
    }

    /// Encrypts the headers that carry credentials. They can be decrypted for the job `id` of `tenant` only.
    pub fn seal_headers(&mut self, vault: &Vault, tenant: &Tenant, id: JobId) {
        for (name, value) in &mut self.headers {
            if let HeaderText::Plain(text) = value
                && redrive_core::sensitive::is_sensitive(name)
            {
                *value = HeaderText::Sealed { sealed: vault.seal_header(tenant, id, name, text) };
            }
        }
    }

    /// Decrypts the headers that [`Call::seal_headers`] encrypted. Fails with [`VaultError::WrongKey`] if the vault has another key.
    pub fn open_headers(&mut self, vault: &Vault, tenant: &Tenant, id: JobId) -> Result<(), VaultError> {
        for (name, value) in &mut self.headers {
            if let HeaderText::Sealed { sealed } = value {
                *value = HeaderText::Plain(vault.open_header(tenant, id, name, sealed)?);
            }
        }
        Ok(())
    }

    /// The payload: the length of a JSON head, the head, and the inline body.
    pub fn encode(&self) -> Vec<u8> {
        let (place, inline) = match &self.body {
            CallBody::None => (BodyPlace::None, &[][..]),
            CallBody::Inline(body) => (BodyPlace::Inline, &body[..]),
            CallBody::Stored(name) => (BodyPlace::Stored(*name), &[][..]),
        };
        let head = StoredHead {
            target: self.target.clone(),
            method: self.method.clone(),
            headers: self.headers.clone(),
            body: place,
            signing_secret: self.signing_secret.clone(),
            on_success: self.on_success.clone(),
            on_failure: self.on_failure.clone(),
        };
        // Text, lists and options always serialise.
        let head = serde_json::to_vec(&head).unwrap_or_default();
        let length = u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes();
        [&length[..], &head, inline].concat()
    }

    /// Reads the output of [`Call::encode`].
    pub fn decode(payload: &[u8]) -> Result<Self, Invalid> {
        let damaged = |what: String| Invalid::new("payload", what);
        let (length, rest) =
            payload.split_first_chunk().ok_or_else(|| damaged("is too short to be a call".into()))?;
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (head, inline) =
            rest.split_at_checked(length).ok_or_else(|| damaged("ends within its head".into()))?;
        let head: StoredHead =
            serde_json::from_slice(head).map_err(|error| damaged(format!("is not a call: {error}")))?;
        let body = match head.body {
            BodyPlace::Inline => CallBody::Inline(inline.to_vec()),
            BodyPlace::None | BodyPlace::Stored(_) if !inline.is_empty() => {
                return Err(damaged("has bytes after its end".into()));
            }
            BodyPlace::None => CallBody::None,
            BodyPlace::Stored(name) => CallBody::Stored(name),
        };
        Ok(Self {
            target: head.target,
            method: head.method,
            headers: head.headers,
            body,
            signing_secret: head.signing_secret,
            on_success: head.on_success,
            on_failure: head.on_failure,
        })
    }
}

/// A method in upper case; POST if there is none.
pub fn read_method(method: Option<&str>) -> Result<String, Invalid> {
    let method = method.unwrap_or("POST").to_ascii_uppercase();
    if METHODS.contains(&method.as_str()) {
        return Ok(method);
    }
    Err(Invalid::new("method", format!("must be one of {}", METHODS.join(", "))))
}

/// Refuses a target that cannot receive callbacks, which are JSON over HTTP.
pub fn check_callback_target(field: &'static str, target: &Target) -> Result<(), Invalid> {
    if target.scheme().is_grpc() {
        return Err(Invalid::new(field, "must be http or https, because callbacks are JSON over HTTP"));
    }
    Ok(())
}

/// The trace context and key that travel with a task. They may differ between a request and its repetition, so they are not part of the
/// payload but of the job's metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PropagatedContext {
    /// The key of a task that redrive itself creates, such as a callback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The trace context of the creator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Vendor-specific trace data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

impl PropagatedContext {
    /// Checks that each field can be sent as a header.
    pub fn check(&self) -> Result<(), Invalid> {
        let parts = [
            ("idempotencyKey", &self.key),
            ("traceparent", &self.traceparent),
            ("tracestate", &self.tracestate),
        ];
        for (field, part) in parts {
            if let Some(text) = part {
                check_text(field, text, if field == "tracestate" { 512 } else { KEY_BYTES_MAX })?;
            }
        }
        Ok(())
    }

    /// The idempotency key on every attempt of `job`: the key of the caller, else the key of a callback, else the id of the job.
    pub fn key_for(&self, job: &Job) -> String {
        self.key(job.key.as_ref(), job.id)
    }

    /// Like [`PropagatedContext::key_for`], for a job that is not enqueued yet: `own` is the key of the caller.
    pub fn key(&self, own: Option<&IdempotencyKey>, id: JobId) -> String {
        let own = own.map(ToString::to_string);
        own.or_else(|| self.key.clone()).unwrap_or_else(|| id.to_string())
    }

    /// The JSON for the metadata of a job.
    pub fn to_json(&self) -> String {
        // Text and options always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the output of [`PropagatedContext::to_json`].
    pub fn from_json(json: &str) -> Result<Self, Invalid> {
        serde_json::from_str(json)
            .map_err(|error| Invalid::new("metadata", format!("is not a propagated context: {error}")))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredHead {
    target: Target,
    method: String,
    headers: Vec<(String, HeaderText)>,
    body: BodyPlace,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signing_secret: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on_success: Option<Target>,
    /// Tasks of earlier releases have it under the name `onExhausted`.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "onExhausted")]
    on_failure: Option<Target>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum BodyPlace {
    None,
    Inline,
    Stored(BodyRef),
}

fn check_method(method: &str, target: &Target) -> Result<(), Invalid> {
    if read_method(Some(method))? != method {
        return Err(Invalid::new("method", "must be in upper case"));
    }
    if target.scheme().is_grpc() && method != "POST" {
        return Err(Invalid::new("method", "must be POST or left out, because the target is gRPC"));
    }
    Ok(())
}

fn check_text(field: &'static str, text: &str, bytes_max: usize) -> Result<(), Invalid> {
    if text.is_empty() || text.len() > bytes_max {
        return Err(Invalid::new(field, format!("must be 1 to {bytes_max} bytes long")));
    }
    if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(Invalid::new(field, "must be visible ASCII"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call {
        Call::new(Target::parse("https://example.com/hook").unwrap())
    }

    #[test]
    fn a_call_is_unchanged_after_encoding_and_decoding() {
        let full = Call {
            method: "PUT".into(),
            headers: vec![("X-A".into(), "1".into()), ("x-a".into(), "\"2\"".into())],
            body: CallBody::Inline((0..=255).collect()),
            signing_secret: Some("main".into()),
            on_success: Some(Target::parse("http://example.com/ok").unwrap()),
            on_failure: Some(Target::parse("https://example.com/dead").unwrap()),
            ..call()
        };
        let stored = Call { body: CallBody::Stored("b1.019b76daa8007000800000000000000a.3.ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".parse().unwrap()), ..call() };
        let empty = Call { body: CallBody::Inline(Vec::new()), ..call() };
        for call in [call(), full, stored, empty] {
            assert_eq!(call.check(), Ok(()));
            let has_callback = call.on_success.is_some() || call.on_failure.is_some();
            assert_eq!(Call::may_have_callback(&call.encode()), has_callback);
            assert_eq!(Call::decode(&call.encode()), Ok(call));
        }
    }

    #[test]
    fn a_task_of_an_earlier_release_keeps_its_callback() {
        let head = br#"{"target":"https://example.com/hook","method":"POST","headers":[],"body":"none","onExhausted":"https://example.com/dead"}"#;
        let mut payload = (head.len() as u32).to_le_bytes().to_vec();
        payload.extend_from_slice(head);
        let on_failure = Some(Target::parse("https://example.com/dead").unwrap());
        assert_eq!(Call::decode(&payload), Ok(Call { on_failure, ..call() }));
        assert!(Call::may_have_callback(&payload));
    }

    fn vault(byte: u8) -> Vault {
        use base64::Engine as _;
        let key = base64::engine::general_purpose::STANDARD.encode([byte; 32]);
        Vault::new(&crate::secrets::SecretKey::from_base64(&key).unwrap())
    }

    #[test]
    fn credentials_are_encrypted_for_one_job_and_come_back_unchanged() {
        let (tenant, id) = (Tenant::new("acme").unwrap(), JobId(uuid::Uuid::from_u128(7)));
        let plain = Call {
            headers: vec![
                ("Authorization".into(), "Bearer MARKER \"x\"".into()),
                ("X-Api-Key".into(), "MARKER".into()),
                ("Content-Type".into(), "text/plain".into()),
            ],
            ..call()
        };
        let mut sealed = plain.clone();
        sealed.seal_headers(&vault(1), &tenant, id);
        let payload = sealed.encode();
        assert!(!String::from_utf8_lossy(&payload).contains("MARKER"));
        assert!(sealed.header_map().is_err(), "an encrypted header is not sent");
        let read = Call::decode(&payload).unwrap();
        let shown: Vec<String> = read.headers.iter().map(|(name, value)| value.masked(name)).collect();
        assert_eq!(shown, [redrive_core::sensitive::MASK, redrive_core::sensitive::MASK, "text/plain"]);
        let mut opened = read.clone();
        opened.open_headers(&vault(1), &tenant, id).unwrap();
        assert_eq!(opened, plain);
        let other = (Tenant::new("other").unwrap(), JobId(uuid::Uuid::from_u128(8)));
        let mut renamed = read.clone();
        renamed.headers[0].0 = "X-Token".into();
        for (mut moved, vault, tenant, id) in [
            (read.clone(), vault(2), &tenant, id),
            (read.clone(), vault(1), &other.0, id),
            (read, vault(1), &tenant, other.1),
            (renamed, vault(1), &tenant, id),
        ] {
            let refused = moved.open_headers(&vault, tenant, id);
            assert!(matches!(refused, Err(VaultError::WrongKey)), "{refused:?}");
        }
        let debug = format!("{plain:?}");
        assert!(!debug.contains("MARKER"), "{debug}");
    }

    #[test]
    fn a_call_with_plain_headers_of_an_earlier_version_is_read_and_masked() {
        let head = br#"{"target":"https://example.com/hook","method":"POST","headers":[["Authorization","Bearer x"],["X-A","1"]],"body":"none"}"#;
        let payload = [&u32::try_from(head.len()).unwrap().to_le_bytes()[..], head].concat();
        let mut call = Call::decode(&payload).unwrap();
        let shown: Vec<String> = call.headers.iter().map(|(name, value)| value.masked(name)).collect();
        assert_eq!(shown, [redrive_core::sensitive::MASK, "1"]);
        call.open_headers(&vault(1), &Tenant::default(), JobId(uuid::Uuid::from_u128(7))).unwrap();
        assert_eq!(call.header_map().unwrap()["authorization"], "Bearer x");
    }

    #[test]
    fn a_damaged_payload_is_an_error() {
        let whole = Call { body: CallBody::Inline(b"body".to_vec()), ..call() }.encode();
        for cut in 0..whole.len() - 4 {
            assert!(Call::decode(&whole[..cut]).is_err(), "{cut}");
        }
        assert!(Call::decode(&[&call().encode()[..], b"more"].concat()).is_err());
        assert!(Call::decode(&[255; 16]).is_err());
        assert!(Call::decode(b"\x02\0\0\0{}").is_err());
    }

    #[test]
    fn the_largest_call_fits_a_payload() {
        let url = |scheme: &str| format!("{scheme}://example.com/{}", "x".repeat(2028 - scheme.len()));
        let call = Call {
            target: Target::parse(&url("https")).unwrap(),
            headers: (0..64).map(|at| (format!("x-{at:04}"), "\"".repeat(122).into())).collect(),
            body: CallBody::Inline(vec![0; BODY_INLINE_BYTES_MAX]),
            signing_secret: Some("s".repeat(NAME_BYTES_MAX)),
            on_success: Some(Target::parse(&url("http")).unwrap()),
            on_failure: Some(Target::parse(&url("https")).unwrap()),
            ..call()
        };
        assert_eq!(call.check(), Ok(()));
        assert!(call.encode().len() <= 96 * 1024, "{}", call.encode().len());
    }

    #[test]
    fn an_invalid_call_is_refused_with_the_name_of_its_field() {
        let header = |name: &str| vec![(name.to_owned(), "v".into())];
        let grpc = Target::parse("grpc://example.com/a.B/C").unwrap();
        for (field, bad) in [
            ("method", Call { method: "TRACE".into(), ..call() }),
            ("method", Call { method: "CONNECT".into(), ..call() }),
            ("method", Call { method: "post".into(), ..call() }),
            ("method", Call { method: "POST /evil HTTP/1.1\r\n".into(), ..call() }),
            ("method", Call { method: String::new(), ..call() }),
            ("method", Call { method: "GET".into(), target: grpc.clone(), ..call() }),
            ("onSuccessUrl", Call { on_success: Some(grpc.clone()), ..call() }),
            ("onFailureUrl", Call { on_failure: Some(grpc), ..call() }),
            ("headers", Call { headers: header("Host"), ..call() }),
            ("headers", Call { headers: header("Webhook-Id"), signing_secret: Some("s".into()), ..call() }),
            ("body", Call { body: CallBody::Inline(vec![0; BODY_INLINE_BYTES_MAX + 1]), ..call() }),
            ("signingSecret", Call { signing_secret: Some(String::new()), ..call() }),
            ("signingSecret", Call { signing_secret: Some("a\nb".into()), ..call() }),
        ] {
            assert_eq!(bad.check().expect_err(field).field, field);
        }
        assert_eq!(Call { headers: header("Webhook-Id"), ..call() }.check(), Ok(()));
    }

    #[test]
    fn methods_are_accepted_in_any_case() {
        assert_eq!(read_method(None).unwrap(), "POST");
        assert_eq!(read_method(Some("patch")).unwrap(), "PATCH");
        for method in ["", "TRACE", "CONNECT", "GET ", "BREW", "PRI", "ＧＥＴ"] {
            assert_eq!(read_method(Some(method)).expect_err(method).field, "method");
        }
    }

    #[test]
    fn a_propagated_context_is_unchanged_after_encoding_and_decoding() {
        let full = PropagatedContext {
            key: Some("k".into()),
            traceparent: Some("00-aa-bb-01".into()),
            tracestate: Some("a=b".into()),
        };
        for context in [PropagatedContext::default(), full] {
            assert_eq!(context.check(), Ok(()));
            assert_eq!(PropagatedContext::from_json(&context.to_json()), Ok(context));
        }
        let bad =
            PropagatedContext { traceparent: Some("a\r\nHost: b".into()), ..PropagatedContext::default() };
        assert_eq!(bad.check().unwrap_err().field, "traceparent");
        assert!(PropagatedContext::from_json("no JSON").is_err());
    }
}
