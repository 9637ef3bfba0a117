//! The states of a job, why one is dead, and what one waits for.

use std::fmt;

use redrive_core::{Job, Reason, State, Timestamp, WaitCondition};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::task::TASK_KIND;

/// The state of a job or task.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Due at `nextRunAt`, and no attempt of this run has failed.
    #[default]
    Pending,
    /// Due at `nextRunAt`, after a failed attempt.
    Retrying,
    /// A worker holds the lease.
    Running,
    /// Waits for a signal, a timer, its children, a free slot, or an operator who paused it. `waitingFor` says for what.
    Waiting,
    /// Ended with success.
    Succeeded,
    /// Failed for good; a dead letter until someone redrives or discards it.
    Dead,
    /// Ended because someone asked for it.
    Cancelled,
}

impl JobState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Retrying,
        Self::Running,
        Self::Waiting,
        Self::Succeeded,
        Self::Dead,
        Self::Cancelled,
    ];

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        State::from(self).name()
    }

    /// The state that the API shows for a job. A task that a gate holds back, or that its node defers, stays `pending`.
    pub fn of(job: &Job, now: Timestamp) -> Self {
        let is_task_without_wait = job.kind.as_str() == TASK_KIND && job.awaits.is_none();
        if is_task_without_wait { job.state.into() } else { job.shown_state(now).into() }
    }

    /// The stored states whose jobs may be shown in this state. [`JobState::of`] decides for each job.
    pub fn stored_states(self) -> Vec<State> {
        match self {
            Self::Waiting => vec![State::Waiting, State::Pending, State::Retrying],
            state => vec![state.into()],
        }
    }

    /// Whether the stored state alone does not decide if a job is shown in this state. A filter must then
    /// check each job with [`JobState::of`].
    pub fn is_derived(self) -> bool {
        matches!(self, Self::Pending | Self::Retrying | Self::Waiting)
    }

    /// Whether a job in this state has ended.
    pub fn is_final(self) -> bool {
        State::from(self).is_final()
    }
}

impl From<State> for JobState {
    fn from(state: State) -> Self {
        match state {
            State::Pending => Self::Pending,
            State::Retrying => Self::Retrying,
            State::Running => Self::Running,
            State::Waiting => Self::Waiting,
            State::Succeeded => Self::Succeeded,
            State::Dead => Self::Dead,
            State::Cancelled => Self::Cancelled,
        }
    }
}

impl From<JobState> for State {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Pending => Self::Pending,
            JobState::Retrying => Self::Retrying,
            JobState::Running => Self::Running,
            JobState::Waiting => Self::Waiting,
            JobState::Succeeded => Self::Succeeded,
            JobState::Dead => Self::Dead,
            JobState::Cancelled => Self::Cancelled,
        }
    }
}

/// Why a job is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// The last attempt that the policy allows has failed.
    #[serde(alias = "ATTEMPTS_EXHAUSTED")]
    AttemptsExhausted,
    /// The next attempt would start after the end of the time budget.
    #[serde(alias = "BUDGET_EXCEEDED")]
    BudgetExceeded,
    /// The policy does not retry this kind of failure.
    #[serde(alias = "NOT_RETRYABLE")]
    NotRetryable,
    /// The stored body of the task is gone or damaged.
    #[serde(alias = "BODY_LOST")]
    BodyLost,
    /// redrive must not send to this target.
    #[serde(alias = "TARGET_REFUSED")]
    TargetRefused,
}

impl From<Reason> for DeadReason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::AttemptsExhausted => Self::AttemptsExhausted,
            Reason::BudgetExceeded => Self::BudgetExceeded,
            Reason::NotRetryable => Self::NotRetryable,
            Reason::BodyLost => Self::BodyLost,
            Reason::TargetRefused => Self::TargetRefused,
        }
    }
}

impl From<DeadReason> for Reason {
    fn from(reason: DeadReason) -> Self {
        match reason {
            DeadReason::AttemptsExhausted => Self::AttemptsExhausted,
            DeadReason::BudgetExceeded => Self::BudgetExceeded,
            DeadReason::NotRetryable => Self::NotRetryable,
            DeadReason::BodyLost => Self::BodyLost,
            DeadReason::TargetRefused => Self::TargetRefused,
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl DeadReason {
    /// Every reason.
    pub const ALL: [Self; 5] = [
        Self::AttemptsExhausted,
        Self::BudgetExceeded,
        Self::NotRetryable,
        Self::BodyLost,
        Self::TargetRefused,
    ];

    /// The reason as a clause of a sentence.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::AttemptsExhausted => "the last attempt that the policy allows has failed",
            Self::BudgetExceeded => "the time budget ran out",
            Self::NotRetryable => "the policy does not retry this failure",
            Self::BodyLost => "the stored body is missing or damaged",
            Self::TargetRefused => "redrive must not send to this target",
        }
    }

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        Reason::from(self).name()
    }
}

