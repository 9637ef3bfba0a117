//! Sessions of browsers: a browser signs in with an API key once, and then sends a session token instead of the key.

use std::time::Duration;

use redrive_core::records::{Record, RecordValue};
use redrive_core::{RecordStore, Records, StoreError, Timestamp};
use redrive_wire::session::TOKEN_PREFIX;
use serde::{Deserialize, Serialize};

use crate::caller_secrets::{NewSecret, PresentedSecret, SecretHash};
use crate::keys;

/// How long a session lasts.
pub const SESSION_TTL: Duration = Duration::from_secs(12 * 60 * 60);

/// A stored session, without its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The part of the token that may be shown.
    pub id: String,
    /// The id of the API key that signed in. The session is valid only as long as this key exists.
    pub key_id: String,
    /// When it expires.
    pub expires_at: Timestamp,
    hash: SecretHash,
}

impl Session {
    fn from_record(Record { id, value, .. }: Record<StoredSession>) -> Self {
        Self { id, key_id: value.key_id, expires_at: value.expires_at, hash: value.hash }
    }

    /// Whether a caller has sent this session's token.
    pub(crate) fn matches(&self, presented: &PresentedSecret<'_>) -> bool {
        presented.matches(&self.hash)
    }
}

/// Opens a session for a key. The returned text is the token, `rds_<id>_<secret>`, and cannot be read again.
pub async fn open(
    records: &dyn RecordStore,
    key_id: &str,
    now: Timestamp,
) -> Result<(Session, String), StoreError> {
    let secret = NewSecret::random(TOKEN_PREFIX)?;
    let session = Session {
        id: secret.id,
        key_id: key_id.to_owned(),
        expires_at: now.after(SESSION_TTL),
        hash: secret.hash,
    };
    match Records::new(records).create(&session.id, &StoredSession::of(&session)).await? {
        Some(_) => Ok((session, secret.text)),
        None => Err(StoreError::Failed("a random session id is already in use".into())),
    }
}

/// The session with this id, expired or not.
pub async fn find(records: &dyn RecordStore, id: &str) -> Result<Option<Session>, StoreError> {
    let record = Records::<StoredSession>::new(records).get(id).await?;
    Ok(record.map(Session::from_record))
}

/// Ends a session.
pub async fn end(records: &dyn RecordStore, id: &str) -> Result<(), StoreError> {
    Records::<StoredSession>::new(records).remove(id).await
}

/// Removes sessions that have expired or whose key was revoked, and returns their number.
pub async fn prune(records: &dyn RecordStore, now: Timestamp) -> Result<usize, StoreError> {
    let sessions = Records::<StoredSession>::new(records);
    let mut removed = sessions.remove_expired(now).await?;
    for session in sessions.all("").await? {
        if keys::find(records, &session.value.key_id).await?.is_none() {
            removed += usize::from(sessions.remove_version(&session.id, session.version).await?);
        }
    }
    Ok(removed)
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSession {
    key_id: String,
    hash: SecretHash,
    expires_at: Timestamp,
}

impl RecordValue for StoredSession {
    const KIND: &'static str = "session";

    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.expires_at)
    }
}

impl StoredSession {
    fn of(session: &Session) -> Self {
        Self { key_id: session.key_id.clone(), hash: session.hash, expires_at: session.expires_at }
    }
}

#[cfg(test)]
mod tests {
    use redrive_store_sqlite::SqliteStore;

    use super::*;
    use crate::keys::NewKey;
    use redrive_wire::Scope;

    #[tokio::test]
    async fn a_session_matches_only_its_own_token_and_the_token_is_not_stored() {
        let store = SqliteStore::open_in_memory().unwrap();
        let (session, token) = open(&store, "0123456789abcdef", Timestamp::from_ms(7)).await.unwrap();
        let (_, other) = open(&store, "0123456789abcdef", Timestamp::from_ms(7)).await.unwrap();
        let stored = find(&store, &session.id).await.unwrap().unwrap();
        assert_eq!(stored, session);
        let presented = PresentedSecret::parse(TOKEN_PREFIX, &token).unwrap();
        assert!(presented.id == session.id && stored.matches(&presented));
        let with_other_secret = format!("rds_{}_{}", session.id, other.split('_').nth(2).unwrap());
        assert!(!stored.matches(&PresentedSecret::parse(TOKEN_PREFIX, &with_other_secret).unwrap()));
        let raw = store.read(StoredSession::KIND, &session.id).await.unwrap().unwrap().value;
        assert!(!String::from_utf8(raw).unwrap().contains(token.splitn(3, '_').last().unwrap()));
        end(&store, &session.id).await.unwrap();
        assert_eq!(find(&store, &session.id).await.unwrap(), None);
    }

    #[tokio::test]
    async fn expired_sessions_and_sessions_of_revoked_keys_are_pruned() {
        let store = SqliteStore::open_in_memory().unwrap();
        let now = Timestamp::from_ms(1_000);
        let (key, _) = keys::create(&store, NewKey::new("k", Scope::Admin), now).await.unwrap();
        let (live, _) = open(&store, &key.id, now).await.unwrap();
        open(&store, "ffffffffffffffff", now).await.unwrap();
        assert_eq!(prune(&store, now).await.unwrap(), 1);
        assert!(find(&store, &live.id).await.unwrap().is_some());
        assert_eq!(prune(&store, now.after(SESSION_TTL)).await.unwrap(), 1);
        assert_eq!(find(&store, &live.id).await.unwrap(), None);
    }
}
