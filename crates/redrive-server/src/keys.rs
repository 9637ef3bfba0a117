//! API keys. The store keeps a hash of each key; the key itself is shown once, when it is created.

use redrive_core::records::{Record, RecordValue};
use redrive_core::{Invalid, RecordStore, Records, StoreError, Tenant, Timestamp};
use redrive_wire::Scope;
use serde::{Deserialize, Serialize};

use crate::caller_secrets::{NewSecret, PresentedSecret, SecretHash};

/// The prefix of a key.
pub(crate) const KEY_PREFIX: &str = "rdk_";
/// The id of the only [`KeyringRecord`].
const KEYRING_ID: &str = "latch";
/// The maximum length of a key's name in bytes.
pub const KEY_NAME_BYTES_MAX: usize = 128;

/// A stored key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The part of the key that may be shown.
    pub id: String,
    /// The name, for people.
    pub name: String,
    /// The tenant it is bound to; `None` for a key that acts for every tenant.
    pub tenant: Option<Tenant>,
    /// The permissions.
    pub scope: Scope,
    /// Whether it was created with the permission to see bodies. An admin key always has it.
    pub bodies: bool,
    /// When it was created.
    pub created_at: Timestamp,
    hash: SecretHash,
}

impl Key {
    fn from_record(Record { id, value, .. }: Record<StoredKey>) -> Self {
        let StoredKey { name, tenant, scope, bodies, hash, created_at } = value;
        Self { id, name, tenant, scope, bodies, created_at, hash }
    }

    /// Whether it may see request and response bodies, payloads, outputs and steps.
    pub fn sees_bodies(&self) -> bool {
        self.bodies || self.scope == Scope::Admin
    }

    /// Whether a caller has sent this key.
    pub(crate) fn matches(&self, presented: &PresentedSecret<'_>) -> bool {
        presented.matches(&self.hash)
    }

    /// Whether it can manage every key: an admin key that is not bound to a tenant.
    fn manages_all(&self) -> bool {
        self.scope == Scope::Admin && self.tenant.is_none()
    }
}

/// The properties of a new key.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The name, for people.
    pub name: String,
    /// The tenant to bind it to; `None` for a key that acts for every tenant.
    pub tenant: Option<Tenant>,
    /// The permissions.
    pub scope: Scope,
    /// Whether it may see request and response bodies. An admin key always may.
    pub bodies: bool,
}

impl NewKey {
    /// A key that is not bound to a tenant. It sees bodies only if it is an admin key.
    pub fn new(name: impl Into<String>, scope: Scope) -> Self {
        Self { name: name.into(), tenant: None, scope, bodies: false }
    }
}

/// Why a key was not created or revoked.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// From the first key on, every call needs a key. Without an admin key, nobody could manage keys then.
    #[error(
        "the first key must be an admin key that is not bound to a tenant, because from then on every call needs a key: create one with scope admin and no tenant first"
    )]
    FirstKeyNotAdmin,
    /// Without this key, nobody could manage keys.
    #[error(
        "this is the last admin key that is not bound to a tenant, and nobody could manage keys without it: create another one first"
    )]
    LastAdminKey,
    /// The store failed, or the name is invalid.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Creates a key. The returned text is the key itself, `rdk_<id>_<secret>`, and cannot be read again.
