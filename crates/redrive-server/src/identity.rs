//! All nodes on one store must have the same secret key and the same location for large bodies.
//!
//! A node with another key cannot decrypt the signing secrets of the others, and a node with another location cannot send their bodies.
//! The first node on a shared store records both. Every later node compares its own with them, and does not start if they differ.

use std::fmt;
use std::path::Path;

use redrive::Redrive;
use redrive_core::records::{RecordEdit, RecordStore, RecordValue, Records};
use redrive_core::store::Backend;
use redrive_core::{Finding, Severity, StoreError};
use redrive_delivery::bodies::{Bodies, BodyLocation, OpenError};
use redrive_delivery::secrets::{KeyError, SecretKey, Vault};
use serde::{Deserialize, Serialize};

use crate::assemble::KeySource;

/// The kind of the records.
pub const KIND: &str = "identity";
/// The id of the record with the key's fingerprint.
const KEY: &str = "secret-key";
/// The id of the record with the location of the bodies.
const BODIES: &str = "bodies";

/// Which recorded values a node replaces with its own. The default replaces none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AcceptNew {
    /// The key was changed on purpose.
    pub key: bool,
    /// The bodies were moved on purpose.
    pub bodies: bool,
}

/// Why a node must not start on a shared store.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The key or the location of bodies differs from those of the other nodes.
    #[error("this node does not match the other nodes on the store, so it does not start: {}", list(.0))]
    Mismatch(Vec<Mismatch>),
    /// The key cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The object store cannot be opened.
    #[error(transparent)]
    Bodies(#[from] OpenError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A value of this node that differs from the recorded one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// What differs, as a short sentence.
    pub what: &'static str,
    /// The value of this node and the recorded value.
    pub evidence: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}); {}", self.what, self.evidence, self.remedy)
    }
}

fn list(mismatches: &[Mismatch]) -> String {
    mismatches.iter().map(Mismatch::to_string).collect::<Vec<_>>().join("\n  and ")
}

/// The key and the location of the bodies of a node. Each is `None` if it has not been created yet.
struct NodeIdentity<'a> {
    key_source: &'a KeySource,
    key: Option<SecretKey>,
    bodies_address: &'a str,
    location: Option<BodyLocation>,
}

impl<'a> NodeIdentity<'a> {
    /// Reads the identity and creates nothing.
    fn read(key_source: &'a KeySource, bodies_address: &'a str) -> Result<Self, IdentityError> {
        let key = match key_source {
            KeySource::File(path) => SecretKey::load_existing(path)?,
            KeySource::Text(text) => Some(SecretKey::from_base64(text)?),
        };
        Ok(Self { key_source, key, bodies_address, location: Bodies::find_location(bodies_address)? })
    }

    async fn key_mismatch(
        &self,
        recorded: &RecordedIdentity,
        records: &dyn RecordStore,
    ) -> Result<Option<Mismatch>, StoreError> {
        let own = self.key.as_ref().map(SecretKey::fingerprint);
        if let Some(KeyFingerprint { fingerprint }) = &recorded.key {
            let here = own.as_deref().unwrap_or("no key yet");
            let evidence = || format!("fingerprint here: {here}, recorded: {fingerprint}");
            return Ok((own.as_ref() != Some(fingerprint)).then(|| self.wrong_key(evidence())));
        }
        // An earlier version did not record the key. If the store has secrets, the key must decrypt them.
        let opens = match &self.key {
            Some(key) => Vault::new(key).can_decrypt(records).await?,
            None => records.scan(redrive_delivery::secrets::KIND, None, 1).await?.pop().map(|_| false),
        };
        let mismatch = || self.wrong_key("it does not decrypt the signing secrets in the store".to_owned());
        Ok((opens == Some(false)).then(mismatch))
    }

    fn wrong_key(&self, evidence: String) -> Mismatch {
        let copy = match self.key_source {
            KeySource::File(path) => {
                format!("copy the secret key file of another node to {}", path.display())
            }
            KeySource::Text(_) => "set REDRIVE_SECRET_KEY to the same value as on the other nodes".to_owned(),
        };
        Mismatch {
            what: "the secret key differs",
            evidence,
            remedy: format!("{copy}, or start once with --accept-new-key if the key was changed on purpose"),
        }
    }

