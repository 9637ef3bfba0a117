//! Moves everything from one store to another: seals both, waits for what runs, copies, verifies, opens the target.
//!
//! Cut off at any moment and run again it goes on: imports are idempotent, and which phase it was in is in the seals. The
//! source is marked as done before the target opens, so that no job can run at both.

mod copy;
mod drain;
mod moved_ids;
mod progress;
mod records;
mod seal;
mod stragglers;
mod verify;

use std::sync::Arc;

use redrive_core::records::{Change, Expect};
use redrive_core::store::Backend;
use redrive_core::transfer::{SEALED, Seal};

use crate::{Error, Redrive, shown};
use copy::Pass;
use seal::Begun;

pub use progress::{LeftBehind, Moved, Progress};

/// How often everything is gone through before whoever still writes to the source is named.
const PASSES_MAX: u32 = 20;

/// A move of everything from one store to another.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let address = |name| format!("sqlite:{}", folder.path().join(name).display());
/// let (from, to) = (address("old.db"), address("new.db"));
/// # redrive::migrate(&from).await?;
/// let moved = redrive::Move::open(&from, &to).await?.run(|_| {}).await?;
/// assert!(moved.left_behind.is_empty());
/// # Ok(()) }
/// ```
pub struct Move {
    from: Store,
    to: Store,
    merge: bool,
    leave_behind: bool,
}

/// A store and how it is called.
struct Store {
    backend: Arc<dyn Backend>,
    /// Its address without a password.
    shown: String,
}

impl Move {
    /// Opens both stores. The same address twice is refused.
    pub async fn open(from: &str, to: &str) -> Result<Self, Error> {
        if shown(from) == shown(to) {
            return Err(Error::Move(seal::SAME_STORE.to_owned()));
        }
        let store = async |address: &str| {
            let backend = Redrive::open(address).await?.backend().clone();
            Ok::<_, Error>(Store { backend, shown: shown(address) })
        };
        Ok(Self { from: store(from).await?, to: store(to).await?, merge: false, leave_behind: false })
    }

    /// Moves into a store that has other jobs already; what is there stays, records too.
    pub fn merge(self) -> Self {
        Self { merge: true, ..self }
    }

    /// Ends although some rows cannot be moved: they stay at the source.
    pub fn leave_behind(self) -> Self {
        Self { leave_behind: true, ..self }
    }

    /// Moves everything, or goes on where an earlier run was cut off; after one that ended it brings what was enqueued at
    /// the source since. `tell` hears how far it has come.
    pub async fn run(&self, mut tell: impl FnMut(&Progress)) -> Result<Moved, Error> {
        match self.begin().await? {
            Begun::Done(seal) => self.bring_stragglers(&seal, &mut tell).await,
            Begun::Open(begun) => {
                let pass = self.copy_until_settled(&begun, &mut tell).await?;
                let moved = self.verify(&pass).await?;
                self.note_moved(&begun.seal, &pass).await?;
                self.finish(&begun).await?;
                Ok(moved)
            }
        }
    }

    /// Goes through everything until the last time has changed nothing.
    async fn copy_until_settled(
        &self,
        begun: &seal::Open,
        tell: &mut dyn FnMut(&Progress),
    ) -> Result<Pass, Error> {
        let mut after = begun.cursor;
        for pass in 0..PASSES_MAX {
            self.drain(tell).await?;
            self.copy_records().await?;
            let whole = after.is_none() && pass > 0;
            let copied = self.copy(after.take(), begun, whole, tell).await?;
            if whole && copied.is_settled() {
                self.copy_records().await?;
                self.copy_promises().await?;
                return Ok(copied);
            }
        }
        Err(Error::Move(format!(
            "jobs of {} change faster than they are copied; stop who cancels, redrives or signals there, then run it again",
            self.from.shown
        )))
    }
}

/// Lifts the seals of a store, so that jobs are claimed from it again; says which there were.
///
/// Jobs that were moved then run here and at the target: it is for a move that was given up.
pub async fn lift(address: &str) -> Result<Vec<String>, Error> {
    let backend = Redrive::open(address).await?.backend().clone();
    let mut lifted = Vec::new();
    for seal in backend.scan(SEALED, None, 100).await? {
        let found = Seal::finding(&seal.id, &seal.value);
        let (kind, expect) = (SEALED.to_owned(), Expect::Version(seal.version));
        backend.write(Change { kind, id: seal.id, expect, value: None }).await?;
        lifted.push(found.what);
    }
    Ok(lifted)
}
