//! How attempts, steps and signals are stored: texts whose parts have a separator between them.

use std::time::Duration;

use redrive_core::steps::{Step, StepKind};
use redrive_core::time::ceil_ms;
use redrive_core::transfer::StoredSignal;
use redrive_core::{Attempt, AttemptReport, SignalName, StepName, StoreError, Timestamp, WorkerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::row::SEPARATOR;
use crate::script::reply;

/// The part of a stored attempt that the worker reports, as JSON.
#[derive(Serialize, Deserialize)]
struct StoredReport {
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

/// The report of an attempt. The script that settles the attempt adds the other parts.
pub(crate) fn write_report(report: &AttemptReport) -> Vec<u8> {
    let stored = StoredReport {
        run: report.run,
        attempt: report.attempt,
        started: report.started_at.as_ms(),
        took: ceil_ms(report.duration),
        outcome: report.outcome.clone(),
        error: report.error.clone(),
        detail: report.detail.clone(),
    };
    // Numbers and texts always serialise.
    serde_json::to_vec(&stored).unwrap_or_default()
}

/// An attempt as EPOCH, WORKER, STATE, WAIT, DUE and REPORT.
pub(crate) fn write_attempt(attempt: &Attempt) -> Vec<u8> {
    let worker = attempt.worker.as_ref().map(ToString::to_string).unwrap_or_default();
    let wait = attempt.wait.map(|wait| ceil_ms(wait).to_string()).unwrap_or_default();
    let next = attempt.next_run_at.map(|at| at.as_ms().to_string()).unwrap_or_default();
    let state = attempt.led_to.code().to_string();
    let parts = [&attempt.epoch.to_string(), &worker, &state, &wait, &next];
    let mut line = parts.map(|part| format!("{part}{SEPARATOR}")).concat().into_bytes();
    line.extend(write_report(&attempt.entry));
    line
}

pub(crate) fn read_attempt(line: &str) -> Option<Attempt> {
    let mut parts = line.splitn(6, SEPARATOR);
    let (epoch, worker, state) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let (wait, next_run_at) = (parts.next()?, parts.next()?);
    let report: StoredReport = serde_json::from_str(parts.next()?).ok()?;
    let millis = |ms: i64| u64::try_from(ms).ok().map(Duration::from_millis);
    Some(Attempt {
        epoch,
        entry: AttemptReport {
            run: report.run,
            attempt: report.attempt,
            started_at: Timestamp::from_ms(report.started),
            duration: millis(report.took)?,
            outcome: report.outcome,
            error: report.error,
            detail: report.detail,
        },
        worker: if worker.is_empty() { None } else { Some(WorkerId::new(worker).ok()?) },
        led_to: reply::state(state).ok()?,
        wait: if wait.is_empty() { None } else { Some(millis(wait.parse().ok()?)?) },
        next_run_at: if next_run_at.is_empty() {
            None
        } else {
            Some(Timestamp::from_ms(next_run_at.parse().ok()?))
        },
    })
}

/// A step as PLACE, KIND, NAME and VALUE.
pub(crate) fn write_step(step: &Step) -> Vec<u8> {
    let (place, kind, name) = (step.place, step.kind.code(), &step.name);
    let mut bytes = format!("{place}{SEPARATOR}{kind}{SEPARATOR}{name}{SEPARATOR}").into_bytes();
    bytes.extend(&step.value);
    bytes
}

pub(crate) fn read_step(bytes: &[u8]) -> Result<Step, StoreError> {
    let damaged = || StoreError::Corrupt("a step cannot be read".to_owned());
    let [place, kind, name, value] = split(bytes).ok_or_else(damaged)?;
    let text = |part| std::str::from_utf8(part).map_err(|_| damaged());
    Ok(Step {
        place: text(place)?.parse().map_err(|_| damaged())?,
        kind: text(kind)?.parse().ok().and_then(StepKind::from_code).ok_or_else(damaged)?,
        name: StepName::new(text(name)?)?,
        value: value.to_vec(),
    })
}

/// A signal as ID, TAKEN, NAME and VALUE.
pub(crate) fn write_signal(signal: &StoredSignal) -> Vec<u8> {
    let (id, taken, name) = (signal.id.simple(), u8::from(signal.taken), &signal.name);
    let mut bytes = format!("{id}{SEPARATOR}{taken}{SEPARATOR}{name}{SEPARATOR}").into_bytes();
    bytes.extend(&signal.value);
    bytes
}

pub(crate) fn read_signal(bytes: &[u8]) -> Option<StoredSignal> {
    let [id, taken, name, value] = split(bytes)?;
    let text = |part| std::str::from_utf8(part).ok();
    Some(StoredSignal {
        id: Uuid::try_parse(text(id)?).ok()?,
        name: SignalName::new(text(name)?).ok()?,
        value: value.to_vec(),
        taken: taken == b"1",
    })
}

/// Four parts, of which the last may contain the separator.
fn split(bytes: &[u8]) -> Option<[&[u8]; 4]> {
    let parts: Vec<&[u8]> = bytes.splitn(4, |byte| char::from(*byte) == SEPARATOR).collect();
    parts.try_into().ok()
}