    fn bodies_mismatch(&self, recorded: &RecordedIdentity) -> Option<Mismatch> {
        let recorded = recorded.bodies.as_ref()?;
        if self.location.as_ref().is_some_and(|location| location.id == recorded.id) {
            return None;
        }
        let here = match &self.location {
            Some(location) => location.to_string(),
            None => format!("{}, which has no bodies yet", self.bodies_address),
        };
        let remedy = "set --bodies to the same s3://BUCKET/PREFIX on every node, or to one folder that all nodes share; \
            start once with --accept-new-bodies if the bodies were moved on purpose";
        Some(Mismatch {
            what: "the location of large bodies differs",
            evidence: format!("here: {here}, recorded: {recorded}"),
            remedy: remedy.to_owned(),
        })
    }
}

/// Compares a node with the recorded values, before it creates a key or a folder.
pub(crate) async fn check(
    records: &dyn RecordStore,
    key_source: &KeySource,
    bodies_address: &str,
    accept: AcceptNew,
) -> Result<(), IdentityError> {
    // The recorded values are read first. The node that recorded them had created its files before, and they may be the files here.
    let recorded = RecordedIdentity::read(records).await?;
    let own = NodeIdentity::read(key_source, bodies_address)?;
    let key = if accept.key { None } else { own.key_mismatch(&recorded, records).await? };
    let bodies = if accept.bodies { None } else { own.bodies_mismatch(&recorded) };
    let mismatches: Vec<Mismatch> = key.into_iter().chain(bodies).collect();
    if mismatches.is_empty() { Ok(()) } else { Err(IdentityError::Mismatch(mismatches)) }
}

/// Records the key and the location of a node that passed [`check`]. Returns false if another node has recorded other values in the
/// meantime; the caller then repeats the check.
pub(crate) async fn record(
    records: &dyn RecordStore,
    key: &SecretKey,
    bodies: &Bodies,
    accept: AcceptNew,
) -> Result<bool, StoreError> {
    let fingerprint = KeyFingerprint { fingerprint: key.fingerprint() };
    let same_key = record_one(records, KEY, &fingerprint, |other| *other == fingerprint, accept.key).await?;
    let location = SharedLocation(bodies.location().clone());
    let is_same = |other: &SharedLocation| other.0.id == location.0.id;
    let same_location = record_one(records, BODIES, &location, is_same, accept.bodies).await?;
    Ok(same_key && same_location)
}

/// Records one value, if there is none or if it may be replaced. Returns whether the record now has the value of this node.
async fn record_one<T: RecordValue + Clone>(
    records: &dyn RecordStore,
    id: &str,
    own: &T,
    is_same: impl Fn(&T) -> bool,
    accept: bool,
) -> Result<bool, StoreError> {
    let record = |recorded: Option<T>| {
        Ok::<_, StoreError>(match recorded {
            None => RecordEdit::Put(own.clone(), RecordedAs::Own),
            Some(recorded) if is_same(&recorded) => RecordEdit::Keep(RecordedAs::Own),
            Some(_) if accept => RecordEdit::Put(own.clone(), RecordedAs::Replacement),
            Some(_) => RecordEdit::Keep(RecordedAs::Other),
        })
    };
    let recorded = Records::new(records).update(id, record).await?;
    if recorded == RecordedAs::Replacement {
        tracing::warn!(
            what = id,
            "replaced the recorded value; restart every other node with the new one, and omit the option from now on"
        );
    }
    Ok(recorded != RecordedAs::Other)
}

/// The recorded value, compared with the value of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordedAs {
    /// The value of this node.
    Own,
    /// The value of this node, which replaced another value.
    Replacement,
    /// Another value.
    Other,
}

/// Fails if the key or the address of the bodies is invalid, regardless of the recorded values. It creates nothing.
pub fn check_settings(key_source: &KeySource, bodies_address: &str) -> Result<(), IdentityError> {
    NodeIdentity::read(key_source, bodies_address).map(drop)
}

