//! The part of a store that durable jobs need: steps, children, signals, and waiting for them.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::invalid::Invalid;
use crate::job::{JobId, Lease, NewJob};
use crate::lifecycle::State;
use crate::limits::{AWAITS_MAX, BATCH_ITEMS_MAX, NAME_BYTES_MAX, STEP_BYTES_MAX};
use crate::names::{SignalName, StepName};
use crate::store::{StoreError, check_batch};

/// The steps of a job, and the conditions that it waits for. Each method is one atomic write or read.
///
/// Two sides call [`Steps::resume`] after their commit: the side that creates a fact (a child ended, a signal arrived, a pause
/// ended), and the side that has just started to wait. At least one of them sees both. If both crash, [`Steps::sweep`] finds the job.
///
/// A job that ends as cancelled or dead ends everything below it: see [`crate::Store::settle`] and [`crate::Store::cancel`].
#[async_trait]
pub trait Steps: Send + Sync {
    /// The stored steps of a job in their order, starting at place `from`, at most `limit`.
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError>;

    /// Stores steps under their leases. A step that is stored at a place is never replaced. The same write enqueues the children and
    /// takes the signal, or does nothing. A job with a requested cancel gets no more children.
    async fn remember(&self, steps: Vec<NewStep>) -> Result<Vec<RememberResult>, StoreError>;

    /// Stores signals for live jobs. A signal with a known id is not stored again.
    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, StoreError>;

    /// The signals of a job with any of these names that no step has taken, in the order of their arrival, at most `limit`. It takes
    /// none of them: [`NewStep::takes`] does.
    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError>;

    /// Marks signals as taken without storing a step, because the handler cannot read them. Returns false, and changes nothing, if the
    /// lease is lost.
    async fn skip_signals(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError>;

    /// Makes each job due whose [`WaitCondition`] is met. Returns for each job whether it became due.
    ///
    /// The time spent waiting does not count for the time budget. If too many children of a fan-out have failed, the
    /// call first cancels its other children, as [`crate::Store::cancel`] does, except the detached ones. A parent with
    /// a live awaited child is claimed before that child: it becomes due one millisecond before its last attempt
    /// started, and it enqueued the child after that.
    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError>;

    /// Does the work of [`Steps::resume`] for the next `limit` waiting jobs after `after`, in the order of their ids. Also ends the
    /// jobs that a crash left live below cancelled or dead jobs.
    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<SweepResult, StoreError>;

    /// Pauses jobs. Pending and retrying jobs start to wait at once, other jobs before their next attempt.
    async fn pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError>;

    /// Ends the pause of jobs.
    async fn unpause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError>;

    /// Removes the steps of dead jobs, so that a redrive starts from the beginning. Keeps their signals.
    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError>;
}

/// The parent of a child job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Parent {
    /// The id of the parent.
    pub id: JobId,
    /// The place of the fan-out step in the parent.
    pub branch: u32,
    /// Whether the child continues when its parent is cancelled or dead.
    #[serde(default)]
    pub detached: bool,
}

impl Parent {
    /// The parent of a child that ends with its parent.
    pub fn new(id: JobId, branch: u32) -> Self {
        Self { id, branch, detached: false }
    }
}

/// The condition that ends the wait of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WaitCondition {
    /// A signal with this name arrives.
    Signal(SignalName),
    /// All children of a fan-out have ended, or more than `failures_max` of them are dead or cancelled.
    Children {
        /// The place of the fan-out step.
        branch: u32,
        /// How many children may fail.
        failures_max: u32,
    },
    /// The pause of the job ends.
    Unpaused,
    /// Its partition key has a free slot, and no job must run before it.
    FreeSlot,
    /// Any of these is met. Only [`WaitCondition::Signal`] and [`WaitCondition::Children`], at most [`AWAITS_MAX`].
    Any(Vec<WaitCondition>),
}

