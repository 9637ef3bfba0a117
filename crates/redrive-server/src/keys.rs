//! API keys: made once, shown once, kept as a hash.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use redrive_core::records::{Change, Expect, Record, Written};
use redrive_core::{Invalid, Records, StoreError, Tenant, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::presented::{NewSecret, PresentedSecret};

/// The record kind of keys; the id is the key's id.
const KIND: &str = "key";
/// How a key begins.
pub(crate) const KEY_PREFIX: &str = "rdk_";
/// The record kind of the latch, and its only id. It is written with the first key and never removed.
const LATCH: &str = "keyring";
const LATCH_ID: &str = "latch";
/// Keys read at once when all of them are looked at.
const SCAN_ITEMS: usize = 200;
/// Tries of a compare-and-set before the call gives up as contended.
const TRIES: usize = 50;
/// Bytes of a key's name.
pub const KEY_NAME_BYTES_MAX: usize = 128;

/// What a key allows; each scope includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// To look.
    Read,
    /// To create tasks, and to cancel, redrive, pause and signal tasks and jobs.
    Write,
    /// To change policies, queues, keys and secrets, and to operate on dead letters.
    Admin,
}

impl Scope {
    /// Every scope, the least first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = Invalid;
    fn from_str(name: &str) -> Result<Self, Invalid> {
        let known = Self::ALL.into_iter().find(|scope| scope.name() == name);
        known.ok_or_else(|| Invalid::new("scope", format!("must be one of read, write, admin, is {name:?}")))
    }
}

/// A key as it is kept; its secret is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The part of the key that may be shown.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// The only tenant it acts for; none sees all.
    pub tenant: Option<Tenant>,
    /// What it allows.
    pub scope: Scope,
    /// Whether it was created with the permission to see bodies; an admin key has it in any case.
    pub bodies: bool,
    /// When it was made.
    pub created_at: Timestamp,
    hash: [u8; 32],
}

impl Key {
    /// Whether it may see request and response bodies, payloads, outputs and steps.
    pub fn sees_bodies(&self) -> bool {
        self.bodies || self.scope == Scope::Admin
    }

    /// Whether a caller has sent this key.
    pub(crate) fn is_opened_by(&self, presented: &PresentedSecret<'_>) -> bool {
        presented.matches(&self.hash)
    }

    /// Whether it can manage every key: an admin key that is not bound to a tenant.
    fn manages_all(&self) -> bool {
        self.scope == Scope::Admin && self.tenant.is_none()
    }
}

/// What a new key is for.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// What people call it.
    pub name: String,
    /// The only tenant it acts for; none sees all.
    pub tenant: Option<Tenant>,
    /// What it allows.
    pub scope: Scope,
    /// Whether it may see request and response bodies; an admin key may in any case.
    pub bodies: bool,
}

impl NewKey {
    /// A key for every tenant that does not see bodies unless its scope includes them.
    pub fn new(name: impl Into<String>, scope: Scope) -> Self {
        Self { name: name.into(), tenant: None, scope, bodies: false }
    }
}

/// Why a key was not created or revoked.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// Without an admin key nobody could manage keys once the service asks for one.
    #[error(
        "the first key must be an admin key that is not bound to a tenant, because from then on every call needs a key: create one with scope admin and no tenant first"
    )]
    FirstKeyNotAdmin,
    /// Nobody could manage keys without it.
    #[error(
        "this is the last admin key that is not bound to a tenant, and nobody could manage keys without it: create another one first"
    )]
    LastAdminKey,
    /// Other processes kept changing keys.
    #[error("other processes kept changing keys meanwhile: try again")]
    Contended,
    /// The store failed, or the name is not legal.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Makes a key. The text is the key itself, `rdk_<id>_<secret>`, and cannot be had again.
