//! The guarantees of durable jobs, checked after processes were killed.

use std::collections::{BTreeMap, BTreeSet};

use redrive::{Job, JobId, Redrive, State, Task};
use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::steps::StepKind;
use redrive_core::store::{Filter, PageRequest};

use super::journal::JobEvent;
use super::node::RUNNING_MAX;
use super::tasks::{CHILDREN, Child, Flow, Narrow, Only, Ordered, Parent, SIGNALS, Tick};

/// The jobs at the end, and the journal of the handlers.
struct DurableJobs<'a> {
    redrive: &'a Redrive,
    jobs: BTreeMap<JobId, Job>,
    events: &'a [(i64, JobEvent)],
}

/// Runs all checks. Returns a summary of what was checked.
pub(crate) async fn check(redrive: &Redrive, events: &[(i64, JobEvent)]) -> String {
    let jobs_at_end = DurableJobs { redrive, jobs: all_jobs(redrive).await, events };
    let flows = jobs_at_end.step_once();
    jobs_at_end.timer_once().await;
    let signals = jobs_at_end.signal_once();
    let parents = jobs_at_end.fan_out_exact().await;
    let unique = jobs_at_end.unique();
    let ticks = jobs_at_end.schedule_once();
    let narrow = jobs_at_end.slot_no_leak();
    let ordered = jobs_at_end.in_order();
    let cancelled = jobs_at_end.cancel_final();
    format!(
        "{flows} steps, {signals} signals, {parents} fan-outs, {unique} unique, {ticks} occurrences, {narrow} limited, \
         {ordered} in order, {cancelled} cancelled"
    )
}

async fn all_jobs(redrive: &Redrive) -> BTreeMap<JobId, Job> {
    let mut jobs = BTreeMap::new();
    let mut after = None;
    loop {
        let request = PageRequest { after, limit: PAGE_ITEMS_MAX };
        let page = redrive.backend().list(Filter::default(), request).await.expect("listed");
        jobs.extend(page.items.into_iter().map(|job| (job.id, job)));
        after = page.next;
        if after.is_none() {
            return jobs;
        }
    }
}