/// Compares the key and the bodies of this machine with those recorded in a shared store, for `redrive doctor`. It creates
/// nothing. Without a key and a folder there is nothing to compare.
pub async fn findings(store: &str, key_source: &KeySource, bodies_address: &str) -> Vec<Finding> {
    const CHECK: &str = "identity";
    match compare(store, key_source, bodies_address).await {
        Ok(None) => Vec::new(),
        Ok(Some(mismatches)) if mismatches.is_empty() => {
            let what = "the secret key and the location of bodies match those of the other nodes";
            vec![Finding::ok(CHECK, what, bodies_address)]
        }
        Ok(Some(mismatches)) => {
            let critical = |Mismatch { what, evidence, remedy }| {
                Finding::new(Severity::Critical, CHECK, what, evidence, remedy)
            };
            mismatches.into_iter().map(critical).collect()
        }
        Err(error) => {
            let what = "the secret key and the location of bodies could not be compared with those of the other nodes";
            vec![Finding::new(Severity::Note, CHECK, what, error, "correct --secret-key-file and --bodies")]
        }
    }
}

/// The mismatches of this machine; `None` if it has neither key nor bodies, or if nothing is recorded.
async fn compare(
    store: &str,
    key_source: &KeySource,
    bodies_address: &str,
) -> Result<Option<Vec<Mismatch>>, String> {
    let own = NodeIdentity::read(key_source, bodies_address).map_err(|error| error.to_string())?;
    let is_shared = redrive::is_shared(store).map_err(|error| error.to_string())?;
    if !is_shared || (own.key.is_none() && own.location.is_none()) {
        return Ok(None);
    }
    let redrive = Redrive::open_without_migrating(store).await.map_err(|error| error.to_string())?;
    differences(&own, &**redrive.backend()).await.map_err(|error| error.to_string())
}

async fn differences(
    own: &NodeIdentity<'_>,
    backend: &dyn Backend,
) -> Result<Option<Vec<Mismatch>>, StoreError> {
    let recorded = RecordedIdentity::read(backend).await?;
    if recorded.key.is_none() && recorded.bodies.is_none() {
        return Ok(None);
    }
    let key = if own.key.is_some() { own.key_mismatch(&recorded, backend).await? } else { None };
    let bodies = if own.location.is_some() { own.bodies_mismatch(&recorded) } else { None };
    Ok(Some(key.into_iter().chain(bodies).collect()))
}

/// The values that earlier nodes have recorded.
struct RecordedIdentity {
    key: Option<KeyFingerprint>,
    bodies: Option<BodyLocation>,
}

impl RecordedIdentity {
    async fn read(records: &dyn RecordStore) -> Result<Self, StoreError> {
        let key = Records::<KeyFingerprint>::new(records).get(KEY).await?;
        let bodies = Records::<SharedLocation>::new(records).get(BODIES).await?;
        Ok(Self { key: key.map(|record| record.value), bodies: bodies.map(|record| record.value.0) })
    }
}

/// The content of the record with the key's fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KeyFingerprint {
    fingerprint: String,
}

impl RecordValue for KeyFingerprint {
    const KIND: &'static str = KIND;
}

/// The content of the record with the location of the bodies.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct SharedLocation(BodyLocation);

impl RecordValue for SharedLocation {
    const KIND: &'static str = KIND;
}

/// Reads the key of a node. If the key file does not exist, creates it with a new key.
pub(crate) fn secret_key(source: &KeySource) -> Result<SecretKey, KeyError> {
    match source {
        KeySource::File(path) => SecretKey::load_or_create(Path::new(path)),
        KeySource::Text(text) => SecretKey::from_base64(text),
    }
}

#[cfg(test)]
mod tests {
    use redrive_testkit::{ManualClock, ModelStore};

    use super::*;

    /// A node with a folder of its own for its key and its bodies.
    struct Node {
        folder: tempfile::TempDir,
    }

    impl Node {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        fn key(&self) -> KeySource {
            KeySource::File(self.folder.path().join("redrive.key"))
        }

