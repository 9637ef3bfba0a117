//! What durable jobs add to a store: steps that are remembered, children, signals, and waiting for them.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::invalid::Invalid;
use crate::job::{JobId, Lease, NewJob};
use crate::lifecycle::State;
use crate::limits::{AWAITS_MAX, BATCH_ITEMS_MAX, NAME_BYTES_MAX, STEP_BYTES_MAX};
use crate::names::{SignalName, StepName};
use crate::store::{StoreError, check_batch};

/// What a job has done so far, and what it waits for. Each method is one atomic write or read.
///
/// Whoever adds a fact that someone may wait for (a child's end, a signal, an end of a hold) calls [`Steps::resume`]
/// afterwards, and so does whoever has just begun to wait: one of the two sees both. Should both die, [`Steps::sweep`] does.
///
/// A job that ends as cancelled or dead ends everything below it: see [`crate::Store::settle`] and [`crate::Store::cancel`].
#[async_trait]
pub trait Steps: Send + Sync {
    /// A job's remembered steps in their order, those from place `from` on, at most `limit`.
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError>;

    /// Remembers steps under their leases, each once: what is remembered at a place stays. Children are enqueued and the
    /// signal is taken in the same write, or not at all. A job whose end was requested gets no more children.
    async fn remember(&self, memories: Vec<Memory>) -> Result<Vec<Remembered>, StoreError>;

    /// Leaves signals for jobs that have not ended. A repeat under the same id leaves nothing.
    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<Signalled>, StoreError>;

    /// The signals of a job by any of these names that no step has taken, in the order of their arrival, at most `limit`.
    /// They stay as they are: [`Memory::takes`] takes one.
    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError>;

    /// Marks signals of a job as taken without remembering a step, because its handler cannot read them. False, and nothing
    /// changed, if the lease is lost.
    async fn set_aside(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError>;

    /// Makes those of the jobs due whose [`Await`] has come about, and says which did.
    ///
    /// The time spent waiting does not count for the budget. A fan-out of which too many children have failed ends its other
    /// children first, as [`crate::Store::cancel`] would, except the detached ones. A parent of which an awaited child has not
    /// ended goes before that child: it is due a millisecond before its last attempt started, because it enqueued the child
    /// after that.
    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError>;

    /// Does what [`Steps::resume`] does for the next `limit` jobs that wait, in the order of their ids, after `after`. Also
    /// ends what a crash has left running below jobs that ended as cancelled or dead.
    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError>;

    /// Holds jobs: those that wait for their time are set aside at once, others before their next attempt.
    async fn hold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError>;

    /// Lets jobs go on that were held.
    async fn unhold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError>;

    /// Forgets the steps of dead jobs, so that a redrive starts from nothing. Their signals stay.
    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<Forgotten>, StoreError>;
}

/// Whose child a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Parent {
    /// The parent.
    pub id: JobId,
    /// Which of the parent's fan-outs it belongs to: the place of the step.
    pub branch: u32,
    /// Whether it goes on when its parent ends as cancelled or dead.
    #[serde(default)]
    pub detached: bool,
}

impl Parent {
    /// The parent of a child that ends with it.
    pub fn new(id: JobId, branch: u32) -> Self {
        Self { id, branch, detached: false }
    }
}

/// What a job waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Await {
    /// A signal by this name.
    Signal(SignalName),
    /// Until the children of a fan-out have ended, or more than `failures_max` of them are dead or cancelled.
    Children {
        /// The fan-out.
        branch: u32,
        /// How many may fail.
        failures_max: u32,
    },
    /// Until nobody holds it.
    Unhold,
    /// Its turn in its partition: a claim has set it aside for want of room, or behind one that comes before it.
    Turn,
    /// Whichever of these comes first: [`Await::Signal`] and [`Await::Children`] only, at most [`AWAITS_MAX`].
    Any(Vec<Await>),
}

impl Await {
    /// One wait for all of these. The same wait counts once; a single one stays what it is.
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
            Self::Signal(_) | Self::Children { .. } | Self::Unhold | Self::Turn => vec![self],
        }
    }

    /// Refuses a wait that no store would take.
    pub fn check(&self) -> Result<(), Invalid> {
        let Self::Any(parts) = self else { return Ok(()) };
        if parts.iter().any(|part| !matches!(part, Self::Signal(_) | Self::Children { .. })) {
            return Err(Invalid::new("awaits", "only signals and fan-outs can be waited for together"));
        }
        Self::any(parts.iter().cloned()).map(drop)
    }

    /// The parts of an [`Await::Any`] as JSON, for a store that keeps them in one column.
    pub fn parts_json(&self) -> String {
        let parts = self.parts().iter().map(|part| match part {
            Self::Children { branch, failures_max } => {
                serde_json::json!({ "branch": branch, "failures": failures_max })
            }
            Self::Signal(name) => serde_json::json!({ "signal": name.as_str() }),
            // Refused by `check`.
            Self::Unhold | Self::Turn | Self::Any(_) => serde_json::Value::Null,
        });
        serde_json::Value::from_iter(parts).to_string()
    }

    /// Reads what [`Await::parts_json`] has written.
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

    /// What is waited for, one by one.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Any(parts) => parts,
            Self::Signal(_) | Self::Children { .. } | Self::Unhold | Self::Turn => std::slice::from_ref(self),
        }
    }
}

/// From this place on, a step says only that the wait at the place so far below it completed while others could have: a replay
/// completes it first.
pub const RACE_PLACES: u32 = 1 << 31;

