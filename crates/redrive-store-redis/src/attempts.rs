//! The log of a job's attempts.

use std::time::Duration;

use redrive_core::store::{Cursor, Page};
use redrive_core::time::ceil_ms;
use redrive_core::{Attempt, Entry, Epoch, JobId, StoreError, Timestamp, WorkerId};
use serde::{Deserialize, Serialize};

use crate::open::Inner;
use crate::row::SEPARATOR;
use crate::{answer, script};

/// What the worker said, as the log keeps it behind what the script adds.
#[derive(Serialize, Deserialize)]
struct Said {
    run: u32,
    attempt: u32,
    started: i64,
    took: i64,
    outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// An entry for the log.
pub(crate) fn write(entry: &Entry) -> Vec<u8> {
    let said = Said {
        run: entry.run,
        attempt: entry.attempt,
        started: entry.started_at.as_ms(),
        took: ceil_ms(entry.duration),
        outcome: entry.outcome.clone(),
        error: entry.error.clone(),
        detail: entry.detail.clone(),
    };
    // Numbers and texts are always JSON.
    serde_json::to_vec(&said).unwrap_or_default()
}

pub(crate) async fn attempts(
    inner: &Inner,
    id: JobId,
    after: Option<Epoch>,
    limit: usize,
) -> Result<Page<Attempt>, StoreError> {
    let partition = inner.partitions_of(&[id]).await?[0];
    let mut arguments = inner.arguments();
    arguments.id(id);
    arguments.text(after.map_or_else(|| "-inf".to_owned(), |epoch| epoch.to_string()));
    arguments.count(limit + 1);
    let lines = answer::texts(inner.run(&script::ATTEMPTS, partition, arguments).await?)?;
    let damaged = || StoreError::Corrupt(format!("job {id}: an attempt cannot be read"));
    let attempts: Option<Vec<Attempt>> = lines.iter().map(|line| read(line)).collect();
    Ok(Page::cut(attempts.ok_or_else(damaged)?, limit, |attempt| Cursor::Attempt(attempt.epoch)))
}

/// A whole attempt as the log keeps it, with its place.
pub(crate) fn write_whole(attempt: &Attempt) -> (String, Vec<u8>) {
    let worker = attempt.worker.as_ref().map(ToString::to_string).unwrap_or_default();
    let wait = attempt.wait.map(|wait| ceil_ms(wait).to_string()).unwrap_or_default();
    let next = attempt.next_run_at.map(|at| at.as_ms().to_string()).unwrap_or_default();
    let state = attempt.led_to.code().to_string();
    let parts = [&attempt.epoch.to_string(), &worker, &state, &wait, &next];
    let mut line = parts.map(|part| format!("{part}{SEPARATOR}")).concat().into_bytes();
    line.extend(write(&attempt.entry));
    (attempt.epoch.to_string(), line)
}

pub(crate) fn read(line: &str) -> Option<Attempt> {
    let mut parts = line.splitn(6, SEPARATOR);
    let (epoch, worker, state) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let (wait, next_run_at) = (parts.next()?, parts.next()?);
    let said: Said = serde_json::from_str(parts.next()?).ok()?;
    let millis = |ms: i64| u64::try_from(ms).ok().map(Duration::from_millis);
    Some(Attempt {
        epoch,
        entry: Entry {
            run: said.run,
            attempt: said.attempt,
            started_at: Timestamp::from_ms(said.started),
            duration: millis(said.took)?,
            outcome: said.outcome,
            error: said.error,
            detail: said.detail,
        },
        worker: if worker.is_empty() { None } else { Some(WorkerId::new(worker).ok()?) },
        led_to: answer::state(state).ok()?,
        wait: if wait.is_empty() { None } else { Some(millis(wait.parse().ok()?)?) },
        next_run_at: if next_run_at.is_empty() {
            None
        } else {
            Some(Timestamp::from_ms(next_run_at.parse().ok()?))
        },
    })
}
