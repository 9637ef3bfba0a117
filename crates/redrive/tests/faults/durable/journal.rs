//! The journal of the handlers: one line for each event, so that it survives the kill of the process.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use redrive::JobId;
use serde::{Deserialize, Serialize};

/// An event of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum JobEvent {
    /// A step has started, under the lease of this epoch.
    StepStarted(JobId, u64, String),
    /// A step has returned, under the lease of this epoch. Its result is stored.
    StepStored(JobId, u64, String),
    /// A sleep has ended, at this time by the store's clock.
    SleepEnded(JobId, i64),
    /// A signal was taken.
    SignalTaken(JobId, u64),
    /// A fan-out has returned these results.
    FanOutReturned(JobId, Vec<u32>),
    /// A job with a unique key, with limits or in order has started.
    JobStarted(JobId),
    /// The schedule's occurrence ran as this job.
    OccurrenceRan(i64, JobId),
    /// A cancel has returned [`redrive::CancelResult::Done`].
    Cancelled(JobId),
    /// This number of jobs of the queue with limits ran at once.
    RunningAtOnce(u64),
}

/// A file with events. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Journal(Arc<File>);

impl Journal {
    pub(crate) fn open(path: &Path) -> Self {
        let mut file = File::options().create(true).append(true).open(path).expect("the journal opens");
        // Starts a new line, in case an earlier process was killed in the middle of one.
        file.write_all(b"\n").expect("the journal can be written");
        Self(Arc::new(file))
    }

    pub(crate) fn add(&self, event: JobEvent) {
        let mut line = serde_json::to_vec(&(now_ms(), event)).expect("an event is plain data");
        line.push(b'\n');
        (&*self.0).write_all(&line).expect("the journal can be written");
    }
}

/// Reads the events of all journals in a folder, oldest first.
pub(crate) fn read(folder: &Path) -> Vec<(i64, JobEvent)> {
    let entries = std::fs::read_dir(folder).expect("the folder exists").flatten();
    let paths =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "events"));
    let mut events = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(path).expect("the journal can be read");
        events.extend(text.lines().filter_map(|line| serde_json::from_str(line).ok()));
    }
    events.sort_by_key(|(at, _): &(i64, JobEvent)| *at);
    events
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}
