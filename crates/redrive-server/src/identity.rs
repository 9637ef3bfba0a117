//! What all nodes on one store must have in common: the key that secrets are encrypted with, and the place of large bodies.
//!
//! A node with another key cannot sign what the others accept, and one with another place cannot send their bodies. The first
//! node on a shared store records both; every later one compares, and does not start when they differ.

use std::fmt;
use std::path::Path;

use redrive::Redrive;
use redrive_core::records::{Change, Expect, Record, Records, Written};
use redrive_core::store::Backend;
use redrive_core::{Finding, Gravity, StoreError};
use redrive_delivery::bodies::{Bodies, OpenError, Place};
use redrive_delivery::secrets::{KeyError, SecretKey, Vault};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::assemble::KeySource;

/// The kind of the records.
pub const KIND: &str = "identity";
/// The id of the record with the key's fingerprint.
const KEY: &str = "secret-key";
/// The id of the record with the place of bodies.
const BODIES: &str = "bodies";

/// Which recorded values a node replaces by its own. The default replaces none.
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
    /// It differs from the other nodes.
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

/// One thing in which a node differs from the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// What differs.
    pub what: &'static str,
    /// What this node has, and what is recorded.
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

/// The key and the bodies of a node, as far as they are known before anything is made.
struct NodeIdentity<'a> {
    key_source: &'a KeySource,
    key: Option<SecretKey>,
    bodies_address: &'a str,
    place: Option<Place>,
}

impl<'a> NodeIdentity<'a> {
    fn look(key_source: &'a KeySource, bodies_address: &'a str) -> Result<Self, IdentityError> {
        let key = match key_source {
            KeySource::File(path) => SecretKey::load_existing(path)?,
            KeySource::Text(text) => Some(SecretKey::from_base64(text)?),
        };
        Ok(Self { key_source, key, bodies_address, place: Bodies::look(bodies_address)? })
    }

    async fn key_mismatch(
        &self,
        recorded: &RecordedIdentity,
        records: &dyn Records,
    ) -> Result<Option<Mismatch>, StoreError> {
        let own = self.key.as_ref().map(SecretKey::fingerprint);
        if let Some(KeyRecord { fingerprint }) = &recorded.key {
            let here = own.as_deref().unwrap_or("no key yet");
            let evidence = || format!("fingerprint here: {here}, recorded: {fingerprint}");
            return Ok((own.as_ref() != Some(fingerprint)).then(|| self.wrong_key(evidence())));
        }
        // A store from before keys were recorded has secrets to try the key on.
        let opens = match &self.key {
            Some(key) => Vault::new(key).opens(records).await?,
            None => records.scan(redrive_delivery::secrets::KIND, None, 1).await?.pop().map(|_| false),
        };
        let cannot = || self.wrong_key("it does not decrypt the signing secrets in the store".to_owned());
        Ok((opens == Some(false)).then(cannot))
    }

    fn wrong_key(&self, evidence: String) -> Mismatch {
        let copy = match self.key_source {
            KeySource::File(path) => {
                format!("copy the secret key file of another node to {}", path.display())
            }
            KeySource::Text(_) => "set REDRIVE_SECRET_KEY to the same value as on the other nodes".to_owned(),
        };
        Mismatch {
            what: "the secret key is another one",
            evidence,
            remedy: format!("{copy}, or start once with --accept-new-key if the key was changed on purpose"),
        }
    }

    fn bodies_mismatch(&self, recorded: &RecordedIdentity) -> Option<Mismatch> {
        let recorded = recorded.bodies.as_ref()?;
        if self.place.as_ref().is_some_and(|place| place.id == recorded.id) {
            return None;
        }
        let here = match &self.place {
            Some(place) => place.to_string(),
            None => format!("{}, with no bodies in it yet", self.bodies_address),
        };
        let remedy = "set --bodies to the same s3://BUCKET/PREFIX on every node, or to one folder that all nodes share; \
            start once with --accept-new-bodies if the bodies were moved on purpose";
        Some(Mismatch {
            what: "the place of large bodies is another one",
            evidence: format!("here: {here}, recorded: {recorded}"),
            remedy: remedy.to_owned(),
        })
    }
}