///
/// The first key must be an admin key that is not bound to a tenant. It closes an open service for good.
pub async fn create(records: &dyn Records, new: NewKey, now: Timestamp) -> Result<(Key, String), KeysError> {
    if new.name.is_empty() || new.name.len() > KEY_NAME_BYTES_MAX {
        let problem = format!("must be from 1 to {KEY_NAME_BYTES_MAX} bytes long");
        return Err(StoreError::from(Invalid::new("name", problem)).into());
    }
    let manages_all = new.scope == Scope::Admin && new.tenant.is_none();
    if !manages_all && records.scan(KIND, None, 1).await?.is_empty() {
        return Err(KeysError::FirstKeyNotAdmin);
    }
    let secret = NewSecret::random(KEY_PREFIX)?;
    let key = Key {
        id: secret.id,
        name: new.name,
        tenant: new.tenant,
        scope: new.scope,
        bodies: new.bodies,
        created_at: now,
        hash: secret.hash,
    };
    let change = Change {
        kind: KIND.to_owned(),
        id: key.id.clone(),
        expect: Expect::Absent,
        value: Some(Stored::encode(&key)),
    };
    match records.write(change).await? {
        Written::Done(_) => {
            // The key first: a crash between the two leaves a key without a latch, and that counts as closed too.
            close(records).await?;
            Ok((key, secret.text))
        }
        Written::Conflict(_) => Err(StoreError::Failed("a random key id was taken".into()).into()),
    }
}

/// Every key, by id, those after `after`, at most `limit`.
pub async fn list(records: &dyn Records, after: Option<&str>, limit: usize) -> Result<Vec<Key>, StoreError> {
    records.scan(KIND, after, limit).await?.iter().map(Stored::decode).collect()
}

/// The key with this id.
pub async fn find(records: &dyn Records, id: &str) -> Result<Option<Key>, StoreError> {
    records.read(KIND, id).await?.as_ref().map(Stored::decode).transpose()
}

/// Ends a key; says whether there was one. The last admin key that is not bound to a tenant stays.
pub async fn revoke(records: &dyn Records, id: &str) -> Result<bool, KeysError> {
    for _ in 0..TRIES {
        let Some(record) = records.read(KIND, id).await? else { return Ok(false) };
        if Stored::decode(&record)?.manages_all() && !reserve_revocation(records, id).await? {
            continue;
        }
        let expect = Expect::Version(record.version);
        let change = Change { kind: KIND.to_owned(), id: id.to_owned(), expect, value: None };
        return Ok(matches!(records.write(change).await?, Written::Done(_)));
    }
    Err(KeysError::Contended)
}

/// Notes on the latch that this admin key ends, if another one stays; false when the latch changed meanwhile.
///
/// Each revocation changes the latch by compare-and-set before it removes its key, and counts no key that another
/// revocation has noted. So two revocations of the last two admin keys cannot both succeed.
async fn reserve_revocation(records: &dyn Records, id: &str) -> Result<bool, KeysError> {
    let (mut latch, version) = close(records).await?;
    let admins = admin_ids(records).await?;
    latch.revoking.retain(|noted| noted != id && admins.contains(noted));
    if !admins.iter().any(|other| other != id && !latch.revoking.contains(other)) {
        return Err(KeysError::LastAdminKey);
    }
    latch.revoking.push(id.to_owned());
    let change = latch.change(Expect::Version(version));
    Ok(matches!(records.write(change).await?, Written::Done(_)))
}

/// The ids of the admin keys that are not bound to a tenant.
async fn admin_ids(records: &dyn Records) -> Result<Vec<String>, StoreError> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let keys = list(records, after.as_deref(), SCAN_ITEMS).await?;
        let whole = keys.len() == SCAN_ITEMS;
        after = keys.last().map(|key| key.id.clone());
        ids.extend(keys.into_iter().filter(Key::manages_all).map(|key| key.id));
        if !whole {
            return Ok(ids);
        }
    }
}

/// Whether the store has ever had a key: from then on every call needs one, even when no key is left.
///
/// A store of an earlier version that has keys gets its latch here.
pub async fn any_ever(records: &dyn Records) -> Result<bool, StoreError> {
    if records.read(LATCH, LATCH_ID).await?.is_some() {
        return Ok(true);
    }
    if records.scan(KIND, None, 1).await?.is_empty() {
        return Ok(false);
    }
    close(records).await?;
    Ok(true)
}

