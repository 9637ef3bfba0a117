//! What handlers saw and did, line by line, so that it survives the death of their process.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use redrive::JobId;
use serde::{Deserialize, Serialize};

/// Something that happened to a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// The body of a step began, under the lease of this epoch.
    Ran(JobId, u64, String),
    /// A step has returned under the lease of this epoch: it is remembered.
    Kept(JobId, u64, String),
    /// A sleep has ended, at this time of the store.
    Woke(JobId, i64),
    /// A signal was taken.
    Took(JobId, u64),
    /// A fan-out has given these results.
    Joined(JobId, Vec<u32>),
    /// A job of a bounded queue or key began.
    Began(JobId),
    /// The schedule's occurrence ran as this job.
    Ticked(i64, JobId),
    /// A cancel was answered as done.
    Cancelled(JobId),
    /// So many jobs of the bounded queue ran at once.
    Crowd(u64),
}

/// A file with notes. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Journal(Arc<File>);

impl Journal {
    pub(crate) fn open(path: &Path) -> Self {
        let mut file = File::options().create(true).append(true).open(path).expect("the journal opens");
        // A process that was killed in the middle of a line does not spoil the next one's first.
        file.write_all(b"\n").expect("the journal can be written");
        Self(Arc::new(file))
    }

    pub(crate) fn note(&self, note: Note) {
        let mut line = serde_json::to_vec(&(now_ms(), note)).expect("a note is plain data");
        line.push(b'\n');
        (&*self.0).write_all(&line).expect("the journal can be written");
    }
}

/// The notes in files, in the order of their times.
pub(crate) fn read(folder: &Path) -> Vec<(i64, Note)> {
    let entries = std::fs::read_dir(folder).expect("the folder is there").flatten();
    let paths =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "notes"));
    let mut notes = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(path).expect("the journal can be read");
        notes.extend(text.lines().filter_map(|line| serde_json::from_str(line).ok()));
    }
    notes.sort_by_key(|(at, _): &(i64, Note)| *at);
    notes
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}