        fn bodies(&self) -> String {
            format!("file:{}", self.folder.path().join("bodies").display())
        }

        async fn start(&self, store: &ModelStore, accept: AcceptNew) -> Result<bool, IdentityError> {
            self.start_with(store, &self.bodies(), accept).await
        }

        async fn start_with(
            &self,
            store: &ModelStore,
            bodies: &str,
            accept: AcceptNew,
        ) -> Result<bool, IdentityError> {
            check(store, &self.key(), bodies, accept).await?;
            let bodies = Bodies::open(bodies)?;
            Ok(record(store, &secret_key(&self.key())?, &bodies, accept).await?)
        }
    }

    const NONE: AcceptNew = AcceptNew { key: false, bodies: false };

    fn store() -> ModelStore {
        ModelStore::new(ManualClock::new())
    }

    fn refusal(started: Result<bool, IdentityError>) -> String {
        started.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_second_node_starts_only_with_the_key_and_the_bodies_of_the_first() {
        let (store, one, two) = (store(), Node::new(), Node::new());
        assert!(one.start(&store, NONE).await.unwrap() && one.start(&store, NONE).await.unwrap());
        let refused = refusal(two.start(&store, NONE).await);
        for part in ["secret key", "redrive.key", "--accept-new-key", "--bodies", "--accept-new-bodies"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        assert_eq!(
            std::fs::read_dir(two.folder.path()).unwrap().count(),
            0,
            "a rejected node must not create files"
        );

        std::fs::copy(one.folder.path().join("redrive.key"), two.folder.path().join("redrive.key")).unwrap();
        let refused = refusal(two.start(&store, NONE).await);
        assert!(refused.contains("location of large bodies") && !refused.contains("secret key"), "{refused}");
        assert!(two.start_with(&store, &one.bodies(), NONE).await.unwrap());

        std::fs::remove_file(two.folder.path().join("redrive.key")).unwrap();
        let refused = refusal(two.start_with(&store, &one.bodies(), NONE).await);
        assert!(refused.contains("secret key") && !refused.contains("location of large bodies"), "{refused}");
    }

    #[tokio::test]
    async fn each_value_can_be_replaced_on_purpose_and_then_the_old_one_is_rejected() {
        let (store, one, two) = (store(), Node::new(), Node::new());
        assert!(one.start(&store, NONE).await.unwrap());
        let refused = refusal(two.start(&store, AcceptNew { key: true, bodies: false }).await);
        assert!(refused.contains("location of large bodies") && !refused.contains("secret key"), "{refused}");
        assert!(two.start(&store, AcceptNew { key: true, bodies: true }).await.unwrap());
        assert!(two.start(&store, NONE).await.unwrap());
        let refused = refusal(one.start(&store, NONE).await);
        assert!(refused.contains("secret key") && refused.contains("location of large bodies"), "{refused}");
    }

    #[tokio::test]
    async fn of_two_concurrent_first_nodes_one_must_check_again() {
        let (store, one, two) = (store(), Node::new(), Node::new());
        // Both nodes check before either has recorded its values.
        check(&store, &one.key(), &one.bodies(), NONE).await.unwrap();
        check(&store, &two.key(), &two.bodies(), NONE).await.unwrap();
        for (node, same) in [(&one, true), (&two, false)] {
            let (bodies, key) = (Bodies::open(&node.bodies()).unwrap(), secret_key(&node.key()).unwrap());
            assert_eq!(record(&store, &key, &bodies, NONE).await.unwrap(), same);
        }
    }

    #[tokio::test]
    async fn a_first_node_whose_key_does_not_decrypt_the_secrets_does_not_start() {
        let (store, one, two) = (store(), Node::new(), Node::new());
        let vault = Vault::new(&secret_key(&one.key()).unwrap());
        let (tenant, now) = (redrive_core::Tenant::default(), redrive_core::Timestamp::from_ms(1));
        vault.create(&store, &tenant, "hook", None, now).await.unwrap();
        let refused = refusal(two.start(&store, NONE).await);
        assert!(refused.contains("does not decrypt"), "{refused}");
        assert!(one.start(&store, NONE).await.unwrap());
    }
}
