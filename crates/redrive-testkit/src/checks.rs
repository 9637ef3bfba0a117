//! Five checks over a history and the final state of its store. They must hold after any crash.
//!
//! They compare epochs, not the order in which answers were recorded, and allow for answers that were lost. So they
//! also work for the histories of several processes that were killed. An id must not be used again after its job was
//! deleted, because its epochs would start again.

mod final_state;
mod timeline;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use redrive_core::{Epoch, Job, JobId, LEASE_COUNT_MAX, State, lease_count};

pub use final_state::FinalState;

use crate::history::{History, HistoryEvent, LeaseSource};
use timeline::Timeline;

/// A guarantee that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The check that failed.
    pub check: &'static str,
    /// The job that violates it. None if the violation concerns several jobs.
    pub job: Option<JobId>,
    /// What was wrong.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job {
            Some(job) => write!(f, "{}: {job} {}", self.check, self.detail),
            None => write!(f, "{}: {}", self.check, self.detail),
        }
    }
}

impl std::error::Error for Violation {}

/// The name of [`nothing_lost`].
pub const NOTHING_LOST: &str = "NOTHING-LOST";
/// The name of [`attempts_bounded`].
pub const ATTEMPTS_BOUNDED: &str = "ATTEMPTS-BOUNDED";
/// The name of [`one_outcome`].
pub const ONE_OUTCOME: &str = "ONE-OUTCOME";
/// The name of [`stale_shut_out`].
pub const STALE_SHUT_OUT: &str = "STALE-SHUT-OUT";
/// The name of [`no_wedge`].
pub const NO_WEDGE: &str = "NO-WEDGE";

/// Runs all five checks and returns the first violation.
pub fn check_all(history: &History, end: &FinalState, late_max: Duration) -> Result<(), Violation> {
    violations(history, end, late_max).into_iter().next().map_or(Ok(()), Err)
}

/// Runs all five checks and returns the violations. `late_max` is how late a lease or a due job may be at the end.
pub fn violations(history: &History, end: &FinalState, late_max: Duration) -> Vec<Violation> {
    let checks = [
        nothing_lost(history, end),
        attempts_bounded(history, end),
        one_outcome(history, end),
        stale_shut_out(history, end),
        no_wedge(end, late_max),
    ];
    checks.into_iter().filter_map(Result::err).collect()
}

/// NOTHING-LOST: every acknowledged job exists, or has ended and was deleted; every acknowledged log entry is in the
/// log of its job.
pub fn nothing_lost(history: &History, end: &FinalState) -> Result<(), Violation> {
    let (timelines, removals) = group_by_job(history);
    let (existing, gone): (Vec<&Timeline>, Vec<&Timeline>) =
        timelines.values().partition(|job| end.jobs.contains_key(&job.id));
    if let Some(job) = gone.iter().find(|job| job.acknowledged && !job.may_be_removed()) {
        return violation(NOTHING_LOST, job.id, "was acknowledged and is gone without having ended");
    }
    if gone.len() > removals {
        let detail = format!("{} jobs are gone, {removals} were removed", gone.len());
        return Err(Violation { check: NOTHING_LOST, job: None, detail });
    }
    for job in existing {
        let kept = end.logs.get(&job.id);
        if let Some(epoch) = job.logged().find(|epoch| !kept.is_some_and(|log| log.contains(epoch))) {
            return violation(NOTHING_LOST, job.id, format!("has lost its log entry of epoch {epoch}"));
        }
    }
    Ok(())
}

/// ATTEMPTS-BOUNDED: each claim charges one attempt and a reclaim none, a handler starts once under a claim, and no run
/// starts more attempts than its policy allows, apart from refunded ones.
pub fn attempts_bounded(history: &History, end: &FinalState) -> Result<(), Violation> {
    for job in group_by_job(history).0.values() {
        check_charged_attempts(job)?;
        check_handler_starts(job)?;
        for (run, started) in job.attempts_by_run() {
            let most = end.max_attempts.get(&started.policy).copied().unwrap_or(u32::MAX);
            if started.count > most {
                let detail = format!("run {run} started {} attempts of {most}", started.count);
                return violation(ATTEMPTS_BOUNDED, job.id, detail);
            }
        }
    }
    Ok(())
}

/// ONE-OUTCOME: a run ends once, is not leased after that, and the row has the state in which it ended.
pub fn one_outcome(history: &History, end: &FinalState) -> Result<(), Violation> {
    for job in group_by_job(history).0.values() {
        let row = end.jobs.get(&job.id);
        for (run, (last, state)) in run_ends(job)? {
            let later = job.leases.range(last + 1..).find(|(_, lease)| lease.run == run);
            if let Some((epoch, _)) = later {
                return violation(
                    ONE_OUTCOME,
                    job.id,
                    format!("was {state} and leased again, epoch {epoch}"),
                );
            }
            if let Some(row) = row.filter(|row| row.run == run && row.state != state) {
                return violation(ONE_OUTCOME, job.id, format!("ended as {state} and is {}", row.state));
            }
        }
        if let Some(row) = row.filter(|row| job.cancelled && row.state != State::Cancelled) {
            return violation(ONE_OUTCOME, job.id, format!("was cancelled and is {}", row.state));
        }
    }
    Ok(())
}

