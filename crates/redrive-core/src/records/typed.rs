//! Typed records: one codec, one compare-and-set loop and one scan for every kind of record.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Precondition, Record, RecordStore, RecordWrite, WriteResult};
use crate::limits::PAGE_ITEMS_MAX;
use crate::store::{BoxError, StoreError};
use crate::time::Timestamp;

/// How often one [`Records::update`] tries its compare-and-set. Only a record that others write all the time needs
/// more.
const UPDATE_TRIES_MAX: usize = 100;

/// The content of one kind of record.
pub trait RecordValue: Serialize + DeserializeOwned + Send + Sync {
    /// The kind under which the store keeps these values.
    const KIND: &'static str;

    /// The bytes to store: JSON, unless the kind has another form.
    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_else(|error| unreachable!("plain data becomes JSON: {error}"))
    }

    /// Reads what [`RecordValue::encode`] wrote.
    fn decode(bytes: &[u8]) -> Result<Self, BoxError> {
        Ok(serde_json::from_slice(bytes)?)
    }

    /// When [`Records::remove_expired`] removes the record. Most kinds have no expiry.
    fn expires_at(&self) -> Option<Timestamp> {
        None
    }
}

/// The records of one kind in a store.
///
/// ```
/// use redrive_core::RecordStore;
/// use redrive_core::records::{RecordEdit, RecordValue, Records};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Default, Serialize, Deserialize)]
/// struct Visits {
///     count: u64,
/// }
///
/// impl RecordValue for Visits {
///     const KIND: &'static str = "visits";
/// }
///
/// async fn count_visit(store: &dyn RecordStore, page: &str) -> Result<u64, redrive_core::StoreError> {
///     let visits = Records::<Visits>::new(store);
///     // The closure runs again when another node wrote the record in the meantime.
///     visits
///         .update(page, |stored| {
///             let count = stored.unwrap_or_default().count + 1;
///             Ok(RecordEdit::Put(Visits { count }, count))
///         })
///         .await
/// }
/// ```
pub struct Records<'a, T> {
    store: &'a dyn RecordStore,
    value: PhantomData<fn() -> T>,
}

/// What an update does with the record, and what it returns to its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordEdit<T, R> {
    /// Does not change the record.
    Keep(R),
    /// Creates or replaces the record.
    Put(T, R),
    /// Removes the record.
    Remove(R),
}

/// Part of a scan, in the order of ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordPage<T> {
    /// The records that could be read.
    pub items: Vec<Record<T>>,
    /// The damaged records.
    pub damaged: Vec<DamagedRecord>,
    /// The id after which the next page begins; `None` at the end.
    pub next: Option<String>,
}

/// A record whose bytes are not a value of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRecord {
    /// Its kind.
    pub kind: &'static str,
    /// Its name within its kind.
    pub id: String,
    /// Its version.
    pub version: u64,
    /// What is wrong with it.
    pub problem: String,
}

impl DamagedRecord {
    fn log(&self) {
        let Self { kind, id, problem, .. } = self;
        tracing::warn!(kind, id, problem, "skipped a damaged record; repair or remove it");
    }
}

impl From<DamagedRecord> for StoreError {
    fn from(DamagedRecord { kind, id, problem, .. }: DamagedRecord) -> Self {
        Self::Corrupt(format!("record {kind}/{id}: {problem}"))
    }
}

impl<'a, T: RecordValue> Records<'a, T> {
    /// The records of kind [`RecordValue::KIND`] in `store`.
    pub fn new(store: &'a dyn RecordStore) -> Self {
        Self { store, value: PhantomData }
    }

    /// Reads a record. A damaged one is an error.
    pub async fn get(&self, id: &str) -> Result<Option<Record<T>>, StoreError> {
        let record = self.store.read(T::KIND, id).await?;
        Ok(record.map(decode).transpose()?)
    }

