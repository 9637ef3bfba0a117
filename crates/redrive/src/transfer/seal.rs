//! Seals both stores, so that no job is claimed from either, and opens the target at the end.

use redrive_core::records::{Record, RecordValue, Records};
use redrive_core::transfer::{BEING_FILLED, MOVED_AWAY, Seal};
use redrive_core::{JobId, StoreError};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Store, StoreMove};
use crate::Error;

pub(super) const SAME_STORE: &str = "the source and the target are the same store; use two different ones";

/// What a run of a move has to do.
pub(super) enum MovePhase {
    /// Both stores are sealed, and jobs are to be copied.
    Copying(StartedMove),
    /// An earlier run has finished the move.
    Finished(Seal),
}

/// A move that has started.
pub(super) struct StartedMove {
    pub(super) seal: Seal,
    pub(super) cursor: Option<JobId>,
}

/// The progress of a move: a record in the target, whose id is the id of the move.
#[derive(Serialize, Deserialize)]
pub(super) struct MoveState {
    from: String,
    merge: bool,
    cursor: Option<Uuid>,
    done: bool,
}

impl RecordValue for MoveState {
    const KIND: &'static str = "move";
}

impl StoreMove {
    /// Seals both stores, or finds out how far an earlier run has come.
    pub(super) async fn begin(&self) -> Result<MovePhase, Error> {
        self.refuse_sealed_stores().await?;
        let seal = match self.from.seal(MOVED_AWAY).await? {
            Some(record) => record.value,
            None => self.seal_source().await?,
        };
        let known = self.state(&seal).await?;
        if known.is_none() && seal.other != self.to.address {
            return Err(Error::Move(format!(
                "{} was moved or is being moved to {}; use that target, or abandon that move with `redrive move --lift {}`",
                self.from.address, seal.other, self.from.address
            )));
        }
        if seal.done && known.is_none() {
            return Err(Error::Move(format!(
                "{} was moved to {}, which has no record of that move any more; to move it again, first lift its seal with \
                 `redrive move --lift {}`",
                self.from.address, seal.other, self.from.address
            )));
        }
        if seal.done {
            self.open_target(&seal).await?;
            return Ok(MovePhase::Finished(seal));
        }
        if known.as_ref().is_some_and(|known| known.merge && !self.merge) {
            return Err(Error::Move(
                "this move was started with --merge; add --merge to continue it".to_owned(),
            ));
        }
        self.seal_target(&seal, known.is_some()).await?;
        let cursor = known.and_then(|state| state.cursor).map(JobId);
        Ok(MovePhase::Copying(StartedMove { seal, cursor }))
    }

    /// Marks the source as moved, then opens the target. In the other order, a crash between the two would let jobs run in both
    /// stores.
    pub(super) async fn finish(&self, started: &StartedMove) -> Result<(), Error> {
        let done = Seal { done: true, ..started.seal.clone() };
        self.from.seals().put(MOVED_AWAY, &done).await?;
        self.open_target(&done).await
    }

    /// Records the last job that was copied.
    pub(super) async fn record_cursor(&self, seal: &Seal, cursor: Option<JobId>) -> Result<(), Error> {
        let cursor = cursor.map(|id| id.0);
        let state = MoveState { from: self.from.address.clone(), merge: self.merge, cursor, done: seal.done };
        Records::new(&*self.to.backend).put(&seal.transfer.to_string(), &state).await?;
        Ok(())
    }

    async fn refuse_sealed_stores(&self) -> Result<(), Error> {
        if let Some(record) = self.from.seal(BEING_FILLED).await? {
            return Err(Error::Move(format!(
                "{} is the target of a move from {}; finish that move first, or abandon it with `redrive move --lift {}`",
                self.from.address, record.value.other, self.from.address
            )));
        }
        let Some(Record { version, value: seal, .. }) = self.to.seal(MOVED_AWAY).await? else {
            return Ok(());
        };
        if self.from.seal(MOVED_AWAY).await?.is_some_and(|own| own.value.transfer == seal.transfer) {
            return self.refuse_same_store(version).await;
        }
        Err(Error::Move(format!(
            "{} was moved to {} and still has its old jobs; use an empty store as the target",
            self.to.address, seal.other
        )))
    }

    /// Removes the new seal of the source and fails, because the target has the same seal: both addresses name one store.
    async fn refuse_same_store(&self, seal_version: u64) -> Result<(), Error> {
        self.from.seals().remove_version(MOVED_AWAY, seal_version).await?;
        Err(Error::Move(SAME_STORE.to_owned()))
    }

    async fn seal_source(&self) -> Result<Seal, Error> {
        self.refuse_other_jobs().await?;
        let at = self.from.backend.stats().await?.now;
        let seal = Seal { transfer: Uuid::now_v7(), other: self.to.address.clone(), at, done: false };
        if self.from.seals().create(MOVED_AWAY, &seal).await?.is_none() {
            return Err(Error::Move(format!(
                "another move from {} has just started; wait until it has ended",
                self.from.address
            )));
        }
        if let Some(target_seal) = self.to.seal(MOVED_AWAY).await?
            && target_seal.value.transfer == seal.transfer
        {
            self.refuse_same_store(target_seal.version).await?;
        }
        Ok(seal)
    }

    async fn refuse_other_jobs(&self) -> Result<(), Error> {
        let jobs: u64 = self.to.backend.stats().await?.counts.values().sum();
        if jobs > 0 && !self.merge {
            return Err(Error::Move(format!(
                "{} already has {jobs} jobs; use an empty store, or add --merge to keep them",
                self.to.address
            )));
        }
        Ok(())
    }

    async fn seal_target(&self, seal: &Seal, known: bool) -> Result<(), Error> {
        match self.to.seal(BEING_FILLED).await? {
            Some(Record { value: other, .. }) if other.transfer != seal.transfer => {
                return Err(Error::Move(format!(
                    "{} is the target of a move from {}; finish that move first, or abandon it with `redrive move --lift {}`",
                    self.to.address, other.other, self.to.address
                )));
            }
            Some(_) => {}
            None => {
                if !known {
                    self.refuse_other_jobs().await?;
                }
                let filling = Seal { other: self.from.address.clone(), ..seal.clone() };
                self.to.seals().create(BEING_FILLED, &filling).await?;
            }
        }
        if known { Ok(()) } else { self.record_cursor(seal, None).await }
    }

    async fn open_target(&self, seal: &Seal) -> Result<(), Error> {
        if let Some(filling) = self.to.seal(BEING_FILLED).await?
            && filling.value.transfer == seal.transfer
        {
            self.record_cursor(seal, None).await?;
            self.to.seals().remove_version(BEING_FILLED, filling.version).await?;
        }
        Ok(())
    }

    async fn state(&self, seal: &Seal) -> Result<Option<MoveState>, Error> {
        match Records::new(&*self.to.backend).get(&seal.transfer.to_string()).await {
            Ok(record) => Ok(record.map(|record| record.value)),
            Err(StoreError::Corrupt(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Store {
    fn seals(&self) -> Records<'_, Seal> {
        Records::new(&*self.backend)
    }

    async fn seal(&self, id: &str) -> Result<Option<Record<Seal>>, Error> {
        self.seals().get(id).await.map_err(|error| match error {
            StoreError::Corrupt(_) => Error::Move(format!(
                "the seal of {} cannot be read; lift it with `redrive move --lift`",
                self.address
            )),
            other => other.into(),
        })
    }
}
