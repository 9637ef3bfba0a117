//! Small versioned documents, all under one hash tag.

use async_trait::async_trait;
use redrive_core::StoreError;
use redrive_core::records::{Change, Expect, Record, Records, Written};
use redrive_core::transfer::SEALED;

use crate::arguments::Arguments;
use crate::settings::{Settings, is_setting};
use crate::{RedisStore, answer, script, transfer};

#[async_trait]
impl Records for RedisStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        let mut command = redis::cmd("HGET");
        command.arg(format!("{}records:{kind}", self.inner.layout.records_tag())).arg(id);
        match self.inner.send(command).await? {
            redis::Value::Nil => Ok(None),
            value => read(id.to_owned(), &answer::bytes(value)?),
        }
    }

    async fn write(&self, change: Change) -> Result<Written, StoreError> {
        change.check()?;
        let mut arguments = Arguments::none();
        arguments.text(&change.kind);
        arguments.text(&change.id);
        arguments.text(match change.expect {
            Expect::Any => "any".to_owned(),
            Expect::Absent => "absent".to_owned(),
            Expect::Version(version) => version.to_string(),
        });
        arguments.text(u8::from(change.value.is_none()));
        arguments.bytes(change.value.as_deref().unwrap_or_default());
        arguments.text(u8::from(is_setting(&change.kind)));
        let opens = change.kind == SEALED && change.value.is_none();
        if opens && self.is_last_seal(&change.id).await? {
            // Before the record goes: should this be all that happens, the record still stops claims.
            transfer::seal(&self.inner, false).await?;
        }
        let value = self.inner.run_on_records(&script::RECORD_WRITE, arguments).await?;
        let [word, version, current] = answer::parts(value)?;
        let version = answer::text(version)?;
        let done = answer::text(word)? == "done";
        if change.kind == SEALED && done != opens {
            // A new seal, or one that stays on after all.
            transfer::seal(&self.inner, done || Settings::read(&self.inner).await?.is_sealed()).await?;
        }
        if done {
            self.inner.wake_if(true);
            return Ok(Written::Done(version.parse().map_err(|_| answer::odd("a version"))?));
        }
        let current = version.parse().ok().map(|version| -> Result<Record, StoreError> {
            Ok(Record { id: change.id, version, value: answer::bytes(current)? })
        });
        Ok(Written::Conflict(current.transpose()?))
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        let mut arguments = Arguments::none();
        arguments.text(kind);
        arguments.text(after.unwrap_or_default());
        arguments.count(limit);
        let flat = answer::items(self.inner.run_on_records(&script::RECORD_SCAN, arguments).await?)?;
        let mut flat = flat.into_iter();
        let mut records = Vec::new();
        while let (Some(id), Some(value)) = (flat.next(), flat.next()) {
            records.extend(read(answer::text(id)?, &answer::bytes(value)?)?);
        }
        Ok(records)
    }
}

impl RedisStore {
    /// Whether no other seal than this one is on the store.
    async fn is_last_seal(&self, id: &str) -> Result<bool, StoreError> {
        let seals = self.scan(SEALED, None, 2).await?;
        Ok(seals.iter().all(|seal| seal.id == id))
    }
}

/// A record, if it was not removed.
fn read(id: String, slot: &[u8]) -> Result<Option<Record>, StoreError> {
    let (version, value) = read_slot(&id, slot)?;
    Ok(value.map(|value| Record { id, version, value }))
}

/// The version and the value of a record, or of its removal, from VERSION:THERE:VALUE.
pub(crate) fn read_slot(id: &str, slot: &[u8]) -> Result<(u64, Option<Vec<u8>>), StoreError> {
    let mut parts = slot.splitn(3, |byte| *byte == b':');
    let version = parts.next().and_then(|part| std::str::from_utf8(part).ok()?.parse().ok());
    let (Some(version), Some(there), Some(value)) = (version, parts.next(), parts.next()) else {
        return Err(StoreError::Corrupt(format!("record {id:?} cannot be read")));
    };
    Ok((version, (there == b"1").then(|| value.to_vec())))
}
