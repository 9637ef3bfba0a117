//! Moves all jobs and records from one store to another: seals both, waits for running jobs, copies, verifies, opens the target.
//!
//! A move that was interrupted at any point can be run again and continues: imports are idempotent, and the seals say how far it
//! has come. The source is marked as moved before the target opens, so no job can run in both stores.

mod copy;
mod late_jobs;
mod progress;
mod records;
mod seal;

use std::sync::Arc;
use std::time::Duration;

use redrive_core::State;
use redrive_core::records::Records;
use redrive_core::store::{Backend, Filter, PageRequest};
use redrive_core::transfer::{SEALED, Seal};

use crate::{Error, Redrive, mask_password};
use copy::CopyPass;
use seal::{MovePhase, StartedMove};

pub use progress::{MoveProgress, MoveResult, UnmovedJob};

/// Passes over all jobs before the move fails because the source keeps changing.
const PASSES_MAX: u32 = 20;
/// Time between two reads of the running jobs.
const DRAIN_POLL: Duration = Duration::from_millis(500);

/// A move of all jobs and records from one store to another.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let address = |name| format!("sqlite:{}", folder.path().join(name).display());
/// let (from, to) = (address("old.db"), address("new.db"));
/// # redrive::migrate(&from).await?;
/// let moved = redrive::StoreMove::open(&from, &to).await?.run(|_| {}).await?;
/// assert!(moved.left_behind.is_empty());
/// # Ok(()) }
/// ```
pub struct StoreMove {
    from: Store,
    to: Store,
    merge: bool,
    leave_behind: bool,
}

/// One of the two stores.
struct Store {
    backend: Arc<dyn Backend>,
    /// Its address without the password.
    address: String,
}

impl StoreMove {
    /// Opens both stores. Fails if both addresses are the same.
    pub async fn open(from: &str, to: &str) -> Result<Self, Error> {
        if mask_password(from) == mask_password(to) {
            return Err(Error::Move(seal::SAME_STORE.to_owned()));
        }
        let store = async |address: &str| {
            let backend = Redrive::open(address).await?.backend().clone();
            Ok::<_, Error>(Store { backend, address: mask_password(address) })
        };
        Ok(Self { from: store(from).await?, to: store(to).await?, merge: false, leave_behind: false })
    }

    /// Allows a target that already has jobs. Its jobs and records stay.
    pub fn merge(self) -> Self {
        Self { merge: true, ..self }
    }

    /// Finishes the move even if some jobs cannot be moved. They stay at the source.
    pub fn leave_behind(self) -> Self {
        Self { leave_behind: true, ..self }
    }

    /// Runs the move, or continues one that was interrupted. After a finished move it moves the jobs that were enqueued at the
    /// source since. Calls `on_progress` from time to time.
    pub async fn run(&self, mut on_progress: impl FnMut(&MoveProgress)) -> Result<MoveResult, Error> {
        match self.begin().await? {
            MovePhase::Finished(seal) => self.move_late_jobs(&seal, &mut on_progress).await,
            MovePhase::Copying(started) => {
                let pass = self.copy_until_unchanged(&started, &mut on_progress).await?;
                let moved = self.verify(&pass).await?;
                self.record_moved(&started.seal, &pass).await?;
                self.finish(&started).await?;
                Ok(moved)
            }
        }
    }

    /// Copies all jobs again and again until a pass has found no change.
    async fn copy_until_unchanged(
        &self,
        started: &StartedMove,
        on_progress: &mut dyn FnMut(&MoveProgress),
    ) -> Result<CopyPass, Error> {
        let mut after = started.cursor;
        for pass in 0..PASSES_MAX {
            self.drain(on_progress).await?;
            self.copy_records().await?;
            let verifies = after.is_none() && pass > 0;
            let copied = self.copy(after.take(), started, verifies, on_progress).await?;
            if verifies && copied.is_unchanged() {
                self.copy_records().await?;
                self.copy_reserved_keys().await?;
                return Ok(copied);
            }
        }
        Err(Error::Move(format!(
            "the jobs of {} change faster than they are copied; stop the programs that cancel, redrive or signal jobs there, \
             then run the same command again",
            self.from.address
        )))
    }
}

