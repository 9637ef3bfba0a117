//! What a store answered, in order: the evidence that the checks look at.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::{Clock, JobId, Lease, PolicyRef, State, Timestamp, WorkerId};
use serde::{Deserialize, Serialize};

use crate::clock::START;

/// One thing that a store said has happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Happening {
    /// An enqueue was acknowledged: the job is new, or was there before.
    Acknowledged(JobId),
    /// A worker was given a lease.
    Leased(Leased),
    /// A handler began its work under a lease.
    Started(Lease),
    /// A settlement took effect.
    Settled(Settlement),
    /// A settlement was refused, since the lease was lost.
    ShutOut(Lease),
    /// A job that was not running was cancelled.
    Cancelled(JobId),
    /// The end of a running job was asked for.
    CancelRequested(JobId),
    /// A dead job was given a fresh run.
    Redriven(JobId),
    /// A dead job was removed.
    Discarded(JobId),
    /// So many ended jobs were removed.
    Pruned(usize),
}

impl Happening {
    /// The job it is about, if it is about one.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::Acknowledged(id)
            | Self::Cancelled(id)
            | Self::CancelRequested(id)
            | Self::Redriven(id)
            | Self::Discarded(id) => Some(*id),
            Self::Leased(leased) => Some(leased.lease.id),
            Self::Settled(settlement) => Some(settlement.lease.id),
            Self::Started(lease) | Self::ShutOut(lease) => Some(lease.id),
            Self::Pruned(_) => None,
        }
    }
}

/// A lease as it was handed out.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leased {
    /// The lease.
    pub lease: Lease,
    /// By which verb.
    pub by: By,
    /// Whose attempt it is: after a reclaim that of the worker that was lost.
    pub worker: Option<WorkerId>,
    /// The run.
    pub run: u32,
    /// The attempt, as charged.
    pub attempt: u32,
    /// The policy that bounds the attempts.
    pub policy: PolicyRef,
}

/// How a lease came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum By {
    /// By a claim, which charges an attempt.
    Claim,
    /// By a reclaim, which does not.
    Reclaim,
}

/// A settlement that took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Settlement {
    /// Under which lease.
    pub lease: Lease,
    /// The state it led to.
    pub led_to: State,
    /// Attempts given back.
    pub refund: u32,
    /// Whether it came with a log entry.
    pub logged: bool,
}

/// Everything that has happened, with the time of each. Clones share it.
#[derive(Debug, Clone)]
pub struct History {
    happenings: Arc<Mutex<Vec<(Timestamp, Happening)>>>,
    clock: Arc<dyn Clock>,
    journal: Option<Arc<File>>,
}

impl History {
    /// An empty history whose times are `clock`'s.
    pub fn new(clock: impl Clock + 'static) -> Self {
        Self { happenings: Arc::default(), clock: Arc::new(clock), journal: None }
    }

    /// A history that goes on in a file, a line for each happening, so that it survives the death of its process.
    pub fn journalled(path: &Path, clock: impl Clock + 'static) -> std::io::Result<Self> {
        let mut history = Self::new(clock);
        *history.happenings.lock().unwrap_or_else(PoisonError::into_inner) = read_journal(path)?;
        let mut journal = File::options().create(true).append(true).open(path)?;
        // A process that was killed in the middle of a line does not spoil the next one's first.
        journal.write_all(b"\n")?;
        history.journal = Some(Arc::new(journal));
        Ok(history)
    }

    /// What several processes have written down, each in a file of its own, in the order of their times.
    pub fn merged(paths: &[PathBuf], clock: impl Clock + 'static) -> std::io::Result<Self> {
        let history = Self::new(clock);
        let mut all = history.happenings.lock().unwrap_or_else(PoisonError::into_inner);
        for path in paths {
            all.extend(read_journal(path)?);
        }
        all.sort_by_key(|(at, _)| *at);
        drop(all);
        Ok(history)
    }

    /// Adds what has just happened.
    pub fn add(&self, happening: Happening) {
        let now = self.clock.now();
        if let Some(journal) = &self.journal {
            let mut line = serde_json::to_string(&(now, &happening)).expect("a happening is plain data");
            line.push('\n');
            (&**journal).write_all(line.as_bytes()).expect("the journal can be written");
        }
        self.happenings.lock().unwrap_or_else(PoisonError::into_inner).push((now, happening));
    }

    /// Everything so far.
    pub fn all(&self) -> Vec<(Timestamp, Happening)> {
        self.happenings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What happened to one job, for a person to read.
    pub fn of_job(&self, id: JobId) -> Vec<String> {
        let happenings = self.happenings.lock().unwrap_or_else(PoisonError::into_inner);
        let about = happenings.iter().filter(|(_, happening)| happening.job() == Some(id));
        about.map(|(at, happening)| format!("{} ms: {happening:?}", at.as_ms() - START.as_ms())).collect()
    }

    /// A number that two histories share only if they are alike in every happening and every time.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.happenings.lock().unwrap_or_else(PoisonError::into_inner).hash(&mut hasher);
        hasher.finish()
    }
}

fn read_journal(path: &Path) -> std::io::Result<Vec<(Timestamp, Happening)>> {
    let text = if path.exists() { std::fs::read_to_string(path)? } else { String::new() };
    // A line that was cut off says nothing that anyone was told: its process was killed in the middle of it.
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use crate::clock::ManualClock;

    use super::*;

    #[test]
    fn a_line_that_was_cut_off_spoils_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let jobs: Vec<JobId> = (1..=3).map(|id| JobId(uuid::Uuid::from_u128(id))).collect();
        for (nth, id) in jobs.iter().enumerate() {
            let history = History::journalled(&path, ManualClock::default()).expect("the journal opens");
            history.add(Happening::Acknowledged(*id));
            if nth == 1 {
                let length = std::fs::metadata(&path).expect("it is there").len();
                File::options().write(true).open(&path).expect("opens").set_len(length - 7).expect("is cut");
            }
        }
        let told: Vec<_> =
            read_journal(&path).expect("it can be read").into_iter().map(|(_, what)| what).collect();
        assert_eq!(told, [Happening::Acknowledged(jobs[0]), Happening::Acknowledged(jobs[2])]);
    }
}