///
/// The first key must be an admin key that is not bound to a tenant. From then on the service never accepts calls without a key.
pub async fn create(
    records: &dyn RecordStore,
    new: NewKey,
    now: Timestamp,
) -> Result<(Key, String), KeysError> {
    if new.name.is_empty() || new.name.len() > KEY_NAME_BYTES_MAX {
        let problem = format!("must be from 1 to {KEY_NAME_BYTES_MAX} bytes long");
        return Err(StoreError::from(Invalid::new("name", problem)).into());
    }
    if new.name.chars().any(char::is_control) {
        return Err(StoreError::from(Invalid::new("name", "must not contain control characters")).into());
    }
    let manages_all = new.scope == Scope::Admin && new.tenant.is_none();
    if !manages_all && keys(records).is_empty().await? {
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
    if keys(records).create(&key.id, &StoredKey::of(&key)).await?.is_none() {
        return Err(StoreError::Failed("a random key id is already in use".into()).into());
    }
    // The key is written first. A crash between the two writes leaves a key without a keyring, which also closes the service.
    close(records).await?;
    Ok((key, secret.text))
}

/// At most `limit` keys after the id `after`, in the order of ids.
pub async fn list(
    records: &dyn RecordStore,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Key>, StoreError> {
    let page = keys(records).page("", after, limit).await?;
    Ok(page.items.into_iter().map(Key::from_record).collect())
}

/// All keys, in the order of ids.
pub async fn all(records: &dyn RecordStore) -> Result<Vec<Key>, StoreError> {
    Ok(keys(records).all("").await?.into_iter().map(Key::from_record).collect())
}

/// The key with this id.
pub async fn find(records: &dyn RecordStore, id: &str) -> Result<Option<Key>, StoreError> {
    Ok(keys(records).get(id).await?.map(Key::from_record))
}

/// Revokes a key and returns whether it existed. The last admin key that is not bound to a tenant cannot be revoked.
pub async fn revoke(records: &dyn RecordStore, id: &str) -> Result<bool, KeysError> {
    let Some(record) = keys(records).get(id).await? else { return Ok(false) };
    let version = record.version;
    if Key::from_record(record).manages_all() {
        reserve_revocation(records, id).await?;
    }
    // Keys are never changed, so a conflict means that someone else revoked this key.
    Ok(keys(records).remove_version(id, version).await?)
}

/// Notes in the keyring that this admin key is being revoked, if another admin key remains.
///
/// Each revocation changes the keyring by compare-and-set before it removes its key, and ignores keys that another revocation
/// has noted. So two concurrent revocations of the last two admin keys cannot both succeed.
async fn reserve_revocation(records: &dyn RecordStore, id: &str) -> Result<(), KeysError> {
    close(records).await?;
    let keyrings = Records::<KeyringRecord>::new(records);
    // The keys are read after the keyring, and again after each conflict, so that a note is dropped only for a key that is gone.
    while let Some(Record { version, value: mut keyring, .. }) = keyrings.get(KEYRING_ID).await? {
        let admins = admin_ids(records).await?;
        keyring.revoking.retain(|noted| noted != id && admins.contains(noted));
        if !admins.iter().any(|other| other != id && !keyring.revoking.contains(other)) {
            return Err(KeysError::LastAdminKey);
        }
        keyring.revoking.push(id.to_owned());
        if keyrings.replace(KEYRING_ID, version, &keyring).await?.is_some() {
            return Ok(());
        }
    }
    Err(StoreError::Failed("the record keyring/latch was removed; nothing in redrive does that".into())
        .into())
}

/// The ids of the admin keys that are not bound to a tenant.
async fn admin_ids(records: &dyn RecordStore) -> Result<Vec<String>, StoreError> {
    let keys = keys(records).all("").await?.into_iter().map(Key::from_record);
    Ok(keys.filter(Key::manages_all).map(|key| key.id).collect())
}

/// Whether the store has ever had a key. From then on every call needs one, even if no key is left.
///
/// If a store of an earlier version has keys but no keyring, this creates the keyring.
pub async fn ever_created(records: &dyn RecordStore) -> Result<bool, StoreError> {
    if Records::<KeyringRecord>::new(records).contains(KEYRING_ID).await? {
        return Ok(true);
    }
    if keys(records).is_empty().await? {
        return Ok(false);
    }
    close(records).await?;
    Ok(true)
}

/// Writes the keyring, which closes the service to calls without a key, unless it exists already.
async fn close(records: &dyn RecordStore) -> Result<(), StoreError> {
    Records::new(records).create(KEYRING_ID, &KeyringRecord::default()).await.map(drop)
}

/// Marks a service that has had keys. The record is written with the first key and never removed.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyringRecord {
    /// Admin keys whose revocation has started.
    #[serde(default)]
    revoking: Vec<String>,
}

impl RecordValue for KeyringRecord {
    const KIND: &'static str = "keyring";
}

fn keys(records: &dyn RecordStore) -> Records<'_, StoredKey> {
    Records::new(records)
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredKey {
    name: String,
    tenant: Option<Tenant>,
    scope: Scope,
    /// Absent on keys of earlier versions, which do not see bodies.
    #[serde(default)]
    bodies: bool,
    hash: SecretHash,
    created_at: Timestamp,
}

impl RecordValue for StoredKey {
    const KIND: &'static str = "key";
}

impl StoredKey {
    fn of(key: &Key) -> Self {
        Self {
            name: key.name.clone(),
            tenant: key.tenant.clone(),
            scope: key.scope,
            bodies: key.bodies,
            hash: key.hash,
            created_at: key.created_at,
        }
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
    async fn a_key_matches_only_its_own_secret_and_the_secret_is_not_stored() {
        let store = SqliteStore::open_in_memory().unwrap();
        assert!(!ever_created(&store).await.unwrap());
        let (key, text) = create(&store, NewKey::new("ci", Scope::Admin), at()).await.unwrap();
        let (_, other) = create(&store, NewKey::new("other", Scope::Write), at()).await.unwrap();
        let stored = find(&store, &key.id).await.unwrap().unwrap();
        assert_eq!(stored, key);
        let presented = PresentedSecret::parse(KEY_PREFIX, &text).unwrap();
        assert!(presented.id == key.id && stored.matches(&presented));
        let with_other_secret = format!("rdk_{}_{}", key.id, other.rsplit_once('_').unwrap().1);
        assert!(!stored.matches(&PresentedSecret::parse(KEY_PREFIX, &with_other_secret).unwrap()));
        let raw = store.read(StoredKey::KIND, &key.id).await.unwrap().unwrap().value;
        assert!(!String::from_utf8(raw).unwrap().contains(text.splitn(3, '_').last().unwrap()));
    }

    #[tokio::test]
    async fn a_revoked_key_is_gone_and_the_store_stays_closed() {
        let store = SqliteStore::open_in_memory().unwrap();
        let admin = key(&store, Scope::Admin).await;
        let read = key(&store, Scope::Read).await;
        assert_eq!(list(&store, None, 10).await.unwrap().len(), 2);
        assert!(revoke(&store, &read.id).await.unwrap() && !revoke(&store, &read.id).await.unwrap());
        // Even if someone removes the record of the last key by hand, the service does not open.
        keys(&store).remove(&admin.id).await.unwrap();
        assert_eq!(list(&store, None, 10).await.unwrap(), []);
        assert!(ever_created(&store).await.unwrap());
        assert!(create(&store, NewKey::new("", Scope::Admin), at()).await.is_err());
        let again = create(&store, NewKey::new("rescue", Scope::Admin), at()).await;
        assert!(again.is_ok(), "an operator with access to the store can create a new key: {again:?}");
    }

    #[tokio::test]
    async fn the_first_key_must_be_an_admin_key_without_a_tenant() {
        let store = SqliteStore::open_in_memory().unwrap();
        let bound = NewKey { tenant: Some(Tenant::new("t").unwrap()), ..NewKey::new("t", Scope::Admin) };
        for refused in [NewKey::new("r", Scope::Read), NewKey::new("w", Scope::Write), bound.clone()] {
            let refused = create(&store, refused, at()).await;
            assert!(matches!(refused, Err(KeysError::FirstKeyNotAdmin)), "{refused:?}");
        }
        assert!(!ever_created(&store).await.unwrap(), "a rejected key must not close the service");
        key(&store, Scope::Admin).await;
        create(&store, bound, at()).await.unwrap();
    }

    #[tokio::test]
    async fn the_last_admin_key_cannot_be_revoked() {
        let store = SqliteStore::open_in_memory().unwrap();
        let first = key(&store, Scope::Admin).await;
        key(&store, Scope::Write).await;
        let bound = NewKey { tenant: Some(Tenant::new("t").unwrap()), ..NewKey::new("t", Scope::Admin) };
        let bound = create(&store, bound, at()).await.unwrap().0;
        assert!(matches!(revoke(&store, &first.id).await, Err(KeysError::LastAdminKey)));
        let second = key(&store, Scope::Admin).await;
        assert!(revoke(&store, &first.id).await.unwrap());
        assert!(
            revoke(&store, &bound.id).await.unwrap(),
            "an admin key that is bound to a tenant can be revoked"
        );
        assert!(matches!(revoke(&store, &second.id).await, Err(KeysError::LastAdminKey)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_two_concurrent_revocations_of_the_last_two_admin_keys_one_fails() {
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
    async fn a_revocation_that_another_process_has_started_counts() {
        let store = SqliteStore::open_in_memory().unwrap();
        let (one, two) = (key(&store, Scope::Admin).await.id, key(&store, Scope::Admin).await.id);
        // Another process has noted its revocation and not yet removed its key.
        reserve_revocation(&store, &one).await.unwrap();
        assert!(matches!(revoke(&store, &two).await, Err(KeysError::LastAdminKey)));
        assert!(
            revoke(&store, &one).await.unwrap(),
            "the process that started the revocation can complete it"
        );
    }

    #[tokio::test]
    async fn a_store_of_an_earlier_version_with_keys_gets_its_keyring() {
        let store = SqliteStore::open_in_memory().unwrap();
        let value = r#"{"name":"old","tenant":null,"scope":"write","hash":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","createdAt":7}"#;
        keys(&store).create("0123456789abcdef", &serde_json::from_str(value).unwrap()).await.unwrap();
        assert!(ever_created(&store).await.unwrap());
        assert!(Records::<KeyringRecord>::new(&store).contains(KEYRING_ID).await.unwrap());
        let old = list(&store, None, 10).await.unwrap().remove(0);
        assert!(!old.sees_bodies(), "an old key has no permission to see bodies");
    }
}