/// Closes the service for good, if it is not closed yet: the latch and its version.
async fn close(records: &dyn Records) -> Result<(Latch, u64), StoreError> {
    for _ in 0..TRIES {
        if let Some(record) = records.read(LATCH, LATCH_ID).await? {
            let latch = serde_json::from_slice(&record.value)
                .map_err(|error| StoreError::Corrupt(format!("record {LATCH} {LATCH_ID:?}: {error}")))?;
            return Ok((latch, record.version));
        }
        records.write(Latch::default().change(Expect::Absent)).await?;
    }
    Err(StoreError::Failed("the latch of the keys was removed again and again".into()))
}

/// Says by its presence that a service has had keys.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Latch {
    /// Admin keys whose revocation has begun.
    #[serde(default)]
    revoking: Vec<String>,
}

impl Latch {
    fn change(&self, expect: Expect) -> Change {
        let value = serde_json::to_vec(self).unwrap_or_else(|e| unreachable!("plain data becomes JSON: {e}"));
        Change { kind: LATCH.to_owned(), id: LATCH_ID.to_owned(), expect, value: Some(value) }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    name: String,
    tenant: Option<Tenant>,
    scope: Scope,
    /// Absent on keys of earlier versions, which do not see bodies.
    #[serde(default)]
    bodies: bool,
    hash: String,
    created_at: Timestamp,
}

impl Stored {
    fn encode(key: &Key) -> Vec<u8> {
        let stored = Self {
            name: key.name.clone(),
            tenant: key.tenant.clone(),
            scope: key.scope,
            bodies: key.bodies,
            hash: BASE64_URL_SAFE_NO_PAD.encode(key.hash),
            created_at: key.created_at,
        };
        serde_json::to_vec(&stored).unwrap_or_else(|e| unreachable!("plain data becomes JSON: {e}"))
    }

