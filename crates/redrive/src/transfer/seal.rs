//! Seals both stores, so that nothing is claimed from either, and opens the target in the end.

use redrive_core::JobId;
use redrive_core::records::{Change, Expect, Record, Written};
use redrive_core::store::Backend;
use redrive_core::transfer::{BEING_FILLED, MOVED_AWAY, SEALED, Seal};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Move, Store};
use crate::Error;

/// The kind of record, in the target, that says how far a move has come; its id is the move's.
pub(super) const MOVE: &str = "move";

pub(super) const SAME_STORE: &str = "the source and the target are the same store; name another one";

/// Where a move goes on.
pub(super) enum Begun {
    /// Both are sealed: copy.
    Open(Open),
    /// It has ended before.
    Done(Seal),
}

/// A move under way.
pub(super) struct Open {
    pub(super) seal: Seal,
    pub(super) cursor: Option<JobId>,
}

/// How far a move has come.
#[derive(Serialize, Deserialize)]
struct State {
    from: String,
    merge: bool,
    cursor: Option<Uuid>,
    done: bool,
}

impl Move {
    /// Seals both stores, or finds what an earlier run has come to.
    pub(super) async fn begin(&self) -> Result<Begun, Error> {
        self.refuse_half_stores().await?;
        let seal = match self.from.seal(MOVED_AWAY).await? {
            Some((_, seal)) => seal,
            None => self.seal_source().await?,
        };
        let known = self.state(&seal).await?;
        if known.is_none() && seal.other != self.to.shown {
            return Err(Error::Move(format!(
                "{} was or is being moved to {}; name that target, or give that move up with `redrive move --lift {}`",
                self.from.shown, seal.other, self.from.shown
            )));
        }
        if seal.done && known.is_none() {
            return Err(Error::Move(format!(
                "{} was moved to {}, which knows nothing of it any more; to move it anew, lift its seal first with \
                 `redrive move --lift {}`",
                self.from.shown, seal.other, self.from.shown
            )));
        }
        if seal.done {
            self.open_target(&seal).await?;
            return Ok(Begun::Done(seal));
        }
        if known.as_ref().is_some_and(|known| known.merge && !self.merge) {
            return Err(Error::Move("this move was begun with --merge; add it again to go on".to_owned()));
        }
        self.seal_target(&seal, known.is_some()).await?;
        let cursor = known.and_then(|state| state.cursor).map(JobId);
        Ok(Begun::Open(Open { seal, cursor }))
    }

    /// Marks the source as moved, then opens the target: the other way round a crash between the two would let jobs run at
    /// both.
    pub(super) async fn finish(&self, begun: &Open) -> Result<(), Error> {
        let done = Seal { done: true, ..begun.seal.clone() };
        put(&*self.from.backend, SEALED, MOVED_AWAY, Expect::Any, Some(done.write())).await?;
        self.open_target(&done).await
    }

    /// Notes how far the jobs are copied.
    pub(super) async fn note(&self, seal: &Seal, cursor: Option<JobId>) -> Result<(), Error> {
        let cursor = cursor.map(|id| id.0);
        let state = State { from: self.from.shown.clone(), merge: self.merge, cursor, done: seal.done };
        let value = serde_json::to_vec(&state).unwrap_or_default();
        put(&*self.to.backend, MOVE, &seal.transfer.to_string(), Expect::Any, Some(value)).await.map(drop)
    }

    async fn refuse_half_stores(&self) -> Result<(), Error> {
        if let Some((_, seal)) = self.from.seal(BEING_FILLED).await? {
            return Err(Error::Move(format!(
                "{} is itself being filled from {}; let that move end first, or give it up with `redrive move --lift {}`",
                self.from.shown, seal.other, self.from.shown
            )));
        }
        let Some((record, seal)) = self.to.seal(MOVED_AWAY).await? else { return Ok(()) };
        if self.from.seal(MOVED_AWAY).await?.is_some_and(|(_, own)| own.transfer == seal.transfer) {
            return self.refuse_same_store(&record).await;
        }
        Err(Error::Move(format!(
            "{} was itself moved to {} and still has its old jobs; move to an empty store instead",
            self.to.shown, seal.other
        )))
    }

