//! Which jobs were moved, kept at the source: what has ended and gone at the target since must not come a second time.

use std::collections::HashSet;

use redrive_core::JobId;
use redrive_core::limits::RECORD_BYTES_MAX;
use redrive_core::records::Expect;
use redrive_core::transfer::Seal;
use uuid::Uuid;

use super::Move;
use super::copy::Pass;
use super::seal::put;
use crate::Error;

/// The kind of record, at the source, with ids of moved jobs, 16 bytes each; its id is the move's and a number.
pub(super) const MOVED: &str = "moved";

/// Ids in one record.
const IDS: usize = RECORD_BYTES_MAX / 16;

impl Move {
    /// Notes what a pass has moved.
    pub(super) async fn note_moved(&self, seal: &Seal, pass: &Pass) -> Result<(), Error> {
        let known = self.moved_ids(seal).await?;
        let (ids, number) = (pass.moved.iter().chain(&pass.ahead), known.records);
        self.add_moved(seal, number, ids.filter(|id| !known.ids.contains(id)).copied().collect()).await
    }

    /// Adds ids, in records from this number on.
    pub(super) async fn add_moved(&self, seal: &Seal, from: usize, ids: Vec<JobId>) -> Result<(), Error> {
        for (number, some) in ids.chunks(IDS).enumerate() {
            let value = some.iter().flat_map(|id| *id.0.as_bytes()).collect();
            let id = format!("{}.{:08}", seal.transfer, from + number);
            put(&*self.from.backend, MOVED, &id, Expect::Any, Some(value)).await?;
        }
        Ok(())
    }

    /// What was moved so far.
    pub(super) async fn moved_ids(&self, seal: &Seal) -> Result<MovedIds, Error> {
        let mut moved = MovedIds::default();
        let mut after = seal.transfer.to_string();
        loop {
            let page = self.from.backend.scan(MOVED, Some(&after), 50).await?;
            let own = page.iter().filter(|record| record.id.starts_with(&seal.transfer.to_string()));
            for record in own {
                moved.records += 1;
                moved.ids.extend(
                    record.value.chunks_exact(16).filter_map(|id| Uuid::from_slice(id).ok()).map(JobId),
                );
            }
            match page.last() {
                Some(last) => after = last.id.clone(),
                None => return Ok(moved),
            }
        }
    }
}

/// The ids of moved jobs, and how many records they are in.
#[derive(Default)]
pub(super) struct MovedIds {
    pub(super) ids: HashSet<JobId>,
    pub(super) records: usize,
}