impl StoreMove {
    /// Waits until no job of the source has a valid lease: running jobs have ended, or their leases have expired.
    async fn drain(&self, on_progress: &mut dyn FnMut(&MoveProgress)) -> Result<(), Error> {
        loop {
            match self.running_jobs().await? {
                None => return Ok(()),
                Some(waiting) => on_progress(&waiting),
            }
            tokio::time::sleep(DRAIN_POLL).await;
        }
    }

    async fn running_jobs(&self) -> Result<Option<MoveProgress>, Error> {
        let from = &self.from.backend;
        let now = from.stats().await?.now;
        let filter = Filter { states: vec![State::Running], ..Filter::default() };
        let (mut running, mut last, mut page) = (0, None, PageRequest::first(1000));
        loop {
            let found = from.list(filter.clone(), page).await?;
            let ends = found.items.iter().filter_map(|job| job.lease_until).filter(|until| *until > now);
            for end in ends {
                running += 1;
                last = last.max(Some(end));
            }
            match found.next {
                Some(next) => page = PageRequest { after: Some(next), ..page },
                None => break,
            }
        }
        Ok((running > 0).then_some(MoveProgress::Waiting { running, until: last, now }))
    }
}

impl StoreMove {
    /// Compares the counts of the target with the jobs that the last pass found equal. Returns what was moved.
    async fn verify(&self, pass: &CopyPass) -> Result<MoveResult, Error> {
        self.refuse_unmoved_jobs(pass)?;
        let target = self.to.backend.stats().await?.counts;
        for ((queue, state), count) in &pass.counts {
            let counted = target.get(&(queue.clone(), *state)).copied().unwrap_or(0);
            // The target may have more, because it may have had jobs before and accepts new ones.
            if counted < *count && !self.merge {
                return Err(Error::Move(format!(
                    "{} has {counted} {state} jobs in queue {queue} but the source has {count}; the target stays closed: run the \
                     same command again, and report this if it happens again",
                    self.to.address
                )));
            }
        }
        let records = self.copy_records().await?;
        Ok(MoveResult {
            repeated: false,
            jobs: pass.moved.len() as u64,
            counts: pass.counts.clone(),
            records: self.count_records().await?,
            records_kept: records.kept,
            ahead: pass.ahead.clone(),
            left_behind: pass.left_behind.clone(),
        })
    }

    fn refuse_unmoved_jobs(&self, pass: &CopyPass) -> Result<(), Error> {
        let Some(first) = pass.left_behind.first().filter(|_| !self.leave_behind) else { return Ok(()) };
        let listed = pass.left_behind.iter().take(5).map(|job| format!("job {} {}", job.id, job.why));
        Err(Error::Move(format!(
            "{} jobs cannot be moved: {}; repair job {} and the others, or add --leave-behind to open the target without \
             them; everything else is copied",
            pass.left_behind.len(),
            listed.collect::<Vec<_>>().join("; "),
            first.id
        )))
    }
}

/// Lifts the seals of a store, so that its jobs can be claimed again. Returns a description of each seal.
///
/// Use it only to abandon a move: jobs that were moved already would run in both stores.
pub async fn lift_seals(address: &str) -> Result<Vec<String>, Error> {
    let backend = Redrive::open(address).await?.backend().clone();
    let mut lifted = Vec::new();
    // Reads bytes, because a damaged seal must be lifted too.
    for seal in backend.scan(SEALED, None, 100).await? {
        Records::<Seal>::new(&*backend).remove_version(&seal.id, seal.version).await?;
        lifted.push(Seal::finding(&seal.id, &seal.value).what);
    }
    Ok(lifted)
}
