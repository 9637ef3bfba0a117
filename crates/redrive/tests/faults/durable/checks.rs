//! What must hold of durable jobs, whatever was killed meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use redrive::{Job, JobId, Redrive, State, Task};
use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::steps::StepKind;
use redrive_core::store::{Filter, PageRequest};

use crate::journal::Note;
use crate::node::CROWD_MAX;
use crate::tasks::{CHILDREN, Child, Flow, Narrow, Only, Ordered, Parent, SIGNALS, Tick};

/// Everything at the end.
struct Books<'a> {
    redrive: &'a Redrive,
    jobs: BTreeMap<JobId, Job>,
    notes: &'a [(i64, Note)],
}

/// Checks everything and says how much there was to check.
pub(crate) async fn check(redrive: &Redrive, notes: &[(i64, Note)]) -> String {
    let books = Books { redrive, jobs: all(redrive).await, notes };
    let flows = books.step_once();
    books.timer_once().await;
    let signals = books.signal_once();
    let parents = books.fan_out_exact().await;
    let unique = books.unique();
    let ticks = books.schedule_once();
    let narrow = books.slot_no_leak();
    let ordered = books.in_order();
    let cancelled = books.cancel_final();
    format!(
        "{flows} steps, {signals} signals, {parents} fan-outs, {unique} unique, {ticks} occurrences, {narrow} bounded, \
         {ordered} in order, {cancelled} cancelled"
    )
}