/// Compares a node with what is recorded, before it makes a key or a folder of its own.
pub(crate) async fn check(
    records: &dyn Records,
    key_source: &KeySource,
    bodies_address: &str,
    accept: AcceptNew,
) -> Result<(), IdentityError> {
    // What is recorded is read first: whoever recorded it had made its files before, which may be these.
    let recorded = RecordedIdentity::read(records).await?;
    let own = NodeIdentity::look(key_source, bodies_address)?;
    let key = if accept.key { None } else { own.key_mismatch(&recorded, records).await? };
    let bodies = if accept.bodies { None } else { own.bodies_mismatch(&recorded) };
    let mismatches: Vec<Mismatch> = key.into_iter().chain(bodies).collect();
    if mismatches.is_empty() { Ok(()) } else { Err(IdentityError::Mismatch(mismatches)) }
}

/// Records the key and the place of a node that passed [`check`]. Another node may have recorded its own meanwhile, or
/// be accepted in the place of the former ones; then the check is made again.
pub(crate) async fn record(
    records: &dyn Records,
    key: &SecretKey,
    bodies: &Bodies,
    accept: AcceptNew,
) -> Result<bool, StoreError> {
    let fingerprint = KeyRecord { fingerprint: key.fingerprint() };
    let same_key = record_one(records, KEY, &fingerprint, |other| *other == fingerprint, accept.key).await?;
    let place = bodies.place();
    let same_place = record_one(records, BODIES, place, |other| other.id == place.id, accept.bodies).await?;
    Ok(same_key && same_place)
}

/// Whether the record is what this node has, once it was written if there was none, or replaced if that is accepted.
async fn record_one<T: Serialize + DeserializeOwned>(
    records: &dyn Records,
    id: &str,
    own: &T,
    is_same: impl Fn(&T) -> bool,
    accept: bool,
) -> Result<bool, StoreError> {
    loop {
        let expect = match read::<T>(records, id).await? {
            None => Expect::Absent,
            Some(recorded) if is_same(&recorded.value) => return Ok(true),
            Some(recorded) if accept => {
                tracing::warn!(
                    what = id,
                    "the recorded value was replaced; restart every other node with the new one, and leave the flag out from now on"
                );
                Expect::Version(recorded.version)
            }
            Some(_) => return Ok(false),
        };
        let value = Some(serde_json::to_vec(own).map_err(|error| StoreError::Failed(Box::new(error)))?);
        let change = Change { kind: KIND.to_owned(), id: id.to_owned(), expect, value };
        match records.write(change).await? {
            Written::Done(_) => return Ok(true),
            Written::Conflict(_) => {}
        }
    }
}

/// Fails where the key or the address of the bodies cannot be right, whatever is recorded. It makes nothing.
pub fn check_settings(key_source: &KeySource, bodies_address: &str) -> Result<(), IdentityError> {
    NodeIdentity::look(key_source, bodies_address).map(drop)
}

/// Compares the key and the bodies of this machine with what is recorded in a shared store, for `redrive doctor`. It makes
/// nothing; where there is neither a key nor a folder, there is nothing to compare.
pub async fn findings(store: &str, key_source: &KeySource, bodies_address: &str) -> Vec<Finding> {
    const CHECK: &str = "identity";
    match compare(store, key_source, bodies_address).await {
        Ok(None) => Vec::new(),
        Ok(Some(mismatches)) if mismatches.is_empty() => {
            let what = "the secret key and the bodies here are those of the other nodes";
            vec![Finding::fine(CHECK, what, bodies_address)]
        }
        Ok(Some(mismatches)) => {
            let grave = |Mismatch { what, evidence, remedy }| {
                Finding::new(Gravity::Grave, CHECK, what, evidence, remedy)
            };
            mismatches.into_iter().map(grave).collect()
        }
        Err(error) => {
            let what =
                "the secret key and the bodies here could not be compared with those of the other nodes";
            vec![Finding::new(Gravity::Note, CHECK, what, error, "correct --secret-key-file and --bodies")]
        }
    }
}

/// In what this machine differs; none when it has neither key nor bodies, or nothing is recorded.
async fn compare(
    store: &str,
    key_source: &KeySource,
    bodies_address: &str,
) -> Result<Option<Vec<Mismatch>>, String> {
    let own = NodeIdentity::look(key_source, bodies_address).map_err(|error| error.to_string())?;
    let is_shared = redrive::is_shared(store).map_err(|error| error.to_string())?;
    if !is_shared || (own.key.is_none() && own.place.is_none()) {
        return Ok(None);
    }
    let redrive = Redrive::open_unchanged(store).await.map_err(|error| error.to_string())?;
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
    let bodies = if own.place.is_some() { own.bodies_mismatch(&recorded) } else { None };
    Ok(Some(key.into_iter().chain(bodies).collect()))
}

