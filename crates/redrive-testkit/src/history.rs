//! The history of a store: what it answered, in order. The checks read it.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::{Clock, JobId, Lease, PolicyRef, State, Timestamp, WorkerId};
use serde::{Deserialize, Serialize};

use crate::clock::START;

/// One event that a store confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HistoryEvent {
    /// An enqueue was acknowledged, for a new job or an existing one.
    Acknowledged(JobId),
    /// A worker got a lease.
    Leased(GrantedLease),
    /// A handler began its work under a lease.
    Started(Lease),
    /// A settlement took effect.
    Settled(SettledAttempt),
    /// A settlement was rejected because the lease was lost.
    LeaseLost(Lease),
    /// A job that was not running was cancelled.
    Cancelled(JobId),
    /// A cancel of a running job was requested.
    CancelRequested(JobId),
    /// A dead job got a new run.
    Redriven(JobId),
    /// A dead job was discarded.
    Discarded(JobId),
    /// This number of ended jobs was pruned.
    Pruned(usize),
}

impl HistoryEvent {
    /// The job of the event, if it has a single one.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::Acknowledged(id)
            | Self::Cancelled(id)
            | Self::CancelRequested(id)
            | Self::Redriven(id)
            | Self::Discarded(id) => Some(*id),
            Self::Leased(leased) => Some(leased.lease.id),
            Self::Settled(settlement) => Some(settlement.lease.id),
            Self::Started(lease) | Self::LeaseLost(lease) => Some(lease.id),
            Self::Pruned(_) => None,
        }
    }
}

/// A lease that a worker got.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GrantedLease {
    /// The lease.
    pub lease: Lease,
    /// The call that granted it.
    pub source: LeaseSource,
    /// The worker of the attempt; after a reclaim, the worker that lost the lease.
    pub worker: Option<WorkerId>,
    /// The number of the run.
    pub run: u32,
    /// The number of the attempt.
    pub attempt: u32,
    /// The policy that limits the attempts.
    pub policy: PolicyRef,
}

/// The call that granted a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LeaseSource {
    /// A claim, which charges an attempt.
    Claim,
    /// A reclaim, which charges none.
    Reclaim,
}

/// A settlement that took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SettledAttempt {
    /// The lease under which it was settled.
    pub lease: Lease,
    /// The state it led to.
    pub led_to: State,
    /// Refunded attempts.
    pub refund: u32,
    /// Whether the settlement had a log entry.
    pub logged: bool,
}

/// All events, each with its time. Clones share them.
#[derive(Debug, Clone)]
pub struct History {
    events: Arc<Mutex<Vec<(Timestamp, HistoryEvent)>>>,
    clock: Arc<dyn Clock>,
    journal: Option<Arc<File>>,
}

impl History {
    /// An empty history that takes its times from `clock`.
    pub fn new(clock: impl Clock + 'static) -> Self {
        Self { events: Arc::default(), clock: Arc::new(clock), journal: None }
    }

    /// A history that continues in a file, one line for each event, so that it survives the end of its process.
    pub fn with_journal(path: &Path, clock: impl Clock + 'static) -> std::io::Result<Self> {
        let mut history = Self::new(clock);
        *history.events.lock().unwrap_or_else(PoisonError::into_inner) = read_journal(path)?;
        let mut journal = File::options().create(true).append(true).open(path)?;
        // If the last process was killed in the middle of a line, the next event must start a new one.
        journal.write_all(b"\n")?;
        history.journal = Some(Arc::new(journal));
        Ok(history)
    }

    /// The histories of several processes, each from a file of its own, merged by time.
    pub fn merge_journals(paths: &[PathBuf], clock: impl Clock + 'static) -> std::io::Result<Self> {
        let history = Self::new(clock);
        let mut all = history.events.lock().unwrap_or_else(PoisonError::into_inner);
        for path in paths {
            all.extend(read_journal(path)?);
        }
        all.sort_by_key(|(at, _)| *at);
        drop(all);
        Ok(history)
    }

    /// Adds an event with the current time.
    pub fn add(&self, event: HistoryEvent) {
        let now = self.clock.now();
        if let Some(journal) = &self.journal {
            let mut line = serde_json::to_string(&(now, &event)).expect("an event is plain data");
            line.push('\n');
            (&**journal).write_all(line.as_bytes()).expect("the journal can be written");
        }
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push((now, event));
    }

    /// All events so far.
    pub fn all(&self) -> Vec<(Timestamp, HistoryEvent)> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The events of one job, for a person to read.
    pub fn describe_job(&self, id: JobId) -> Vec<String> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let about = events.iter().filter(|(_, event)| event.job() == Some(id));
        about.map(|(at, event)| format!("{} ms: {event:?}", at.as_ms() - START.as_ms())).collect()
    }

    /// A hash. Two histories with the same hash have the same events at the same times.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.events.lock().unwrap_or_else(PoisonError::into_inner).hash(&mut hasher);
        hasher.finish()
    }
}

fn read_journal(path: &Path) -> std::io::Result<Vec<(Timestamp, HistoryEvent)>> {
    let text = if path.exists() { std::fs::read_to_string(path)? } else { String::new() };
    // A process that was killed while it wrote a line had acknowledged nothing yet, so the incomplete line is skipped.
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use crate::clock::ManualClock;

    use super::*;

    #[test]
    fn an_incomplete_line_does_not_affect_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let jobs: Vec<JobId> = (1..=3).map(|id| JobId(uuid::Uuid::from_u128(id))).collect();
        for (nth, id) in jobs.iter().enumerate() {
            let history = History::with_journal(&path, ManualClock::default()).expect("the journal opens");
            history.add(HistoryEvent::Acknowledged(*id));
            if nth == 1 {
                let length = std::fs::metadata(&path).expect("the journal exists").len();
                File::options()
                    .write(true)
                    .open(&path)
                    .expect("the journal opens")
                    .set_len(length - 7)
                    .expect("the journal can be truncated");
            }
        }
        let events: Vec<_> = read_journal(&path)
            .expect("the journal can be read")
            .into_iter()
            .map(|(_, event)| event)
            .collect();
        assert_eq!(events, [HistoryEvent::Acknowledged(jobs[0]), HistoryEvent::Acknowledged(jobs[2])]);
    }
}