async fn all(redrive: &Redrive) -> BTreeMap<JobId, Job> {
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

impl Books<'_> {
    fn of<T: Task>(&self) -> Vec<&Job> {
        self.jobs.values().filter(|job| job.kind.as_str() == T::KIND).collect()
    }

    /// Jobs of a task, all of which must have ended well unless they were cancelled.
    fn ended<T: Task>(&self, check: &str) -> Vec<&Job> {
        let jobs = self.of::<T>();
        for job in &jobs {
            assert!(matches!(job.state, State::Succeeded | State::Cancelled), "{check}: {job:?}");
        }
        jobs
    }

    /// A step that was remembered never runs again, under that lease or a later one. A process that was frozen for longer than
    /// its lease may still run what it was about to: its lease is an older one, and what comes of it is not remembered.
    fn step_once(&self) -> usize {
        let mut kept: BTreeMap<(JobId, &str), u64> = BTreeMap::new();
        for (_, note) in self.notes {
            match note {
                Note::Kept(job, epoch, name) => {
                    let first = kept.entry((*job, name)).or_insert(*epoch);
                    *first = (*first).min(*epoch);
                }
                Note::Ran(job, epoch, name) => assert!(
                    kept.get(&(*job, name.as_str())).is_none_or(|first| epoch < first),
                    "STEP-ONCE: {name:?} of {job} ran again in epoch {epoch} after it was remembered"
                ),
                Note::Woke(..)
                | Note::Took(..)
                | Note::Joined(..)
                | Note::Began(_)
                | Note::Ticked(..)
                | Note::Cancelled(_)
                | Note::Crowd(_) => {}
            }
        }
        self.ended::<Flow>("STEP-ONCE");
        kept.len()
    }

    /// A sleep ends at the instant that was remembered first, never before it, however often its worker is killed.
    async fn timer_once(&self) {
        for (_, note) in self.notes {
            let Note::Woke(job, at) = note else { continue };
            let steps = self.redrive.steps(*job, 0, 100).await.expect("the steps can be read");
            let timers: Vec<_> = steps.iter().filter(|step| step.kind == StepKind::Timer).collect();
            assert_eq!(timers.len(), 1, "TIMER-ONCE: {job}");
            let until: i64 = String::from_utf8_lossy(&timers[0].value).parse().expect("an instant");
            assert!(*at >= until, "TIMER-ONCE: {job} woke {} ms early", until - at);
        }
    }

    /// Signals are taken in the order in which they were sent, each once.
    fn signal_once(&self) -> usize {
        let mut signals = 0;
        for job in self.ended::<Flow>("SIGNAL-ONCE").into_iter().filter(|job| job.state == State::Succeeded) {
            let output: Vec<u64> =
                serde_json::from_slice(job.output.as_deref().unwrap_or_default()).expect("a list");
            let taken = &output[2..2 + SIGNALS as usize];
            assert!(taken.is_sorted_by(|a, b| a < b), "SIGNAL-ONCE: {} took {taken:?}", job.id);
            signals += taken.len();
        }
        signals
    }

    /// A parent has its children once, waits for them once, and has every result.
    async fn fan_out_exact(&self) -> usize {
        let mut children: BTreeMap<JobId, usize> = BTreeMap::new();
        for child in self.ended::<Child>("FANOUT-EXACT") {
            *children.entry(child.parent.expect("a child has a parent").id).or_default() += 1;
        }
        let expected: Vec<u32> = (0..CHILDREN).map(|n| n * 10).collect();
        for (_, note) in self.notes {
            if let Note::Joined(job, results) = note {
                assert_eq!(*results, expected, "FANOUT-EXACT: {job}");
            }
        }
        let parents = self.ended::<Parent>("FANOUT-EXACT");
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
        let jobs = self.ended::<Only>("UNIQUE");
        let mut ends: BTreeMap<&str, i64> = BTreeMap::new();
        let mut by_time = jobs.clone();
        by_time.sort_by_key(|job| (job.created_at, job.finished_at));
        for job in by_time {
            let key =
                job.metadata.as_deref().and_then(|text| text.split("key-").nth(1)).expect("it has a key");
            let (began, ended) = (job.created_at.as_ms(), job.finished_at.expect("it has ended").as_ms());
            if let Some(before) = ends.insert(&key[..1], ended) {
                assert!(began >= before, "UNIQUE: {} began {} ms too early", job.id, before - began);
            }
        }
        jobs.len()
    }

    /// Each occurrence of a schedule is one job, and none is left out.
    fn schedule_once(&self) -> usize {
        let mut occurrences: BTreeMap<i64, BTreeSet<JobId>> = BTreeMap::new();
        for (_, note) in self.notes {
            if let Note::Ticked(occurrence, job) = note {
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
        assert_eq!(self.ended::<Tick>("SCHEDULE-ONCE").len(), times.len(), "SCHEDULE-ONCE");
        times.len()
    }

    /// A bounded queue never runs more than it may, and a kill leaves no slot taken.
    fn slot_no_leak(&self) -> usize {
        for (_, note) in self.notes {
            if let Note::Crowd(running) = note {
                assert!(*running <= u64::from(CROWD_MAX), "SLOT-NO-LEAK: {running} of {CROWD_MAX} at once");
            }
        }
        self.ended::<Narrow>("SLOT-NO-LEAK").len()
    }

    /// A job in order begins after those before it have ended.
    fn in_order(&self) -> usize {
        let began: BTreeMap<JobId, i64> = self
            .notes
            .iter()
            .rev()
            .filter_map(|(at, note)| if let Note::Began(job) = note { Some((*job, *at)) } else { None })
            .collect();
        let mut last: BTreeMap<String, &Job> = BTreeMap::new();
        let jobs = self.ended::<Ordered>("IN-ORDER");
        for job in &jobs {
            let key = job.partition.as_ref().expect("it has a key").key.to_string();
            // Two processes make ids within one millisecond: the smaller one may come when the greater has begun.
            let before = last.insert(key, job).filter(|before| before.created_at < job.created_at);
            if let Some(before) = before {
                let ended = before.finished_at.expect("it has ended").as_ms();
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

    /// What was cancelled stays so, and nothing below it goes on.
    fn cancel_final(&self) -> usize {
        let cancelled = self
            .notes
            .iter()
            .filter_map(|(_, note)| if let Note::Cancelled(job) = note { Some(*job) } else { None });
        let cancelled: BTreeSet<JobId> = cancelled.collect();
        for id in &cancelled {
            assert_eq!(self.jobs[id].state, State::Cancelled, "CANCEL-FINAL: {id}");
        }
        for child in self.of::<Child>() {
            let parent = child.parent.expect("a child has a parent").id;
            // What had begun was asked to end, and may have succeeded all the same.
            let had_begun = child.cancel_requested || child.started_at <= self.jobs[&parent].finished_at;
            let in_order = child.state == State::Cancelled || had_begun;
            assert!(in_order || !cancelled.contains(&parent), "CANCEL-FINAL: {child:?} began afterwards");
        }
        cancelled.len()
    }
}
