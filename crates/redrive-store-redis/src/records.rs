//! Small versioned documents. All their keys have one hash tag.

use async_trait::async_trait;
use redrive_core::StoreError;
use redrive_core::records::{Precondition, Record, RecordStore, RecordWrite, WriteResult};
use redrive_core::transfer::SEALED;

use crate::script::{self, Arguments, reply};
use crate::settings::{Settings, is_setting};
use crate::{RedisStore, transfer};

#[async_trait]
impl RecordStore for RedisStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        let mut command = redis::cmd("HGET");
        command.arg(format!("{}records:{kind}", self.inner.layout.records_prefix())).arg(id);
        match self.inner.send(command).await? {
            redis::Value::Nil => Ok(None),
            value => read(id.to_owned(), &reply::bytes(value)?),
        }
    }

    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError> {
        change.check()?;
        let mut arguments = Arguments::none();
        arguments.text(&change.kind);
        arguments.text(&change.id);
        arguments.text(match change.expect {
            Precondition::Any => "any".to_owned(),
            Precondition::Absent => "absent".to_owned(),
            Precondition::Version(version) => version.to_string(),
        });
        arguments.text(u8::from(change.value.is_none()));
        arguments.bytes(change.value.as_deref().unwrap_or_default());
        arguments.text(u8::from(is_setting(&change.kind)));
        let unseals = change.kind == SEALED && change.value.is_none();
        if unseals && self.is_last_seal(&change.id).await? {
            // Before the record is removed: if this node crashes in between, the record still stops claims.
            transfer::seal(&self.inner, false).await?;
        }
        let value = self.inner.run_on_records(&script::RECORD_WRITE, arguments).await?;
        let [word, version, current] = reply::parts(value)?;
        let version = reply::text(version)?;
        let done = reply::text(word)? == "done";
        if change.kind == SEALED && done != unseals {
            // The seal is new, or its removal failed.
            transfer::seal(&self.inner, done || Settings::read(&self.inner).await?.is_sealed()).await?;
        }
        if done {
            self.inner.wake_if(true);
            return Ok(WriteResult::Done(version.parse().map_err(|_| reply::unexpected("a version"))?));
        }
        let current = version.parse().ok().map(|version| -> Result<Record, StoreError> {
            Ok(Record { id: change.id, version, value: reply::bytes(current)? })
        });
        Ok(WriteResult::Conflict(current.transpose()?))
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        let mut arguments = Arguments::none();
        arguments.text(kind);
        arguments.text(after.unwrap_or_default());
        arguments.count(limit);
        let flat = reply::items(self.inner.run_on_records(&script::RECORD_SCAN, arguments).await?)?;
        let mut flat = flat.into_iter();
        let mut records = Vec::new();
        while let (Some(id), Some(value)) = (flat.next(), flat.next()) {
            records.extend(read(reply::text(id)?, &reply::bytes(value)?)?);
        }
        Ok(records)
    }
}

impl RedisStore {
    /// Whether this is the only seal on the store.
    async fn is_last_seal(&self, id: &str) -> Result<bool, StoreError> {
        let seals = self.scan(SEALED, None, 2).await?;
        Ok(seals.iter().all(|seal| seal.id == id))
    }
}

/// A record, if it was not removed.
fn read(id: String, stored: &[u8]) -> Result<Option<Record>, StoreError> {
    let (version, value) = read_stored(&id, stored)?;
    Ok(value.map(|value| Record { id, version, value }))
}

/// The version and the value of a record from VERSION:LIVE:VALUE. A tombstone and the floor of a kind have no value.
pub(crate) fn read_stored(id: &str, stored: &[u8]) -> Result<(u64, Option<Vec<u8>>), StoreError> {
    let mut parts = stored.splitn(3, |byte| *byte == b':');
    let version = parts.next().and_then(|part| std::str::from_utf8(part).ok()?.parse().ok());
    let (Some(version), Some(live), Some(value)) = (version, parts.next(), parts.next()) else {
        return Err(StoreError::Corrupt(format!("record {id:?} cannot be read")));
    };
    Ok((version, (live == b"1").then(|| value.to_vec())))
}