impl WaitCondition {
    /// The condition that any of these is met. Duplicates count once. A single condition is returned unchanged.
    pub fn any(awaits: impl IntoIterator<Item = Self>) -> Result<Self, Invalid> {
        let mut parts: Vec<Self> = Vec::new();
        for part in awaits.into_iter().flat_map(Self::into_parts) {
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
        match parts.len() {
            0 => Err(Invalid::new("awaits", "must name at least one thing to wait for")),
            1 => Ok(parts.remove(0)),
            2..=AWAITS_MAX => Ok(Self::Any(parts)),
            count => {
                let problem = format!("has {count} things to wait for, at most {AWAITS_MAX} are allowed");
                Err(Invalid::new("awaits", problem))
            }
        }
    }

    fn into_parts(self) -> Vec<Self> {
        match self {
            Self::Any(parts) => parts,
            Self::Signal(_) | Self::Children { .. } | Self::Unpaused | Self::FreeSlot => vec![self],
        }
    }

    /// Checks the limits that every store has.
    pub fn check(&self) -> Result<(), Invalid> {
        let Self::Any(parts) = self else { return Ok(()) };
        if parts.iter().any(|part| !matches!(part, Self::Signal(_) | Self::Children { .. })) {
            return Err(Invalid::new("awaits", "only signals and fan-outs can be waited for together"));
        }
        Self::any(parts.iter().cloned()).map(drop)
    }

    /// The parts of a [`WaitCondition::Any`] as JSON, for a store that writes them to one column.
    pub fn parts_json(&self) -> String {
        let parts = self.parts().iter().map(|part| match part {
            Self::Children { branch, failures_max } => {
                serde_json::json!({ "branch": branch, "failures": failures_max })
            }
            Self::Signal(name) => serde_json::json!({ "signal": name.as_str() }),
            // Refused by `check`.
            Self::Unpaused | Self::FreeSlot | Self::Any(_) => serde_json::Value::Null,
        });
        serde_json::Value::from_iter(parts).to_string()
    }

    /// Reads the JSON of [`WaitCondition::parts_json`].
    pub fn from_parts_json(json: &str) -> Result<Self, Invalid> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Part {
            Signal { signal: SignalName },
            Children { branch: u32, failures: u32 },
        }
        let parts: Vec<Part> =
            serde_json::from_str(json).map_err(|error| Invalid::new("awaits", error.to_string()))?;
        let parts = parts.into_iter().map(|part| match part {
            Part::Signal { signal } => Self::Signal(signal),
            Part::Children { branch, failures } => Self::Children { branch, failures_max: failures },
        });
        Ok(Self::Any(parts.collect()))
    }

    /// The parts of a [`WaitCondition::Any`], or the condition itself.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Any(parts) => parts,
            Self::Signal(_) | Self::Children { .. } | Self::Unpaused | Self::FreeSlot => {
                std::slice::from_ref(self)
            }
        }
    }
}

/// A step at place `RACE_PLACES + n` records that the wait at place `n` completed before other waits that were open at the same time.
/// A replay completes that wait first.
pub const RACE_PLACES: u32 = 1 << 31;

/// A stored step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The place of the step in the job, from 0.
    pub place: u32,
    /// The name of the step. A different name in a replay shows that the code has changed.
    pub name: StepName,
    /// The kind of the step.
    pub kind: StepKind,
    /// The result of the step, in the format of its kind.
    pub value: Vec<u8>,
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum StepKind {
    /// The step succeeded with this value.
    Done = 0,
    /// The step failed for good with this error.
    Failed = 1,
    /// A timer that ends at this time.
    Timer = 2,
    /// Children with these ids.
    Children = 3,
    /// A signal with this value.
    Signal = 4,
    /// The time at which a wait for a signal ends.
    Deadline = 5,
    /// The version of the code that this run uses.
    Version = 6,
    /// Which of several waits ended first, with its value.
    Selected = 7,
}

impl StepKind {
    /// Every kind, in the order of their codes.
    pub const ALL: [Self; 8] = [
        Self::Done,
        Self::Failed,
        Self::Timer,
        Self::Children,
        Self::Signal,
        Self::Deadline,
        Self::Version,
        Self::Selected,
    ];

    /// The number that stores write. It never changes its meaning.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The kind with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// A step to store.
#[derive(Debug, Clone, PartialEq)]
pub struct NewStep {
    /// The lease of the attempt that executed the step.
    pub lease: Lease,
    /// The step.
    pub step: Step,
    /// Jobs to enqueue in the same write.
    pub children: Vec<NewJob>,
    /// The id of the signal that the step takes. If the signal is gone or taken, nothing is stored.
    pub takes: Option<Uuid>,
}

impl NewStep {
    /// A step without children or signal.
    pub fn new(lease: Lease, step: Step) -> Self {
        Self { lease, step, children: Vec::new(), takes: None }
    }

    /// Checks the limits that every store has.
    pub fn check(&self) -> Result<(), Invalid> {
        // The value of a selected step is a result of up to the full length, plus the name of the wait that was
        // selected.
        let header = if self.step.kind == StepKind::Selected { 2 * NAME_BYTES_MAX } else { 0 };
        if self.step.value.len() > STEP_BYTES_MAX + header {
            let (length, name) = (self.step.value.len(), &self.step.name);
            let problem = format!(
                "the result of step \"{name}\" is {length} bytes long, at most {STEP_BYTES_MAX} are allowed"
            );
            return Err(Invalid::new("step", problem));
        }
        self.children.iter().try_for_each(NewJob::check)
    }