    fn decode(record: &Record) -> Result<Key, StoreError> {
        let damaged =
            |e: &dyn fmt::Display| StoreError::Corrupt(format!("record {KIND} {:?}: {e}", record.id));
        let stored: Self = serde_json::from_slice(&record.value).map_err(|e| damaged(&e))?;
        let hash = BASE64_URL_SAFE_NO_PAD.decode(&stored.hash).map_err(|e| damaged(&e))?;
        Ok(Key {
            id: record.id.clone(),
            name: stored.name,
            tenant: stored.tenant,
            scope: stored.scope,
            bodies: stored.bodies,
            created_at: stored.created_at,
            hash: hash.try_into().map_err(|_| damaged(&"the hash is not of 32 bytes"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use redrive_store_sqlite::SqliteStore;

    use super::*;

    fn at() -> Timestamp {
        Timestamp::from_ms(7)
    }

    async fn key(store: &SqliteStore, scope: Scope) -> Key {
        create(store, NewKey::new("k", scope), at()).await.unwrap().0
    }

    #[tokio::test]
    async fn a_key_opens_with_its_secret_only_and_the_secret_is_not_kept() {
        let store = SqliteStore::open_in_memory().unwrap();
        assert!(!any_ever(&store).await.unwrap());
        let (key, text) = create(&store, NewKey::new("ci", Scope::Admin), at()).await.unwrap();
        let (_, other) = create(&store, NewKey::new("other", Scope::Write), at()).await.unwrap();
        let kept = find(&store, &key.id).await.unwrap().unwrap();
        assert_eq!(kept, key);
        let presented = PresentedSecret::parse(KEY_PREFIX, &text).unwrap();
        assert!(presented.id == key.id && kept.is_opened_by(&presented));
        let stranger = format!("rdk_{}_{}", key.id, other.rsplit_once('_').unwrap().1);
        assert!(!kept.is_opened_by(&PresentedSecret::parse(KEY_PREFIX, &stranger).unwrap()));
        let raw = store.read(KIND, &key.id).await.unwrap().unwrap().value;
        assert!(!String::from_utf8(raw).unwrap().contains(text.splitn(3, '_').last().unwrap()));
    }

    #[tokio::test]
    async fn a_revoked_key_is_gone_and_the_store_stays_closed() {
        let store = SqliteStore::open_in_memory().unwrap();
        let admin = key(&store, Scope::Admin).await;
        let read = key(&store, Scope::Read).await;
        assert_eq!(list(&store, None, 10).await.unwrap().len(), 2);
        assert!(revoke(&store, &read.id).await.unwrap() && !revoke(&store, &read.id).await.unwrap());
        // Someone removes the record by hand: an empty list of keys opens nothing.
        let change = Change { kind: KIND.to_owned(), id: admin.id.clone(), expect: Expect::Any, value: None };
        store.write(change).await.unwrap();
        assert_eq!(list(&store, None, 10).await.unwrap(), []);
        assert!(any_ever(&store).await.unwrap());
        assert!(create(&store, NewKey::new("", Scope::Admin), at()).await.is_err());
        let again = create(&store, NewKey::new("rescue", Scope::Admin), at()).await;
        assert!(again.is_ok(), "an operator with access to the store gets in again: {again:?}");
    }

    #[tokio::test]
    async fn the_first_key_is_an_admin_key_of_no_tenant() {
        let store = SqliteStore::open_in_memory().unwrap();
        let bound = NewKey { tenant: Some(Tenant::new("t").unwrap()), ..NewKey::new("t", Scope::Admin) };
        for refused in [NewKey::new("r", Scope::Read), NewKey::new("w", Scope::Write), bound.clone()] {
            let refused = create(&store, refused, at()).await;
            assert!(matches!(refused, Err(KeysError::FirstKeyNotAdmin)), "{refused:?}");
        }
        assert!(!any_ever(&store).await.unwrap(), "what was refused has closed nothing");
        key(&store, Scope::Admin).await;
        create(&store, bound, at()).await.unwrap();
    }

    #[tokio::test]
    async fn the_last_admin_key_stays() {
        let store = SqliteStore::open_in_memory().unwrap();
        let first = key(&store, Scope::Admin).await;
        key(&store, Scope::Write).await;
        let bound = NewKey { tenant: Some(Tenant::new("t").unwrap()), ..NewKey::new("t", Scope::Admin) };
        let bound = create(&store, bound, at()).await.unwrap().0;
        assert!(matches!(revoke(&store, &first.id).await, Err(KeysError::LastAdminKey)));
        let second = key(&store, Scope::Admin).await;
        assert!(revoke(&store, &first.id).await.unwrap());
        assert!(revoke(&store, &bound.id).await.unwrap(), "a bound one may go");
        assert!(matches!(revoke(&store, &second.id).await, Err(KeysError::LastAdminKey)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_two_revocations_of_the_last_two_admin_keys_one_is_refused() {
        for _ in 0..20 {
            let store = std::sync::Arc::new(SqliteStore::open_in_memory().unwrap());
            let ids = [key(&store, Scope::Admin).await.id, key(&store, Scope::Admin).await.id];
            let tasks = ids.map(|id| {
                let store = store.clone();
                tokio::spawn(async move { revoke(&*store, &id).await.is_ok() })
            });
            let mut revoked = 0;
            for task in tasks {
                revoked += usize::from(task.await.unwrap());
            }
            assert_eq!((revoked, admin_ids(&*store).await.unwrap().len()), (1, 1));
        }
    }

    #[tokio::test]
    async fn a_revocation_that_has_begun_elsewhere_counts() {
        let store = SqliteStore::open_in_memory().unwrap();
        let (one, two) = (key(&store, Scope::Admin).await.id, key(&store, Scope::Admin).await.id);
        // Another process has noted its revocation and not yet removed its key.
        assert!(reserve_revocation(&store, &one).await.unwrap());
        assert!(matches!(revoke(&store, &two).await, Err(KeysError::LastAdminKey)));
        assert!(revoke(&store, &one).await.unwrap(), "whoever began it may end it");
    }

    #[tokio::test]
    async fn a_store_of_an_earlier_version_with_keys_gets_its_latch() {
        let store = SqliteStore::open_in_memory().unwrap();
        let value = br#"{"name":"old","tenant":null,"scope":"write","hash":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","createdAt":7}"#;
        let id = "0123456789abcdef".to_owned();
        let change =
            Change { kind: KIND.to_owned(), id, expect: Expect::Absent, value: Some(value.to_vec()) };
        store.write(change).await.unwrap();
        assert!(any_ever(&store).await.unwrap());
        assert!(store.read(LATCH, LATCH_ID).await.unwrap().is_some());
        let old = list(&store, None, 10).await.unwrap().remove(0);
        assert!(!old.sees_bodies(), "bodies are a permission that it was not given");
    }
}