/// A remembered step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its place in the job, from 0.
    pub place: u32,
    /// Its name, to notice code that has changed.
    pub name: StepName,
    /// What it is.
    pub kind: StepKind,
    /// What it came to, as its kind writes it.
    pub value: Vec<u8>,
}

/// What a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum StepKind {
    /// It succeeded with this value.
    Done = 0,
    /// It failed for good with this error.
    Failed = 1,
    /// A timer that ends at this instant.
    Timer = 2,
    /// Children with these ids.
    Children = 3,
    /// A signal with this value.
    Signal = 4,
    /// A signal was waited for until this instant.
    Deadline = 5,
    /// The version of the code that this run goes by.
    Version = 6,
    /// Which of several things came first, with its value.
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

    /// The number that stores keep; it never changes meaning.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The kind with that number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// A step to remember.
#[derive(Debug, Clone, PartialEq)]
pub struct Memory {
    /// The lease of the attempt that made it.
    pub lease: Lease,
    /// The step.
    pub step: Step,
    /// Jobs to enqueue with it.
    pub children: Vec<NewJob>,
    /// The signal that the step takes, by its id. If it is gone or was taken before, nothing is remembered.
    pub takes: Option<Uuid>,
}

impl Memory {
    /// A step and nothing more.
    pub fn new(lease: Lease, step: Step) -> Self {
        Self { lease, step, children: Vec::new(), takes: None }
    }

    /// Refuses what no store would take.
    pub fn check(&self) -> Result<(), Invalid> {
        // A signal may be as long as a result, and a selected one comes with the name of what was selected.
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

    /// Refuses a batch that no store would take.
    pub fn check_all(memories: &[Self]) -> Result<(), Invalid> {
        check_batch(memories.len())?;
        memories.iter().try_for_each(Self::check)?;
        let children: usize = memories.iter().map(|memory| memory.children.len()).sum();
        if children > BATCH_ITEMS_MAX {
            let problem = format!("has {children} items, at most {BATCH_ITEMS_MAX} are allowed");
            return Err(Invalid::new("children", problem));
        }
        Ok(())
    }
}

/// The result of remembering a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remembered {
    /// It is remembered.
    Kept(Step),
    /// This step was remembered there before; nothing changed.
    Before(Step),
    /// The signal is gone, or another step took it; nothing changed.
    NoSignal,
    /// The job's end was requested, so that it gets no more children; nothing changed.
    CancelRequested,
    /// Someone else holds or has settled the lease; nothing changed.
    LeaseLost,
}

/// A signal for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// The job.
    pub job: JobId,
    /// Makes it repeatable.
    pub id: Uuid,
    /// Its name.
    pub name: SignalName,
    /// What it says.
    pub value: Vec<u8>,
}

impl Signal {
    /// Refuses a batch that no store would take.
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
pub enum Signalled {
    /// It is there, or was before.
    Kept,
    /// The job has ended, in this state.
    Ended(State),
    /// There is no such job.
    NotFound,
}

/// What a sweep came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Swept {
    /// Jobs that were made due.
    pub resumed: Vec<JobId>,
    /// The last job that was looked at, where the next sweep goes on; none at the end.
    pub last: Option<JobId>,
}

/// The result of a hold, or of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It is held, or no longer; the job is now in this state.
    Done(State),
    /// It had ended before, in this state.
    Ended(State),
    /// There is no such job.
    NotFound,
}

/// The result of forgetting a job's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// There are none any more.
    Done,
    /// It is not dead but in this state.
    NotDead(State),
    /// There is no such job.
    NotFound,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_refused_by_name() {
        let step = Step {
            place: 0,
            name: StepName::new("charge").unwrap(),
            kind: StepKind::Done,
            value: vec![0; STEP_BYTES_MAX + 1],
        };
        let lease = Lease { id: JobId(Uuid::nil()), epoch: 1 };
        let error = Memory::new(lease, step).check().unwrap_err();
        assert!(error.field == "step" && error.to_string().contains("charge"), "{error}");
    }

    #[test]
    fn waits_for_several_things_are_flat_and_without_repeats() {
        let signal = |name: &str| Await::Signal(SignalName::new(name).unwrap());
        let children = Await::Children { branch: 3, failures_max: 0 };
        assert_eq!(Await::any([signal("a"), signal("a")]).unwrap(), signal("a"));
        let two = Await::any([signal("a"), children.clone()]).unwrap();
        assert_eq!(two.parts(), [signal("a"), children.clone()]);
        assert_eq!(
            Await::any([two, signal("b")]).unwrap().parts(),
            [signal("a"), children.clone(), signal("b")]
        );
        let any = Await::any([signal("a\"b"), children.clone()]).unwrap();
        assert_eq!(Await::from_parts_json(&any.parts_json()).unwrap(), any);
        assert!(any.check().is_ok() && Await::Any(vec![Await::Turn, Await::Unhold]).check().is_err());
        assert_eq!(Await::any([]).unwrap_err().field, "awaits");
        let many = (0..=AWAITS_MAX).map(|n| signal(&n.to_string()));
        assert!(Await::any(many).unwrap_err().to_string().contains("at most"));
    }

    #[test]
    fn kinds_keep_their_numbers() {
        for (code, kind) in StepKind::ALL.into_iter().enumerate() {
            assert_eq!((usize::from(kind.code()), StepKind::from_code(code as u8)), (code, Some(kind)));
        }
    }
}
