//! Copies records and promised unique keys.

use std::collections::BTreeMap;

use redrive_core::store::Backend;
use redrive_core::transfer::{SEALED, Slot};

use super::Move;
use super::moved_ids::MOVED;
use super::seal::MOVE;
use crate::Error;

/// Records in one batch.
const BATCH: usize = 100;
/// What a record of a policy's kind begins with.
const POLICY: &str = "policy";

/// What became of records.
#[derive(Default)]
pub(super) struct Copied {
    pub(super) written: u64,
    /// Those of the target that differ and stay.
    pub(super) kept: Vec<String>,
}

impl Move {
    /// Makes the target's records the same. In a store with jobs of its own what is there stays.
    pub(super) async fn copy_records(&self) -> Result<Copied, Error> {
        self.put_records(|theirs, ours| match ours {
            None => Some(theirs),
            Some(_) if self.merge => None,
            Some(ours) if ours.value == theirs.value && ours.version >= theirs.version => None,
            // Versions grow whichever store they came from.
            Some(ours) => Some(Slot { version: theirs.version.max(ours.version + 1), ..theirs }),
        })
        .await
    }

    /// Brings policies that the target has never had, for the jobs that need them.
    pub(super) async fn copy_new_policies(&self) -> Result<Copied, Error> {
        self.put_records(|theirs, ours| (ours.is_none() && theirs.kind.starts_with(POLICY)).then_some(theirs))
            .await
    }

    /// Writes those of the source's records that `choose` makes of them, beside what the target has.
    async fn put_records(
        &self,
        choose: impl Fn(Slot, Option<&Slot>) -> Option<Slot>,
    ) -> Result<Copied, Error> {
        let ours = all_slots(&*self.to.backend).await?;
        let mut copied = Copied::default();
        let mut chosen = Vec::new();
        for (place, theirs) in all_slots(&*self.from.backend).await? {
            let there = ours.get(&place);
            let differs = there.is_some_and(|ours| ours.value != theirs.value);
            match choose(theirs, there) {
                Some(slot) => chosen.push(slot),
                None if differs => copied.kept.push(format!("{}/{}", place.0, place.1)),
                None => {}
            }
        }
        for slots in chosen.chunks(BATCH) {
            let written = self.to.backend.import_records(slots.to_vec()).await?;
            copied.written += written.into_iter().filter(|written| *written).count() as u64;
        }
        Ok(copied)
    }

    /// How many records the source has, which all are at the target.
    pub(super) async fn records_there(&self) -> Result<u64, Error> {
        let slots = all_slots(&*self.from.backend).await?;
        Ok(slots.values().filter(|slot| slot.value.is_some()).count() as u64)
    }

    /// Brings unique keys that are promised beyond the end of their jobs.
    pub(super) async fn copy_promises(&self) -> Result<(), Error> {
        let mut after = None;
        loop {
            let promises = self.from.backend.export_promises(after, BATCH).await?;
            let Some(last) = promises.last() else { return Ok(()) };
            after = Some(last.job);
            self.to.backend.import_promises(promises).await?;
        }
    }
}

/// All records but those that moves keep about themselves, by kind and id.
async fn all_slots(backend: &dyn Backend) -> Result<BTreeMap<(String, String), Slot>, Error> {
    let mut slots = BTreeMap::new();
    let mut after: Option<(String, String)> = None;
    loop {
        let place = after.as_ref().map(|(kind, id)| (kind.as_str(), id.as_str()));
        let page = backend.export_records(place, BATCH).await?;
        let Some(last) = page.last() else { return Ok(slots) };
        after = Some((last.kind.clone(), last.id.clone()));
        let own = |slot: &Slot| [SEALED, MOVE, MOVED].contains(&slot.kind.as_str());
        slots.extend(
            page.into_iter()
                .filter(|slot| !own(slot))
                .map(|slot| ((slot.kind.clone(), slot.id.clone()), slot)),
        );
    }
}
