//! API keys: made once, shown once, kept as a hash.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use redrive_core::records::{Change, Expect, Record, Written};
use redrive_core::{Invalid, Records, StoreError, Tenant, Timestamp};
use redrive_delivery::encoding::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;
use utoipa::ToSchema;

/// The record kind of keys; the id is the key's id.
const KIND: &str = "key";
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
    /// When it was made.
    pub created_at: Timestamp,
    hash: [u8; 32],
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
}

/// Makes a key. The text is the key itself, `rdk_<id>_<secret>`, and cannot be had again.
pub async fn create(records: &dyn Records, new: NewKey, now: Timestamp) -> Result<(Key, String), StoreError> {
    if new.name.is_empty() || new.name.len() > KEY_NAME_BYTES_MAX {
        let problem = format!("must be from 1 to {KEY_NAME_BYTES_MAX} bytes long");
        return Err(Invalid::new("name", problem).into());
    }
    let (id, secret) = (hex(&random::<8>()?), BASE64_URL_SAFE_NO_PAD.encode(random::<32>()?));
    let key = Key {
        id,
        name: new.name,
        tenant: new.tenant,
        scope: new.scope,
        created_at: now,
        hash: Sha256::digest(&secret).into(),
    };
    let change = Change {
        kind: KIND.to_owned(),
        id: key.id.clone(),
        expect: Expect::Absent,
        value: Some(Stored::encode(&key)),
    };
    match records.write(change).await? {
        Written::Done(_) => {
            let text = format!("rdk_{}_{secret}", key.id);
            Ok((key, text))
        }
        Written::Conflict(_) => Err(StoreError::Failed("a random key id was taken".into())),
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

/// Ends a key; says whether there was one.
pub async fn revoke(records: &dyn Records, id: &str) -> Result<bool, StoreError> {
    let Some(record) = records.read(KIND, id).await? else { return Ok(false) };
    let expect = Expect::Version(record.version);
    let change = Change { kind: KIND.to_owned(), id: id.to_owned(), expect, value: None };
    Ok(matches!(records.write(change).await?, Written::Done(_)))
}

/// Whether there is any key at all: without one, a service bound to loopback is open.
pub async fn any_exist(records: &dyn Records) -> Result<bool, StoreError> {
    Ok(!records.scan(KIND, None, 1).await?.is_empty())
}

/// A key as a caller sends it, taken apart.
pub(crate) struct Presented<'a> {
    pub(crate) id: &'a str,
    secret: &'a str,
}

impl<'a> Presented<'a> {
    /// Takes `rdk_<id>_<secret>` apart.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (id, secret) = text.strip_prefix("rdk_")?.split_once('_')?;
        let plausible = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        plausible.then_some(Self { id, secret })
    }

    /// Whether it is this key. The time it takes says nothing about the secret.
    pub(crate) fn opens(&self, key: &Key) -> bool {
        let hash: [u8; 32] = Sha256::digest(self.secret).into();
        hash.ct_eq(&key.hash).into()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    name: String,
    tenant: Option<Tenant>,
    scope: Scope,
    hash: String,
    created_at: Timestamp,
}

impl Stored {
    fn encode(key: &Key) -> Vec<u8> {
        let stored = Self {
            name: key.name.clone(),
            tenant: key.tenant.clone(),
            scope: key.scope,
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
            created_at: stored.created_at,
            hash: hash.try_into().map_err(|_| damaged(&"the hash is not of 32 bytes"))?,
        })
    }
}

fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| StoreError::Failed(e.into()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use redrive_store_sqlite::SqliteStore;

    use super::*;

    fn new(name: &str) -> NewKey {
        NewKey { name: name.into(), tenant: None, scope: Scope::Write }
    }

    #[tokio::test]
    async fn a_key_opens_with_its_secret_only_and_the_secret_is_not_kept() {
        let store = SqliteStore::open_in_memory().unwrap();
        assert!(!any_exist(&store).await.unwrap());
        let (key, text) = create(&store, new("ci"), Timestamp::from_ms(7)).await.unwrap();
        let (_, other) = create(&store, new("other"), Timestamp::from_ms(7)).await.unwrap();
        let kept = find(&store, &key.id).await.unwrap().unwrap();
        assert_eq!(kept, key);
        let presented = Presented::parse(&text).unwrap();
        assert!(presented.id == key.id && presented.opens(&kept));
        let stranger = format!("rdk_{}_{}", key.id, other.rsplit_once('_').unwrap().1);
        assert!(!Presented::parse(&stranger).unwrap().opens(&kept));
        let raw = store.read(KIND, &key.id).await.unwrap().unwrap().value;
        assert!(!String::from_utf8(raw).unwrap().contains(presented.secret));
    }

    #[tokio::test]
    async fn a_revoked_key_is_gone() {
        let store = SqliteStore::open_in_memory().unwrap();
        let (key, _) = create(&store, new("ci"), Timestamp::from_ms(7)).await.unwrap();
        assert_eq!(list(&store, None, 10).await.unwrap(), vec![key.clone()]);
        assert!(revoke(&store, &key.id).await.unwrap() && !revoke(&store, &key.id).await.unwrap());
        assert!(!any_exist(&store).await.unwrap());
        assert!(create(&store, new(""), Timestamp::from_ms(7)).await.is_err());
    }

    #[test]
    fn what_is_no_key_is_not_looked_up() {
        for text in ["", "rdk_", "rdk_x_y", "Basic abc", "rdk_0123456789abcdeg_x", "rdk_0123456789abcdef"] {
            assert!(Presented::parse(text).is_none(), "{text}");
        }
    }
}
