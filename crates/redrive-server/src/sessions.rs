//! Sessions: what a browser signs in with once and sends from then on, instead of the API key.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use redrive_core::records::{Change, Expect, Record, Written};
use redrive_core::{Records, StoreError, Timestamp};
use serde::{Deserialize, Serialize};

use crate::keys;
use crate::presented::{NewSecret, PresentedSecret};

/// The record kind of sessions; the id is the session's id.
const KIND: &str = "session";
/// How a session's token begins.
pub const TOKEN_PREFIX: &str = "rds_";
/// How long a session lasts.
pub const SESSION_TTL: Duration = Duration::from_secs(12 * 60 * 60);
/// Sessions read at once when all of them are looked at.
const SCAN_ITEMS: usize = 200;

/// A session as it is kept; its token is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The part of the token that may be shown.
    pub id: String,
    /// The id of the API key that it was opened with. It is valid only as long as that key is.
    pub key_id: String,
    /// When it ends.
    pub expires_at: Timestamp,
    hash: [u8; 32],
}

impl Session {
    /// Whether a caller has sent this session's token.
    pub(crate) fn is_opened_by(&self, presented: &PresentedSecret<'_>) -> bool {
        presented.matches(&self.hash)
    }
}

/// Opens a session for a key. The text is the token, `rds_<id>_<secret>`, and cannot be had again.
pub async fn open(
    records: &dyn Records,
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
    let change = Change {
        kind: KIND.to_owned(),
        id: session.id.clone(),
        expect: Expect::Absent,
        value: Some(Stored::encode(&session)),
    };
    match records.write(change).await? {
        Written::Done(_) => Ok((session, secret.text)),
        Written::Conflict(_) => Err(StoreError::Failed("a random session id was taken".into())),
    }
}

/// The session with this id, expired or not.
pub async fn find(records: &dyn Records, id: &str) -> Result<Option<Session>, StoreError> {
    records.read(KIND, id).await?.as_ref().map(Stored::decode).transpose()
}

/// Ends a session.
pub async fn end(records: &dyn Records, id: &str) -> Result<(), StoreError> {
    let change = Change { kind: KIND.to_owned(), id: id.to_owned(), expect: Expect::Any, value: None };
    records.write(change).await.map(drop)
}

/// Removes the sessions that have expired or whose key was revoked; returns how many.
pub async fn prune(records: &dyn Records, now: Timestamp) -> Result<usize, StoreError> {
    let (mut removed, mut after) = (0, None::<String>);
    loop {
        let page = records.scan(KIND, after.as_deref(), SCAN_ITEMS).await?;
        for record in &page {
            let session = Stored::decode(record)?;
            if session.expires_at <= now || keys::find(records, &session.key_id).await?.is_none() {
                end(records, &session.id).await?;
                removed += 1;
            }
        }
        match page.last() {
            Some(last) if page.len() == SCAN_ITEMS => after = Some(last.id.clone()),
            Some(_) | None => return Ok(removed),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    key_id: String,
    hash: String,
    expires_at: Timestamp,
}

impl Stored {
    fn encode(session: &Session) -> Vec<u8> {
        let stored = Self {
            key_id: session.key_id.clone(),
            hash: BASE64_URL_SAFE_NO_PAD.encode(session.hash),
            expires_at: session.expires_at,
        };
        serde_json::to_vec(&stored).unwrap_or_else(|e| unreachable!("plain data becomes JSON: {e}"))
    }

    fn decode(record: &Record) -> Result<Session, StoreError> {
        let damaged =
            |e: &dyn fmt::Display| StoreError::Corrupt(format!("record {KIND} {:?}: {e}", record.id));
        let stored: Self = serde_json::from_slice(&record.value).map_err(|e| damaged(&e))?;
        let hash = BASE64_URL_SAFE_NO_PAD.decode(&stored.hash).map_err(|e| damaged(&e))?;
        Ok(Session {
            id: record.id.clone(),
            key_id: stored.key_id,
            expires_at: stored.expires_at,
            hash: hash.try_into().map_err(|_| damaged(&"the hash is not of 32 bytes"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use redrive_store_sqlite::SqliteStore;

    use super::*;
    use crate::keys::{NewKey, Scope};

    #[tokio::test]
    async fn a_session_opens_with_its_token_only_and_the_token_is_not_kept() {
        let store = SqliteStore::open_in_memory().unwrap();
        let (session, token) = open(&store, "0123456789abcdef", Timestamp::from_ms(7)).await.unwrap();
        let (_, other) = open(&store, "0123456789abcdef", Timestamp::from_ms(7)).await.unwrap();
        let kept = find(&store, &session.id).await.unwrap().unwrap();
        assert_eq!(kept, session);
        let presented = PresentedSecret::parse(TOKEN_PREFIX, &token).unwrap();
        assert!(presented.id == session.id && kept.is_opened_by(&presented));
        let stranger = format!("rds_{}_{}", session.id, other.split('_').nth(2).unwrap());
        assert!(!kept.is_opened_by(&PresentedSecret::parse(TOKEN_PREFIX, &stranger).unwrap()));
        let raw = store.read(KIND, &session.id).await.unwrap().unwrap().value;
        assert!(!String::from_utf8(raw).unwrap().contains(token.splitn(3, '_').last().unwrap()));
        end(&store, &session.id).await.unwrap();
        assert_eq!(find(&store, &session.id).await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_has_expired_or_lost_its_key_is_pruned() {
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