    /// The same store by two addresses shows its new seal at both.
    async fn refuse_same_store(&self, seal: &Record) -> Result<(), Error> {
        put(&*self.from.backend, SEALED, MOVED_AWAY, Expect::Version(seal.version), None).await?;
        Err(Error::Move(SAME_STORE.to_owned()))
    }

    async fn seal_source(&self) -> Result<Seal, Error> {
        self.refuse_other_jobs().await?;
        let at = self.from.backend.stats().await?.now;
        let seal = Seal { transfer: Uuid::now_v7(), other: self.to.shown.clone(), at, done: false };
        let from = &*self.from.backend;
        if put(from, SEALED, MOVED_AWAY, Expect::Absent, Some(seal.write())).await?.is_none() {
            return Err(Error::Move(format!("another move from {} has just begun", self.from.shown)));
        }
        if let Some((record, there)) = self.to.seal(MOVED_AWAY).await?
            && there.transfer == seal.transfer
        {
            self.refuse_same_store(&record).await?;
        }
        Ok(seal)
    }

    async fn refuse_other_jobs(&self) -> Result<(), Error> {
        let jobs: u64 = self.to.backend.stats().await?.counts.values().sum();
        if jobs > 0 && !self.merge {
            return Err(Error::Move(format!(
                "{} has {jobs} jobs already; move to an empty store, or add --merge to keep what is there",
                self.to.shown
            )));
        }
        Ok(())
    }

    async fn seal_target(&self, seal: &Seal, known: bool) -> Result<(), Error> {
        match self.to.seal(BEING_FILLED).await? {
            Some((_, other)) if other.transfer != seal.transfer => {
                return Err(Error::Move(format!(
                    "{} is being filled from {}; let that move end first, or give it up with `redrive move --lift {}`",
                    self.to.shown, other.other, self.to.shown
                )));
            }
            Some(_) => {}
            None => {
                if !known {
                    self.refuse_other_jobs().await?;
                }
                let filling = Seal { other: self.from.shown.clone(), ..seal.clone() };
                put(&*self.to.backend, SEALED, BEING_FILLED, Expect::Absent, Some(filling.write())).await?;
            }
        }
        if known { Ok(()) } else { self.note(seal, None).await }
    }

    async fn open_target(&self, seal: &Seal) -> Result<(), Error> {
        if let Some((record, filling)) = self.to.seal(BEING_FILLED).await?
            && filling.transfer == seal.transfer
        {
            self.note(seal, None).await?;
            put(&*self.to.backend, SEALED, BEING_FILLED, Expect::Version(record.version), None).await?;
        }
        Ok(())
    }

    async fn state(&self, seal: &Seal) -> Result<Option<State>, Error> {
        let record = self.to.backend.read(MOVE, &seal.transfer.to_string()).await?;
        Ok(record.and_then(|record| serde_json::from_slice(&record.value).ok()))
    }
}

impl Store {
    async fn seal(&self, id: &str) -> Result<Option<(Record, Seal)>, Error> {
        let Some(record) = self.backend.read(SEALED, id).await? else { return Ok(None) };
        let unknown = || {
            Error::Move(format!(
                "the seal of {} cannot be read; lift it with `redrive move --lift`",
                self.shown
            ))
        };
        let seal = Seal::read(&record.value).ok_or_else(unknown)?;
        Ok(Some((record, seal)))
    }
}

/// Writes a record; none if something else was there.
pub(super) async fn put(
    backend: &dyn Backend,
    kind: &str,
    id: &str,
    expect: Expect,
    value: Option<Vec<u8>>,
) -> Result<Option<u64>, Error> {
    let change = Change { kind: kind.to_owned(), id: id.to_owned(), expect, value };
    Ok(match backend.write(change).await? {
        Written::Done(version) => Some(version),
        Written::Conflict(_) => None,
    })
}
