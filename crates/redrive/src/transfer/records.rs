//! Copies records and reserved unique keys.

use std::collections::BTreeMap;

use redrive_core::records::RecordValue;
use redrive_core::store::Backend;
use redrive_core::transfer::{RecordSnapshot, SEALED};

use super::StoreMove;
use super::late_jobs::MovedBatch;
use super::seal::MoveState;
use crate::Error;

/// Records in one batch.
const BATCH: usize = 100;
/// The prefix of the kinds of policy records.
const POLICY: &str = "policy";

/// The result of copying records.
#[derive(Default)]
pub(super) struct CopiedRecords {
    pub(super) written: u64,
    /// Records of the target that differ and were kept.
    pub(super) kept: Vec<String>,
}

impl StoreMove {
    /// Copies all records of the source. With `merge`, records that the target has are kept.
    pub(super) async fn copy_records(&self) -> Result<CopiedRecords, Error> {
        self.write_records(|source, target| match target {
            None => Some(source),
            Some(target) if source.is_floor() => (source.version > target.version).then_some(source),
            Some(_) if self.merge => None,
            Some(target) if target.value == source.value && target.version >= source.version => None,
            // The version of a record must grow, whichever store it came from.
            Some(target) => {
                Some(RecordSnapshot { version: source.version.max(target.version + 1), ..source })
            }
        })
        .await
    }

    /// Copies the policies that the target has never had. Late jobs may need them.
    pub(super) async fn copy_new_policies(&self) -> Result<CopiedRecords, Error> {
        let choose = |source: RecordSnapshot, target: Option<&RecordSnapshot>| {
            (target.is_none() && source.kind.starts_with(POLICY)).then_some(source)
        };
        self.write_records(choose).await
    }

    /// Writes to the target what `choose` returns for each record of the source and the same record of the target.
    async fn write_records(
        &self,
        choose: impl Fn(RecordSnapshot, Option<&RecordSnapshot>) -> Option<RecordSnapshot>,
    ) -> Result<CopiedRecords, Error> {
        let targets = all_records(&*self.to.backend).await?;
        let mut copied = CopiedRecords::default();
        let mut chosen = Vec::new();
        for (key, source) in all_records(&*self.from.backend).await? {
            let target = targets.get(&key);
            let differs = target.is_some_and(|target| target.value != source.value);
            match choose(source, target) {
                Some(record) => chosen.push(record),
                None if differs => copied.kept.push(format!("{}/{}", key.0, key.1)),
                None => {}
            }
        }
        for records in chosen.chunks(BATCH) {
            let written = self.to.backend.import_records(records.to_vec()).await?;
            copied.written += written.into_iter().filter(|written| *written).count() as u64;
        }
        Ok(copied)
    }

    /// The number of records of the source.
    pub(super) async fn count_records(&self) -> Result<u64, Error> {
        let records = all_records(&*self.from.backend).await?;
        Ok(records.values().filter(|record| record.value.is_some()).count() as u64)
    }

    /// Copies the unique keys that stay reserved after their jobs have ended.
    pub(super) async fn copy_reserved_keys(&self) -> Result<(), Error> {
        let mut after = None;
        loop {
            let keys = self.from.backend.export_reserved_keys(after, BATCH).await?;
            let Some(last) = keys.last() else { return Ok(()) };
            after = Some(last.job);
            self.to.backend.import_reserved_keys(keys).await?;
        }
    }
}

/// All records by kind and id, without those that belong to moves.
async fn all_records(backend: &dyn Backend) -> Result<BTreeMap<(String, String), RecordSnapshot>, Error> {
    let mut records = BTreeMap::new();
    let mut after: Option<(String, String)> = None;
    loop {
        let start = after.as_ref().map(|(kind, id)| (kind.as_str(), id.as_str()));
        let page = backend.export_records(start, BATCH).await?;
        let Some(last) = page.last() else { return Ok(records) };
        after = Some((last.kind.clone(), last.id.clone()));
        let moves = [SEALED, MoveState::KIND, MovedBatch::KIND];
        let others = page.into_iter().filter(|record| !moves.contains(&record.kind.as_str()));
        records.extend(others.map(|record| ((record.kind.clone(), record.id.clone()), record)));
    }
}