    /// Reports whether there is a record with this id, damaged or not.
    pub async fn contains(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.store.read(T::KIND, id).await?.is_some())
    }

    /// Reports whether there is no record of this kind.
    pub async fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.store.scan(T::KIND, None, 1).await?.is_empty())
    }

    /// Creates a record and returns its version; `None` if the id is taken.
    pub async fn create(&self, id: &str, value: &T) -> Result<Option<u64>, StoreError> {
        self.write(id, Precondition::Absent, Some(value)).await
    }

    /// Creates or replaces a record and returns its version.
    pub async fn put(&self, id: &str, value: &T) -> Result<u64, StoreError> {
        Ok(self.write(id, Precondition::Any, Some(value)).await?.unwrap_or_default())
    }

    /// Replaces a record that still has this version, and returns its new version; `None` if someone else wrote it since.
    pub async fn replace(&self, id: &str, version: u64, value: &T) -> Result<Option<u64>, StoreError> {
        self.write(id, Precondition::Version(version), Some(value)).await
    }

    /// Removes a record, whatever its version. It is no error if there is none.
    pub async fn remove(&self, id: &str) -> Result<(), StoreError> {
        self.write(id, Precondition::Any, None).await.map(drop)
    }

    /// Removes a record that still has this version; false if someone else wrote it since.
    pub async fn remove_version(&self, id: &str, version: u64) -> Result<bool, StoreError> {
        Ok(self.write(id, Precondition::Version(version), None).await?.is_some())
    }

    /// Changes a record by compare-and-set. `edit` gets the current value, and runs again whenever someone else wrote the
    /// record between the read and the write; an error from it ends the update. After a hundred such conflicts the update
    /// fails with [`StoreError::Busy`].
    pub async fn update<R, E: From<StoreError>>(
        &self,
        id: &str,
        mut edit: impl FnMut(Option<T>) -> Result<RecordEdit<T, R>, E>,
    ) -> Result<R, E> {
        for _ in 0..UPDATE_TRIES_MAX {
            let (version, value) = match self.get(id).await? {
                Some(record) => (Some(record.version), Some(record.value)),
                None => (None, None),
            };
            let (value, result) = match edit(value)? {
                RecordEdit::Keep(result) => return Ok(result),
                RecordEdit::Remove(result) if version.is_none() => return Ok(result),
                RecordEdit::Put(value, result) => (Some(value), result),
                RecordEdit::Remove(result) => (None, result),
            };
            let expect = version.map_or(Precondition::Absent, Precondition::Version);
            if self.write(id, expect, value.as_ref()).await?.is_some() {
                return Ok(result);
            }
        }
        let problem =
            format!("record {}/{id} was changed by others {UPDATE_TRIES_MAX} times in a row", T::KIND);
        Err(StoreError::Busy(problem.into()).into())
    }

    /// Reads the records whose ids begin with `prefix` and come after `after`: `limit` of them, or fewer at the end.
    ///
    /// Damaged records are logged and do not count towards `limit`, so that they hide no other record.
    pub async fn page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<RecordPage<T>, StoreError> {
        let mut page = self.scan(prefix, after, limit).await?;
        while page.items.len() < limit
            && let Some(next) = page.next.take()
        {
            let more = self.scan(prefix, Some(&next), limit - page.items.len()).await?;
            page.items.extend(more.items);
            page.damaged.extend(more.damaged);
            page.next = more.next;
        }
        page.damaged.iter().for_each(DamagedRecord::log);
        Ok(page)
    }

    /// Reads one page in one call to the store: at most `limit` records, damaged ones included, which are not logged.
    pub async fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<RecordPage<T>, StoreError> {
        // No id equals a prefix, so a scan that begins after the prefix misses none.
        let after = after.unwrap_or_default().max(prefix);
        let records = self.store.scan(T::KIND, Some(after).filter(|after| !after.is_empty()), limit).await?;
        let last = records.last().filter(|last| records.len() == limit && last.id.starts_with(prefix));
        let next = last.map(|last| last.id.clone());
        let (mut items, mut damaged) = (Vec::new(), Vec::new());
        for record in records.into_iter().take_while(|record| record.id.starts_with(prefix)) {
            match decode(record) {
                Ok(record) => items.push(record),
                Err(problem) => damaged.push(problem),
            }
        }
        Ok(RecordPage { items, damaged, next })
    }

    /// Reads all records whose ids begin with `prefix`, except damaged ones, which are logged.
    pub async fn all(&self, prefix: &str) -> Result<Vec<Record<T>>, StoreError> {
        let mut items = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.page(prefix, after.as_deref(), PAGE_ITEMS_MAX).await?;
            items.extend(page.items);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(items),
            }
        }
    }

    /// Removes the records that expired before `now`, and returns their number. A record that someone writes meanwhile stays.
    ///
    /// Damaged records are removed too, because their expiry is unknown. Call this only for kinds whose records are created again.
    pub async fn remove_expired(&self, now: Timestamp) -> Result<usize, StoreError> {
        let (mut removed, mut after) = (0, None::<String>);
        loop {
            let page = self.page("", after.as_deref(), PAGE_ITEMS_MAX).await?;
            let is_expired = |record: &&Record<T>| record.value.expires_at().is_some_and(|at| at <= now);
            let expired = page.items.iter().filter(is_expired).map(|record| (&record.id, record.version));
            let damaged = page.damaged.iter().map(|record| (&record.id, record.version));
            for (id, version) in expired.chain(damaged) {
                removed += usize::from(self.remove_version(id, version).await?);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(removed),
            }
        }
    }

    /// The version that was written; `None` if the precondition did not hold.
    async fn write(
        &self,
        id: &str,
        expect: Precondition,
        value: Option<&T>,
    ) -> Result<Option<u64>, StoreError> {
        let write = RecordWrite {
            kind: T::KIND.to_owned(),
            id: id.to_owned(),
            expect,
            value: value.map(RecordValue::encode),
        };
        match self.store.write(write).await? {
            WriteResult::Done(version) => Ok(Some(version)),
            WriteResult::Conflict(_) => Ok(None),
        }
    }
}

impl<T> Clone for Records<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Records<'_, T> {}

fn decode<T: RecordValue>(record: Record) -> Result<Record<T>, DamagedRecord> {
    let Record { id, version, value } = record;
    match T::decode(&value) {
        Ok(value) => Ok(Record { id, version, value }),
        Err(problem) => Err(DamagedRecord { kind: T::KIND, id, version, problem: problem.to_string() }),
    }
}
