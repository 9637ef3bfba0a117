//! Five checks over a history and the store it left behind: what must hold whatever crashed meanwhile.
//!
//! They look at epochs rather than at the order in which answers were noted down, and bear answers that nobody saw, so
//! that histories of several processes that were killed can be checked too. An id must not come back after its job was
//! removed: its epochs would start again.

mod end;
mod timeline;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use redrive_core::{Epoch, Job, JobId, State};

pub use end::End;

use crate::history::{By, Happening, History};
use timeline::Timeline;

/// A guarantee that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The check that noticed.
    pub check: &'static str,
    /// The job that it is about, where it is about one.
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

/// Runs all five and returns the first that did not hold.
pub fn check_all(history: &History, end: &End, patience: Duration) -> Result<(), Violation> {
    violations(history, end, patience).into_iter().next().map_or(Ok(()), Err)
}

/// Runs all five and returns what did not hold; `patience` is how late a lease or a due job may be at the end.
pub fn violations(history: &History, end: &End, patience: Duration) -> Vec<Violation> {
    let checks = [
        nothing_lost(history, end),
        attempts_bounded(history, end),
        one_outcome(history, end),
        stale_shut_out(history, end),
        no_wedge(end, patience),
    ];
    checks.into_iter().filter_map(Result::err).collect()
}

/// NOTHING-LOST: every acknowledged job is there, or has ended and was removed; every log entry that was acknowledged
/// is in the log of its job.
pub fn nothing_lost(history: &History, end: &End) -> Result<(), Violation> {
    let (timelines, removals) = read(history);
    let (there, gone): (Vec<&Timeline>, Vec<&Timeline>) =
        timelines.values().partition(|job| end.jobs.contains_key(&job.id));
    if let Some(job) = gone.iter().find(|job| job.acknowledged && !job.may_be_removed()) {
        return violation(NOTHING_LOST, job.id, "was acknowledged and is gone without having ended");
    }
    if gone.len() > removals {
        let detail = format!("{} jobs are gone, {removals} were removed", gone.len());
        return Err(Violation { check: NOTHING_LOST, job: None, detail });
    }
    for job in there {
        let kept = end.logs.get(&job.id);
        if let Some(epoch) = job.logged().find(|epoch| !kept.is_some_and(|log| log.contains(epoch))) {
            return violation(NOTHING_LOST, job.id, format!("has lost its log entry of epoch {epoch}"));
        }
    }
    Ok(())
}

/// ATTEMPTS-BOUNDED: each claim charges one attempt on top of those before and a reclaim none, a handler starts once
/// under a claim, and no run starts more attempts than its policy allows, those apart that were given back.
pub fn attempts_bounded(history: &History, end: &End) -> Result<(), Violation> {
    for job in read(history).0.values() {
        charged_each_time(job)?;
        started_once(job)?;
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

/// ONE-OUTCOME: a run ends once, nothing of it is leased after that, and the row says what the end was.
pub fn one_outcome(history: &History, end: &End) -> Result<(), Violation> {
    for job in read(history).0.values() {
        let row = end.jobs.get(&job.id);
        for (run, (last, state)) in ends(job)? {
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

/// STALE-SHUT-OUT: no two holders share an epoch, a lease settles once, and one that was taken over settles never.
pub fn stale_shut_out(history: &History, end: &End) -> Result<(), Violation> {
    for job in read(history).0.values() {
        if let Some(epoch) = job.leased_twice.first() {
            return violation(STALE_SHUT_OUT, job.id, format!("epoch {epoch} was handed out twice"));
        }
        let mut settled = BTreeSet::new();
        for epoch in job.settlements.iter().map(|settlement| settlement.lease.epoch) {
            if !settled.insert(epoch) {
                return violation(STALE_SHUT_OUT, job.id, format!("epoch {epoch} was settled twice"));
            }
            if !job.leases.contains_key(&epoch) {
                return violation(STALE_SHUT_OUT, job.id, format!("epoch {epoch} settled, never handed out"));
            }
            if job.leases.get(&(epoch + 1)).is_some_and(|next| next.by == By::Reclaim) {
                return violation(
                    STALE_SHUT_OUT,
                    job.id,
                    format!("epoch {epoch} was taken over and settled"),
                );
            }
        }
        behind(job, end.jobs.get(&job.id))?;
    }
    Ok(())
}

/// NO-WEDGE: at the end no lease has run out, and no job outside a paused queue has been due, for longer than `patience`.
pub fn no_wedge(end: &End, patience: Duration) -> Result<(), Violation> {
    let latest = end.now.before(patience);
    for job in end.jobs.values() {
        if job.state == State::Running && job.lease_until.is_none_or(|until| until < latest) {
            return violation(NO_WEDGE, job.id, "is running, its lease is over, and nobody takes it over");
        }
        if job.state.is_claimable() && job.next_run_at < latest && !end.is_paused(&job.queue) {
            return violation(NO_WEDGE, job.id, format!("is {} and due, and nobody claims it", job.state));
        }
    }
    Ok(())
}

fn charged_each_time(job: &Timeline) -> Result<(), Violation> {
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

fn started_once(job: &Timeline) -> Result<(), Violation> {
    let mut started = BTreeSet::new();
    for epoch in job.started.iter().map(|lease| lease.epoch) {
        let claimed = job.leases.get(&epoch).is_none_or(|lease| lease.by == By::Claim);
        if !claimed || !started.insert(epoch) {
            let detail = format!("a handler started under epoch {epoch} again, or without a claim");
            return violation(ATTEMPTS_BOUNDED, job.id, detail);
        }
    }
    Ok(())
}

/// How each run ended, by which epoch; twice is a violation.
fn ends(job: &Timeline) -> Result<BTreeMap<u32, (Epoch, State)>, Violation> {
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

fn behind(job: &Timeline, row: Option<&Job>) -> Result<(), Violation> {
    let newest = job.leases.keys().next_back().copied().unwrap_or(0);
    if let Some(row) = row.filter(|row| row.epoch < newest) {
        let detail = format!("epoch {newest} was handed out, the row is at {}", row.epoch);
        return violation(STALE_SHUT_OUT, job.id, detail);
    }
    Ok(())
}

fn violation(check: &'static str, job: JobId, detail: impl Into<String>) -> Result<(), Violation> {
    Err(Violation { check, job: Some(job), detail: detail.into() })
}

/// The history job by job, and how many jobs were removed.
fn read(history: &History) -> (BTreeMap<JobId, Timeline>, usize) {
    let mut timelines: BTreeMap<JobId, Timeline> = BTreeMap::new();
    let mut removals = 0;
    for (_, happening) in history.all() {
        if let Happening::Pruned(count) = happening {
            removals += count;
        }
        if let Happening::Discarded(_) = happening {
            removals += 1;
        }
        if let Some(id) = happening.job() {
            timelines.entry(id).or_insert_with(|| Timeline::new(id)).add(happening);
        }
    }
    (timelines, removals)
}