impl DurableJobs<'_> {
    fn of<T: Task>(&self) -> Vec<&Job> {
        self.jobs.values().filter(|job| job.kind.as_str() == T::KIND).collect()
    }

    /// Checks that every job of a task has succeeded or was cancelled, and returns the jobs.
    fn check_ended<T: Task>(&self, check: &str) -> Vec<&Job> {
        let jobs = self.of::<T>();
        for job in &jobs {
            assert!(matches!(job.state, State::Succeeded | State::Cancelled), "{check}: {job:?}");
        }
        jobs
    }

    /// A stored step never runs again, under its lease or a later one. A process that was frozen for longer than its lease may
    /// still run a step under its older lease, but the result is not stored.
    fn step_once(&self) -> usize {
        let mut kept: BTreeMap<(JobId, &str), u64> = BTreeMap::new();
        for (_, event) in self.events {
            match event {
                JobEvent::StepStored(job, epoch, name) => {
                    let first = kept.entry((*job, name)).or_insert(*epoch);
                    *first = (*first).min(*epoch);
                }
                JobEvent::StepStarted(job, epoch, name) => assert!(
                    kept.get(&(*job, name.as_str())).is_none_or(|first| epoch < first),
                    "STEP-ONCE: {name:?} of {job} ran again in epoch {epoch} after its result was stored"
                ),
                JobEvent::SleepEnded(..)
                | JobEvent::SignalTaken(..)
                | JobEvent::FanOutReturned(..)
                | JobEvent::JobStarted(_)
                | JobEvent::OccurrenceRan(..)
                | JobEvent::Cancelled(_)
                | JobEvent::RunningAtOnce(_) => {}
            }
        }
        self.check_ended::<Flow>("STEP-ONCE");
        kept.len()
    }

    /// A sleep never ends before the deadline that was stored first, even if its worker is killed several times.
    async fn timer_once(&self) {
        for (_, event) in self.events {
            let JobEvent::SleepEnded(job, at) = event else { continue };
            let steps = self.redrive.steps(*job, 0, 100).await.expect("the steps can be read");
            let timers: Vec<_> = steps.iter().filter(|step| step.kind == StepKind::Timer).collect();
            assert_eq!(timers.len(), 1, "TIMER-ONCE: {job}");
            let until: i64 = String::from_utf8_lossy(&timers[0].value).parse().expect("an instant");
            assert!(*at >= until, "TIMER-ONCE: {job} woke {} ms early", until - at);
        }
    }

    /// Signals are taken in the order in which they were sent, each of them once.
    fn signal_once(&self) -> usize {
        let mut signals = 0;
        for job in
            self.check_ended::<Flow>("SIGNAL-ONCE").into_iter().filter(|job| job.state == State::Succeeded)
        {
            let output: Vec<u64> =
                serde_json::from_slice(job.output.as_deref().unwrap_or_default()).expect("a list");
            let taken = &output[2..2 + SIGNALS as usize];
            assert!(taken.is_sorted_by(|a, b| a < b), "SIGNAL-ONCE: {} took {taken:?}", job.id);
            signals += taken.len();
        }
        signals
    }

    /// A parent enqueues its children once, and gets the result of each.
    async fn fan_out_exact(&self) -> usize {
        let mut children: BTreeMap<JobId, usize> = BTreeMap::new();
        for child in self.check_ended::<Child>("FANOUT-EXACT") {
            *children.entry(child.parent.expect("a child has a parent").id).or_default() += 1;
        }
        let expected: Vec<u32> = (0..CHILDREN).map(|n| n * 10).collect();
        for (_, event) in self.events {
            if let JobEvent::FanOutReturned(job, results) = event {
                assert_eq!(*results, expected, "FANOUT-EXACT: {job}");
            }
        }
        let parents = self.check_ended::<Parent>("FANOUT-EXACT");
        for parent in &parents {
            let count = children.get(&parent.id).copied().unwrap_or(0);
            let cancelled = parent.state == State::Cancelled;
            assert!(
                count == CHILDREN as usize || (cancelled && count == 0),
                "FANOUT-EXACT: {count} of {parent:?}"
            );
            let log = self.redrive.attempts(parent.id, 1_000).await.expect("the log can be read");
            let waits = log.iter().filter(|attempt| attempt.entry.outcome == "waiting").count();
            assert!(waits <= 1, "FANOUT-EXACT: {} waited {waits} times", parent.id);
        }
        parents.len()
    }

    /// Jobs under one unique key do not overlap in time.
    fn unique(&self) -> usize {
        let jobs = self.check_ended::<Only>("UNIQUE");
        let mut ends: BTreeMap<&str, i64> = BTreeMap::new();
        let mut by_time = jobs.clone();
        by_time.sort_by_key(|job| (job.created_at, job.finished_at));
        for job in by_time {
            let key = job
                .metadata
                .as_deref()
                .and_then(|text| text.split("key-").nth(1))
                .expect("the job has a key");
            let (began, ended) =
                (job.created_at.as_ms(), job.finished_at.expect("the job has ended").as_ms());
            if let Some(before) = ends.insert(&key[..1], ended) {
                assert!(began >= before, "UNIQUE: {} began {} ms too early", job.id, before - began);
            }
        }
        jobs.len()
    }

    /// Each occurrence of a schedule is exactly one job.
    fn schedule_once(&self) -> usize {
        let mut occurrences: BTreeMap<i64, BTreeSet<JobId>> = BTreeMap::new();
        for (_, event) in self.events {
            if let JobEvent::OccurrenceRan(occurrence, job) = event {
                occurrences.entry(*occurrence).or_default().insert(*job);
            }
        }
        for (occurrence, jobs) in &occurrences {
            assert_eq!(jobs.len(), 1, "SCHEDULE-ONCE: {occurrence} ran as {jobs:?}");
        }
        let times: Vec<i64> = occurrences.keys().copied().collect();
        for pair in times.windows(2) {
            assert_eq!(pair[1] - pair[0], 100, "SCHEDULE-ONCE: nothing between {} and {}", pair[0], pair[1]);
        }
        assert_eq!(self.check_ended::<Tick>("SCHEDULE-ONCE").len(), times.len(), "SCHEDULE-ONCE");
        times.len()
    }

    /// A queue with limits never runs more jobs than allowed, and a killed process leaves no slot occupied.
    fn slot_no_leak(&self) -> usize {
        for (_, event) in self.events {
            if let JobEvent::RunningAtOnce(running) = event {
                assert!(
                    *running <= u64::from(RUNNING_MAX),
                    "SLOT-NO-LEAK: {running} of {RUNNING_MAX} at once"
                );
            }
        }
        self.check_ended::<Narrow>("SLOT-NO-LEAK").len()
    }

    /// A job in order starts only after the jobs before it have ended.
    fn in_order(&self) -> usize {
        let began: BTreeMap<JobId, i64> = self
            .events
            .iter()
            .rev()
            .filter_map(
                |(at, event)| if let JobEvent::JobStarted(job) = event { Some((*job, *at)) } else { None },
            )
            .collect();
        let mut last: BTreeMap<String, &Job> = BTreeMap::new();
        let jobs = self.check_ended::<Ordered>("IN-ORDER");
        for job in &jobs {
            let key = job.partition.as_ref().expect("the job has a key").key.to_string();
            // Two processes may create ids within one millisecond, so the smaller id may be enqueued after the greater has started.
            let before = last.insert(key, job).filter(|before| before.created_at < job.created_at);
            if let Some(before) = before {
                let ended = before.finished_at.expect("the job has ended").as_ms();
                let began = began[&job.id];
                assert!(
                    began >= ended,
                    "IN-ORDER: {} began {} ms before {}",
                    job.id,
                    ended - began,
                    before.id
                );
            }
        }
        jobs.len()
    }

    /// A cancelled job stays cancelled, and its children end too.
    fn cancel_final(&self) -> usize {
        let cancelled = self
            .events
            .iter()
            .filter_map(|(_, event)| if let JobEvent::Cancelled(job) = event { Some(*job) } else { None });
        let cancelled: BTreeSet<JobId> = cancelled.collect();
        for id in &cancelled {
            assert_eq!(self.jobs[id].state, State::Cancelled, "CANCEL-FINAL: {id}");
        }
        for child in self.of::<Child>() {
            let parent = child.parent.expect("a child has a parent").id;
            // A running child was only asked to end, and may have succeeded.
            let had_begun = child.cancel_requested || child.started_at <= self.jobs[&parent].finished_at;
            let is_allowed = child.state == State::Cancelled || had_begun;
            assert!(is_allowed || !cancelled.contains(&parent), "CANCEL-FINAL: {child:?} began afterwards");
        }
        cancelled.len()
    }
}