/// What the nodes before this one have recorded.
struct RecordedIdentity {
    key: Option<KeyRecord>,
    bodies: Option<Place>,
}

impl RecordedIdentity {
    async fn read(records: &dyn Records) -> Result<Self, StoreError> {
        let key = read(records, KEY).await?.map(|recorded| recorded.value);
        let bodies = read(records, BODIES).await?.map(|recorded| recorded.value);
        Ok(Self { key, bodies })
    }
}

/// The content of the record with the key's fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KeyRecord {
    fingerprint: String,
}

struct VersionedRecord<T> {
    value: T,
    version: u64,
}

async fn read<T: DeserializeOwned>(
    records: &dyn Records,
    id: &str,
) -> Result<Option<VersionedRecord<T>>, StoreError> {
    let Some(Record { value, version, .. }) = records.read(KIND, id).await? else { return Ok(None) };
    let value = serde_json::from_slice(&value)
        .map_err(|error| StoreError::Corrupt(format!("the record {KIND} {id}: {error}")))?;
    Ok(Some(VersionedRecord { value, version }))
}

/// Reads the key of a node, and makes its file if there is none.
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
        assert_eq!(std::fs::read_dir(two.folder.path()).unwrap().count(), 0, "it has made nothing");

        std::fs::copy(one.folder.path().join("redrive.key"), two.folder.path().join("redrive.key")).unwrap();
        let refused = refusal(two.start(&store, NONE).await);
        assert!(refused.contains("place of large bodies") && !refused.contains("secret key"), "{refused}");
        assert!(two.start_with(&store, &one.bodies(), NONE).await.unwrap());

        std::fs::remove_file(two.folder.path().join("redrive.key")).unwrap();
        let refused = refusal(two.start_with(&store, &one.bodies(), NONE).await);
        assert!(refused.contains("secret key") && !refused.contains("place of large bodies"), "{refused}");
    }

    #[tokio::test]
    async fn each_value_can_be_replaced_on_purpose_and_then_the_former_is_refused() {
        let (store, one, two) = (store(), Node::new(), Node::new());
        assert!(one.start(&store, NONE).await.unwrap());
        let refused = refusal(two.start(&store, AcceptNew { key: true, bodies: false }).await);
        assert!(refused.contains("place of large bodies") && !refused.contains("secret key"), "{refused}");
        assert!(two.start(&store, AcceptNew { key: true, bodies: true }).await.unwrap());
        assert!(two.start(&store, NONE).await.unwrap());
        let refused = refusal(one.start(&store, NONE).await);
        assert!(refused.contains("secret key") && refused.contains("place of large bodies"), "{refused}");
    }

    #[tokio::test]
    async fn of_two_first_nodes_at_once_one_is_told_to_look_again() {
        let (store, one, two) = (store(), Node::new(), Node::new());
        // Both have found nothing recorded.
        check(&store, &one.key(), &one.bodies(), NONE).await.unwrap();
        check(&store, &two.key(), &two.bodies(), NONE).await.unwrap();
        for (node, same) in [(&one, true), (&two, false)] {
            let (bodies, key) = (Bodies::open(&node.bodies()).unwrap(), secret_key(&node.key()).unwrap());
            assert_eq!(record(&store, &key, &bodies, NONE).await.unwrap(), same);
        }
    }

    #[tokio::test]
    async fn a_first_node_that_cannot_open_the_secrets_is_refused() {
        let (store, one, two) = (store(), Node::new(), Node::new());
        let vault = Vault::new(&secret_key(&one.key()).unwrap());
        let (tenant, now) = (redrive_core::Tenant::default(), redrive_core::Timestamp::from_ms(1));
        vault.create(&store, &tenant, "hook", None, now).await.unwrap();
        let refused = refusal(two.start(&store, NONE).await);
        assert!(refused.contains("does not decrypt"), "{refused}");
        assert!(one.start(&store, NONE).await.unwrap());
    }
}
