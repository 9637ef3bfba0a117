//! Mutations of export and import.

use redrive_core::records::{Precondition, RecordWrite};
use redrive_core::transfer::{BEING_FILLED, ExportPage, ImportResult, JobSnapshot, RecordSnapshot, SEALED};
use redrive_core::{JobId, RecordStore, StoreError, Transfer};

use super::{MutantStore, Mutation};

impl MutantStore {
    pub(super) async fn mutated_export(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<ExportPage, StoreError> {
        let mut exported = self.store.export(after, limit).await?;
        for snapshot in &mut exported.jobs {
            match self.mutation {
                Mutation::ExportDropsSteps => snapshot.steps.clear(),
                Mutation::ExportDropsTaken => snapshot.signals.retain(|signal| !signal.taken),
                _ => {}
            }
        }
        Ok(exported)
    }

    pub(super) async fn mutated_import(
        &self,
        mut snapshots: Vec<JobSnapshot>,
    ) -> Result<Vec<ImportResult>, StoreError> {
        for snapshot in &mut snapshots {
            match self.mutation {
                Mutation::ImportDropsUnique => snapshot.unique = None,
                Mutation::ImportIgnoresKeys => (snapshot.job.key, snapshot.fingerprint) = (None, None),
                _ => {}
            }
        }
        let sealed = self.store.read(SEALED, BEING_FILLED).await?;
        match self.mutation {
            Mutation::ImportOverwrites => {
                self.import_under(Some(b"{}".to_vec()), sealed.map(|record| record.value), snapshots).await
            }
            Mutation::ImportNeverReplaces => {
                self.import_under(None, sealed.map(|record| record.value), snapshots).await
            }
            _ => self.store.import(snapshots).await,
        }
    }

    /// Imports as if the store were being filled, or as if it were not.
    async fn import_under(
        &self,
        pretended: Option<Vec<u8>>,
        actual: Option<Vec<u8>>,
        snapshots: Vec<JobSnapshot>,
    ) -> Result<Vec<ImportResult>, StoreError> {
        self.set_seal(pretended).await?;
        let answers = self.store.import(snapshots).await?;
        self.set_seal(actual).await?;
        Ok(answers)
    }

    async fn set_seal(&self, value: Option<Vec<u8>>) -> Result<(), StoreError> {
        let (kind, id) = (SEALED.to_owned(), BEING_FILLED.to_owned());
        self.store.write(RecordWrite { kind, id, expect: Precondition::Any, value }).await.map(drop)
    }

    pub(super) async fn mutated_export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError> {
        let mut records = self.store.export_records(after, limit).await?;
        if self.mutation == Mutation::RemovedRecordsLost {
            records.retain(|record| record.value.is_some());
        }
        Ok(records)
    }

    pub(super) async fn mutated_import_records(
        &self,
        records: Vec<RecordSnapshot>,
    ) -> Result<Vec<bool>, StoreError> {
        if self.mutation == Mutation::RecordsGoBack {
            self.store.step(|model, _| {
                records.iter().for_each(|record| model.forget_record(&record.kind, &record.id));
                Ok(())
            })?;
        }
        self.store.import_records(records).await
    }
}
