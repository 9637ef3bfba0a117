//! Flaws of export and import.

use redrive_core::records::{Change, Expect};
use redrive_core::transfer::{BEING_FILLED, Exported, Imported, Parcel, SEALED, Slot};
use redrive_core::{JobId, Records, StoreError, Transfer};

use super::{Flaw, Mutant};

impl Mutant {
    pub(super) async fn flawed_export(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Exported, StoreError> {
        let mut exported = self.store.export(after, limit).await?;
        for parcel in &mut exported.parcels {
            match self.flaw {
                Flaw::ExportDropsSteps => parcel.steps.clear(),
                Flaw::ExportDropsTaken => parcel.signals.retain(|signal| !signal.taken),
                _ => {}
            }
        }
        Ok(exported)
    }

    pub(super) async fn flawed_import(&self, mut parcels: Vec<Parcel>) -> Result<Vec<Imported>, StoreError> {
        for parcel in &mut parcels {
            match self.flaw {
                Flaw::ImportDropsUnique => parcel.unique = None,
                Flaw::ImportIgnoresKeys => (parcel.job.key, parcel.fingerprint) = (None, None),
                _ => {}
            }
        }
        let sealed = self.store.read(SEALED, BEING_FILLED).await?;
        match self.flaw {
            Flaw::ImportOverwrites => {
                self.import_under(Some(b"{}".to_vec()), sealed.map(|it| it.value), parcels).await
            }
            Flaw::ImportNeverReplaces => self.import_under(None, sealed.map(|it| it.value), parcels).await,
            _ => self.store.import(parcels).await,
        }
    }

    /// Imports as if the seal of a store that is filled were there, or not.
    async fn import_under(
        &self,
        pretended: Option<Vec<u8>>,
        actual: Option<Vec<u8>>,
        parcels: Vec<Parcel>,
    ) -> Result<Vec<Imported>, StoreError> {
        self.set_seal(pretended).await?;
        let answers = self.store.import(parcels).await?;
        self.set_seal(actual).await?;
        Ok(answers)
    }

    async fn set_seal(&self, value: Option<Vec<u8>>) -> Result<(), StoreError> {
        let (kind, id) = (SEALED.to_owned(), BEING_FILLED.to_owned());
        self.store.write(Change { kind, id, expect: Expect::Any, value }).await.map(drop)
    }

    pub(super) async fn flawed_export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<Slot>, StoreError> {
        let mut slots = self.store.export_records(after, limit).await?;
        if self.flaw == Flaw::RemovedRecordsLost {
            slots.retain(|slot| slot.value.is_some());
        }
        Ok(slots)
    }

    pub(super) async fn flawed_import_records(&self, slots: Vec<Slot>) -> Result<Vec<bool>, StoreError> {
        if self.flaw == Flaw::RecordsGoBack {
            self.store.step(|model, _| {
                slots.iter().for_each(|slot| model.forget_record(&slot.kind, &slot.id));
                Ok(())
            })?;
        }
        self.store.import_records(slots).await
    }
}