/// What a job in state `waiting` waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingFor {
    /// What it waits for.
    pub kind: WaitingForKind,
    /// The same as a sentence.
    pub detail: String,
    /// When the wait ends at the latest, in epoch ms; absent if it has no timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// The names of the signals, any of which ends the wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub signals: Vec<String>,
    /// The place of the step whose children it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<u32>,
    /// How many of the children may fail. One more failure ends the wait at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures_max: Option<u32>,
}

/// The kinds of things that a job can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitingForKind {
    /// A signal.
    Signal,
    /// The end of a durable sleep.
    Timer,
    /// The end of its children.
    Children,
    /// A free slot under the limits of its queue or partition key.
    Slot,
    /// An operator who resumes it.
    Unpause,
    /// The first of several signals and fan-outs.
    Any,
}

impl WaitingFor {
    /// What a job waits for, if [`JobState::of`] is `waiting`.
    pub fn of(job: &Job, now: Timestamp) -> Option<Self> {
        if JobState::of(job, now) != JobState::Waiting {
            return None;
        }
        // A stored `waiting` has no due time; a wait with a timeout is due when the timeout ends.
        let until = job.state.is_claimable().then(|| job.next_run_at.as_ms());
        let waiting = match &job.awaits {
            Some(condition) => Self::show(condition),
            None if job.paused => Self::show(&WaitCondition::Unpaused),
            None => Self::new(WaitingForKind::Timer, "it sleeps until its timer ends".to_owned()),
        };
        Some(Self { until, ..waiting })
    }

    fn new(kind: WaitingForKind, detail: String) -> Self {
        Self { kind, detail, until: None, signals: Vec::new(), branch: None, failures_max: None }
    }

    fn show(condition: &WaitCondition) -> Self {
        match condition {
            WaitCondition::Signal(name) => {
                let detail = format!("it waits for {}", describe(condition));
                Self { signals: vec![name.to_string()], ..Self::new(WaitingForKind::Signal, detail) }
            }
            WaitCondition::Children { branch, failures_max } => {
                let detail = format!("it waits until {}", describe(condition));
                let children = Self::new(WaitingForKind::Children, detail);
                Self { branch: Some(*branch), failures_max: Some(*failures_max), ..children }
            }
            WaitCondition::Any(parts) => {
                let listed: Vec<String> = parts.iter().map(describe).collect();
                let detail = format!("it waits for whichever comes first: {}", listed.join("; "));
                let names = parts.iter().filter_map(|part| match part {
                    WaitCondition::Signal(name) => Some(name.to_string()),
                    WaitCondition::Children { .. }
                    | WaitCondition::Unpaused
                    | WaitCondition::FreeSlot
                    | WaitCondition::Any(_) => None,
                });
                Self { signals: names.collect(), ..Self::new(WaitingForKind::Any, detail) }
            }
            WaitCondition::Unpaused => {
                Self::new(WaitingForKind::Unpause, "it is paused until someone resumes it".to_owned())
            }
            WaitCondition::FreeSlot => Self::new(
                WaitingForKind::Slot,
                "it waits for a free slot: its limits are reached, or another job comes first".to_owned(),
            ),
        }
    }
}

fn describe(condition: &WaitCondition) -> String {
    match condition {
        WaitCondition::Signal(name) => format!("the signal \"{name}\""),
        WaitCondition::Children { branch, failures_max: 0 } => {
            format!("the children of step {branch} have ended, or one of them has failed")
        }
        WaitCondition::Children { branch, failures_max } => {
            format!(
                "the children of step {branch} have ended, or more than {failures_max} of them have failed"
            )
        }
        WaitCondition::Unpaused | WaitCondition::FreeSlot | WaitCondition::Any(_) => {
            "something else".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::SignalName;

    use super::*;

    #[test]
    fn each_state_is_written_as_the_engine_names_it() {
        for state in State::ALL {
            let shown = JobState::from(state);
            assert_eq!(serde_json::to_value(shown).unwrap(), state.name());
            assert_eq!(State::from(shown), state);
        }
    }

    #[test]
    fn a_wait_condition_is_described_in_words() {
        let children = |failures_max| WaitCondition::Children { branch: 2, failures_max };
        for (condition, words) in [
            (WaitCondition::Signal(SignalName::new("go").unwrap()), "the signal \"go\""),
            (children(0), "the children of step 2 have ended, or one of them"),
            (children(3), "or more than 3 of them"),
            (WaitCondition::Unpaused, "paused"),
            (WaitCondition::FreeSlot, "a free slot"),
            (
                WaitCondition::any([WaitCondition::Signal(SignalName::new("go").unwrap()), children(0)])
                    .unwrap(),
                "whichever comes first: the signal \"go\"; the children of step 2 have ended",
            ),
        ] {
            let shown = WaitingFor::show(&condition);
            assert!(shown.detail.contains(words), "{shown:?}");
        }
    }

    #[test]
    fn each_reason_is_written_as_the_engine_names_it() {
        for reason in Reason::ALL {
            let shown = DeadReason::from(reason);
            assert_eq!(serde_json::to_value(shown).unwrap(), reason.name());
            let upper_case = reason.name().to_uppercase();
            assert_eq!(serde_json::from_value::<DeadReason>(upper_case.into()).unwrap(), shown);
        }
    }
}