/// STALE-SHUT-OUT: no two leases share an epoch, the count of leases grows with the epoch, a lease settles at most once,
/// and a lease that was reclaimed never settles.
pub fn stale_shut_out(history: &History, end: &FinalState) -> Result<(), Violation> {
    for job in group_by_job(history).0.values() {
        if let Some(epoch) = job.leased_twice.first() {
            return violation(STALE_SHUT_OUT, job.id, format!("epoch {epoch} was granted twice"));
        }
        let mut settled = BTreeSet::new();
        for epoch in job.settlements.iter().map(|settlement| settlement.lease.epoch) {
            if !settled.insert(epoch) {
                return violation(STALE_SHUT_OUT, job.id, format!("epoch {epoch} was settled twice"));
            }
            if !job.leases.contains_key(&epoch) {
                return violation(
                    STALE_SHUT_OUT,
                    job.id,
                    format!("epoch {epoch} was settled but never granted"),
                );
            }
            if job.lease_after(epoch).is_some_and(|next| next.source == LeaseSource::Reclaim) {
                return violation(STALE_SHUT_OUT, job.id, format!("epoch {epoch} was reclaimed and settled"));
            }
        }
        check_lease_counts(job)?;
        check_row_epoch(job, end.jobs.get(&job.id))?;
    }
    Ok(())
}

/// NO-WEDGE: at the end, no lease has been expired and no job outside a paused queue has been due for longer than
/// `late_max`.
pub fn no_wedge(end: &FinalState, late_max: Duration) -> Result<(), Violation> {
    let latest = end.now.before(late_max);
    for job in end.jobs.values() {
        if job.state == State::Running && job.lease_until.is_none_or(|until| until < latest) {
            return violation(NO_WEDGE, job.id, "is running under an expired lease, and nobody reclaims it");
        }
        if job.state.is_claimable() && job.next_run_at < latest && !end.is_paused(&job.queue) {
            return violation(NO_WEDGE, job.id, format!("is {} and due, and nobody claims it", job.state));
        }
    }
    Ok(())
}

fn check_charged_attempts(job: &Timeline) -> Result<(), Violation> {
    for (epoch, lease) in &job.leases {
        let charged = lease.attempt;
        let expected = job.expected_attempt(*epoch).unwrap_or(charged);
        if charged != expected || charged == 0 {
            let detail = format!("epoch {epoch} is attempt {charged}, should be {expected}");
            return violation(ATTEMPTS_BOUNDED, job.id, detail);
        }
    }
    Ok(())
}

fn check_handler_starts(job: &Timeline) -> Result<(), Violation> {
    let mut started = BTreeSet::new();
    for epoch in job.started.iter().map(|lease| lease.epoch) {
        let claimed = job.leases.get(&epoch).is_none_or(|lease| lease.source == LeaseSource::Claim);
        if !claimed || !started.insert(epoch) {
            let detail = format!("a handler started under epoch {epoch} again, or without a claim");
            return violation(ATTEMPTS_BOUNDED, job.id, detail);
        }
    }
    Ok(())
}

/// The epoch and the state in which each run ended. A run that ended twice is a violation.
fn run_ends(job: &Timeline) -> Result<BTreeMap<u32, (Epoch, State)>, Violation> {
    let mut ends: BTreeMap<u32, (Epoch, State)> = BTreeMap::new();
    for settlement in job.settlements.iter().filter(|settlement| settlement.led_to.is_final()) {
        let (epoch, state) = (settlement.lease.epoch, settlement.led_to);
        let Some(run) = job.run_of(epoch) else { continue };
        if let Some((first, before)) = ends.insert(run, (epoch, state)) {
            let detail = format!("run {run} ended as {before} in epoch {first} and as {state} in {epoch}");
            violation(ONE_OUTCOME, job.id, detail)?;
        }
    }
    Ok(ends)
}

/// The checks find the next lease by its count, so a count that does not advance would hide violations from them.
fn check_lease_counts(job: &Timeline) -> Result<(), Violation> {
    for (older, newer) in job.leases.keys().zip(job.leases.keys().skip(1)) {
        if lease_count(*newer) <= lease_count(*older) && lease_count(*older) < LEASE_COUNT_MAX {
            let detail = format!("epoch {newer} counts no more leases than epoch {older}");
            return violation(STALE_SHUT_OUT, job.id, detail);
        }
    }
    Ok(())
}

fn check_row_epoch(job: &Timeline, row: Option<&Job>) -> Result<(), Violation> {
    let newest = job.leases.keys().next_back().copied().unwrap_or(0);
    if let Some(row) = row.filter(|row| row.epoch < newest) {
        let detail = format!("epoch {newest} was granted, the row is at {}", row.epoch);
        return violation(STALE_SHUT_OUT, job.id, detail);
    }
    Ok(())
}

fn violation(check: &'static str, job: JobId, detail: impl Into<String>) -> Result<(), Violation> {
    Err(Violation { check, job: Some(job), detail: detail.into() })
}

/// Groups the events by job, and counts the jobs that were deleted.
fn group_by_job(history: &History) -> (BTreeMap<JobId, Timeline>, usize) {
    let mut timelines: BTreeMap<JobId, Timeline> = BTreeMap::new();
    let mut removals = 0;
    for (_, event) in history.all() {
        if let HistoryEvent::Pruned(count) = event {
            removals += count;
        }
        if let HistoryEvent::Discarded(_) = event {
            removals += 1;
        }
        if let Some(id) = event.job() {
            timelines.entry(id).or_insert_with(|| Timeline::new(id)).add(event);
        }
    }
    (timelines, removals)
}