    /// Checks the limits of a batch.
    pub fn check_all(steps: &[Self]) -> Result<(), Invalid> {
        check_batch(steps.len())?;
        steps.iter().try_for_each(Self::check)?;
        let children: usize = steps.iter().map(|step| step.children.len()).sum();
        if children > BATCH_ITEMS_MAX {
            let problem = format!("has {children} items, at most {BATCH_ITEMS_MAX} are allowed");
            return Err(Invalid::new("children", problem));
        }
        Ok(())
    }
}

/// The result of storing a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RememberResult {
    /// The step is stored.
    Stored(Step),
    /// This step was stored at the place before. Nothing changed.
    AlreadyStored(Step),
    /// The signal is gone, or another step took it. Nothing changed.
    NoSignal,
    /// Someone requested a cancel, so the job gets no more children. Nothing changed.
    CancelRequested,
    /// Another worker holds the lease or has settled it. Nothing changed.
    LeaseLost,
}

/// A signal for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// The job.
    pub job: JobId,
    /// The identity of the signal: sending it again changes nothing.
    pub id: Uuid,
    /// The name of the signal.
    pub name: SignalName,
    /// The content of the signal.
    pub value: Vec<u8>,
}

impl Signal {
    /// Checks the limits of a batch.
    pub fn check_all(signals: &[Self]) -> Result<(), Invalid> {
        check_batch(signals.len())?;
        match signals.iter().find(|signal| signal.value.len() > STEP_BYTES_MAX) {
            Some(_) => Err(Invalid::new("signal", format!("at most {STEP_BYTES_MAX} bytes are allowed"))),
            None => Ok(()),
        }
    }
}

/// The result of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalResult {
    /// The signal is stored, now or by an earlier call.
    Stored,
    /// The job has ended, in this state.
    Ended(State),
    /// There is no such job.
    NotFound,
}

/// The result of a sweep.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SweepResult {
    /// The jobs that became due.
    pub resumed: Vec<JobId>,
    /// The last job that was examined: the next sweep starts after it. None at the end.
    pub last: Option<JobId>,
}

/// The result of pausing or unpausing a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseResult {
    /// The change took effect. The job is now in this state.
    Done(State),
    /// The job had ended before, in this state.
    Ended(State),
    /// There is no such job.
    NotFound,
}

/// The result of removing a job's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgetResult {
    /// The steps are removed.
    Done,
    /// The job is in this state, and not dead.
    NotDead(State),
    /// There is no such job.
    NotFound,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oversized_step_is_rejected_with_its_name() {
        let step = Step {
            place: 0,
            name: StepName::new("charge").unwrap(),
            kind: StepKind::Done,
            value: vec![0; STEP_BYTES_MAX + 1],
        };
        let lease = Lease { id: JobId(Uuid::nil()), epoch: 1 };
        let error = NewStep::new(lease, step).check().unwrap_err();
        assert!(error.field == "step" && error.to_string().contains("charge"), "{error}");
    }

    #[test]
    fn combined_conditions_are_flat_and_without_duplicates() {
        let signal = |name: &str| WaitCondition::Signal(SignalName::new(name).unwrap());
        let children = WaitCondition::Children { branch: 3, failures_max: 0 };
        assert_eq!(WaitCondition::any([signal("a"), signal("a")]).unwrap(), signal("a"));
        let two = WaitCondition::any([signal("a"), children.clone()]).unwrap();
        assert_eq!(two.parts(), [signal("a"), children.clone()]);
        assert_eq!(
            WaitCondition::any([two, signal("b")]).unwrap().parts(),
            [signal("a"), children.clone(), signal("b")]
        );
        let any = WaitCondition::any([signal("a\"b"), children.clone()]).unwrap();
        assert_eq!(WaitCondition::from_parts_json(&any.parts_json()).unwrap(), any);
        assert!(
            any.check().is_ok()
                && WaitCondition::Any(vec![WaitCondition::FreeSlot, WaitCondition::Unpaused])
                    .check()
                    .is_err()
        );
        assert_eq!(WaitCondition::any([]).unwrap_err().field, "awaits");
        let many = (0..=AWAITS_MAX).map(|n| signal(&n.to_string()));
        assert!(WaitCondition::any(many).unwrap_err().to_string().contains("at most"));
    }

    #[test]
    fn kinds_keep_their_numbers() {
        for (code, kind) in StepKind::ALL.into_iter().enumerate() {
            assert_eq!((usize::from(kind.code()), StepKind::from_code(code as u8)), (code, Some(kind)));
        }
    }
}
