//! A job of any kind on the wire, in the engine's own words: how it is shown, its attempts and its steps.

use redrive_core::quota::{Order, Partition};
use redrive_core::steps::{Step, StepKind};
use redrive_core::{Attempt, Await, JobId, Parent, State};
use redrive_delivery::KIND;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::content::{Content, Detail};
use super::policy::ms;

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Due at `nextRunAt` for an attempt that follows no failure.
    Pending,
    /// Due at `nextRunAt` for an attempt that follows a failure.
    Retrying,
    /// A worker has it.
    Running,
    /// Set aside until something resumes it.
    Waiting,
    /// Ended well.
    Succeeded,
    /// Beyond help until someone drives it again.
    Dead,
    /// Ended by request.
    Cancelled,
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

/// A job of any kind; one of kind `delivery` is a task, under the same id.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// Its identity.
    #[schema(format = "uuid")]
    pub job_id: String,
    /// Whose it is; absent for the default tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it is: it selects the handler.
    pub kind: String,
    /// Which queue it is in.
    pub queue: String,
    /// Where it is in its life.
    pub state: JobState,
    /// What it waits for beside its time, while it does.
    pub awaits: Option<Awaits>,
    /// Whether someone has paused it: no further attempt is made.
    pub held: bool,
    /// Which run it is: 1, and one more for each redrive.
    pub run: u32,
    /// Attempts charged in this run.
    pub attempt: u32,
    /// Attempts that its policy allows.
    pub max_attempts: Option<u32>,
    /// Its policy.
    pub policy_id: String,
    /// The version of its policy.
    pub policy_version: u32,
    /// From 0 to 9, higher ones first.
    pub priority: u8,
    /// When it was enqueued, in epoch ms.
    pub created_at: i64,
    /// When the next attempt is due, in epoch ms, while it is pending or retrying.
    pub next_run_at: Option<i64>,
    /// When the current or last attempt was started, in epoch ms.
    pub started_at: Option<i64>,
    /// Until when a worker has it, in epoch ms, while it is running.
    pub lease_until: Option<i64>,
    /// The worker that has or had it.
    pub worker: Option<String>,
    /// When it ended, in epoch ms.
    pub finished_at: Option<i64>,
    /// Whether someone asked for its end while it was running.
    pub cancel_requested: bool,
    /// What last went wrong.
    pub last_error: Option<String>,
    /// With which HTTP status or gRPC code the other side last answered.
    pub last_status: Option<u16>,
    /// Why it is dead.
    pub reason: Option<String>,
    /// Whose child it is.
    pub parent: Option<ParentOfJob>,
    /// Which jobs of its queue it shares bounds or an order with.
    pub partition: Option<PartitionOfJob>,
    /// What makes its enqueue repeatable.
    pub idempotency_key: Option<String>,
    /// What it is about: where a delivery goes.
    pub subject: Option<String>,
    /// How long one attempt may take, where the job says so.
    pub timeout_ms: Option<u64>,
    /// What its creator keeps beside the payload.
    pub metadata: Option<Content>,
    /// What the handler gets. That of a delivery is left out, since a call may carry secrets: see its task.
    pub payload: Content,
    /// What the handler returned.
    pub output: Option<Content>,
}

/// What a job waits for beside its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Awaits {
    /// What sort of thing.
    pub what: AwaitsWhat,
    /// The same in words.
    pub detail: String,
    /// The signal's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// The names of several signals, of which it waits for the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<String>,
    /// The place of the step whose children it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<u32>,
    /// How many of the children may fail before it goes on at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures_max: Option<u32>,
}

/// What sort of thing a job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AwaitsWhat {
    /// A signal.
    Signal,
    /// The end of its children.
    Children,
    /// That someone resumes it.
    Unhold,
    /// Its turn in its partition.
    Turn,
    /// Whichever of several signals and fan-outs comes first.
    Any,
}

impl Awaits {
    /// What a job waits for, in words.
    pub fn show(awaits: &Await) -> Self {
        let plain = |what, detail: String| Self {
            what,
            detail,
            signal: None,
            signals: Vec::new(),
            branch: None,
            failures_max: None,
        };
        match awaits {
            Await::Signal(name) => {
                let detail = format!("it waits for {}", part(awaits));
                Self { signal: Some(name.to_string()), ..plain(AwaitsWhat::Signal, detail) }
            }
            Await::Children { branch, failures_max } => {
                let children = plain(AwaitsWhat::Children, format!("it waits until {}", part(awaits)));
                Self { branch: Some(*branch), failures_max: Some(*failures_max), ..children }
            }
            Await::Any(parts) => {
                let listed: Vec<String> = parts.iter().map(part).collect();
                let detail = format!("it waits for whichever comes first: {}", listed.join("; "));
                let names = parts.iter().filter_map(|part| match part {
                    Await::Signal(name) => Some(name.to_string()),
                    Await::Children { .. } | Await::Unhold | Await::Turn | Await::Any(_) => None,
                });
                Self { signals: names.collect(), ..plain(AwaitsWhat::Any, detail) }
            }
            Await::Unhold => plain(AwaitsWhat::Unhold, "it is paused until someone resumes it".to_owned()),
            Await::Turn => plain(
                AwaitsWhat::Turn,
                "it waits for its turn: its partition has no room, or another job comes first".to_owned(),
            ),
        }
    }
}

/// One thing that a job waits for.
fn part(awaits: &Await) -> String {
    match awaits {
        Await::Signal(name) => format!("the signal \"{name}\""),
        Await::Children { branch, failures_max: 0 } => {
            format!("the children of step {branch} have ended, or one of them has failed")
        }
        Await::Children { branch, failures_max } => {
            format!(
                "the children of step {branch} have ended, or more than {failures_max} of them have failed"
            )
        }
        Await::Unhold | Await::Turn | Await::Any(_) => "something else".to_owned(),
    }
}

/// Whose child a job is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParentOfJob {
    /// The parent.
    #[schema(format = "uuid")]
    pub job_id: String,
    /// The place of the parent's step that it belongs to.
    pub branch: u32,
    /// Whether it goes on when its parent is cancelled or dead.
    #[serde(default)]
    pub detached: bool,
}

impl From<Parent> for ParentOfJob {
    fn from(parent: Parent) -> Self {
        Self { job_id: parent.id.to_string(), branch: parent.branch, detached: parent.detached }
    }
}

/// Which jobs of its queue a job shares bounds or an order with.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionOfJob {
    /// What they have in common.
    pub key: String,
    /// `any`: side by side; `strict`: one after the other.
    pub order: String,
}

impl From<&Partition> for PartitionOfJob {
    fn from(partition: &Partition) -> Self {
        let order = match partition.order {
            Order::Any => "any",
            Order::Strict => "strict",
        };
        Self { key: partition.key.to_string(), order: order.to_owned() }
    }
}

impl Job {
    /// A job as it is; `max_attempts` is its policy's.
    pub fn show(job: &redrive_core::Job, max_attempts: Option<u32>, detail: Detail) -> Self {
        let payload = match job.kind.as_str() {
            KIND if detail != Detail::Hidden => Content::left_out(&job.payload),
            _ => Content::show(&job.payload, detail),
        };
        Self {
            job_id: job.id.to_string(),
            tenant: Some(job.tenant.as_str()).filter(|tenant| !tenant.is_empty()).map(str::to_owned),
            kind: job.kind.to_string(),
            queue: job.queue.to_string(),
            state: job.state.into(),
            awaits: job.awaits.as_ref().map(Awaits::show),
            held: job.held,
            run: job.run,
            attempt: job.attempt,
            max_attempts,
            policy_id: job.policy.name.to_string(),
            policy_version: job.policy.version.get(),
            priority: job.priority.get(),
            created_at: job.created_at.as_ms(),
            next_run_at: job.state.is_claimable().then(|| job.next_run_at.as_ms()),
            started_at: job.started_at.map(|at| at.as_ms()),
            lease_until: job.lease_until.map(|at| at.as_ms()),
            worker: job.worker.as_ref().map(ToString::to_string),
            finished_at: job.finished_at.map(|at| at.as_ms()),
            cancel_requested: job.cancel_requested,
            last_error: job.last_error.clone(),
            last_status: job.last_status,
            reason: job.reason.map(|reason| reason.name().to_owned()),
            parent: job.parent.map(ParentOfJob::from),
            partition: job.partition.as_ref().map(PartitionOfJob::from),
            idempotency_key: job.key.as_ref().map(ToString::to_string),
            subject: job.subject.clone(),
            timeout_ms: job.timeout.map(ms),
            metadata: job.metadata.as_ref().map(|text| Content::show(text.as_bytes(), detail)),
            payload,
            output: job.output.as_ref().map(|output| Content::show(output, detail)),
        }
    }
}

/// One attempt of a job. The library keeps the failed ones unless its worker is told otherwise.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobAttempt {
    /// The run it belongs to.
    pub run: u32,
    /// The attempt within the run, from 1.
    pub attempt: u32,
    /// When it was started, in epoch ms.
    pub started_at: i64,
    /// How long it took.
    pub duration_ms: u64,
    /// How it ended, in a word.
    pub outcome: String,
    /// What went wrong.
    pub error: Option<String>,
    /// More evidence.
    pub detail: Option<Content>,
    /// The state that it led to.
    pub led_to: JobState,
    /// The wait that was planned after it.
    pub wait_ms: Option<u64>,
    /// When the next attempt was due, in epoch ms.
    pub next_run_at: Option<i64>,
    /// The worker that made it.
    pub worker: Option<String>,
}

impl JobAttempt {
    /// An attempt in the log.
    pub fn show(attempt: Attempt, shown: Detail) -> Self {
        let entry = attempt.entry;
        Self {
            run: entry.run,
            attempt: entry.attempt,
            started_at: entry.started_at.as_ms(),
            duration_ms: ms(entry.duration),
            outcome: entry.outcome,
            error: entry.error,
            detail: entry.detail.map(|detail| Content::show(detail.as_bytes(), shown)),
            led_to: attempt.led_to.into(),
            wait_ms: attempt.wait.map(ms),
            next_run_at: attempt.next_run_at.map(|at| at.as_ms()),
            worker: attempt.worker.as_ref().map(ToString::to_string),
        }
    }
}

/// A step that a job remembers.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobStep {
    /// Its place in the job, from 0.
    pub place: u32,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: JobStepKind,
    /// What it came to: a result, an error, an instant in epoch ms, the ids of children, or a version.
    pub value: Content,
}

/// What a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStepKind {
    /// It succeeded with this value.
    Done,
    /// It failed for good with this error.
    Failed,
    /// A timer that ends at this instant.
    Timer,
    /// Children with these ids.
    Children,
    /// A signal with this value.
    Signal,
    /// A signal was waited for until this instant.
    Deadline,
    /// The version of the code that this run goes by.
    Version,
    /// Which of several things came first, with its value.
    Selected,
}

impl From<StepKind> for JobStepKind {
    fn from(kind: StepKind) -> Self {
        match kind {
            StepKind::Done => Self::Done,
            StepKind::Failed => Self::Failed,
            StepKind::Timer => Self::Timer,
            StepKind::Children => Self::Children,
            StepKind::Signal => Self::Signal,
            StepKind::Deadline => Self::Deadline,
            StepKind::Version => Self::Version,
            StepKind::Selected => Self::Selected,
        }
    }
}

impl JobStep {
    /// A step as it is remembered; `detail` says how much of what a program put into it.
    pub fn show(step: &Step, detail: Detail) -> Self {
        let value = match step.kind {
            StepKind::Children => Content::show(&ids(&step.value), Detail::Whole),
            StepKind::Done | StepKind::Failed | StepKind::Signal => Content::show(&step.value, detail),
            StepKind::Selected => Content::show(&selected(&step.value), detail),
            StepKind::Timer | StepKind::Deadline | StepKind::Version => {
                Content::show(&step.value, Detail::Whole)
            }
        };
        Self { place: step.place, name: step.name.to_string(), kind: step.kind.into(), value }
    }
}

/// What was selected as JSON: it is kept as the number and the name of the arm on one line, then the signal's value.
fn selected(value: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(value);
    let (arm, value) = text.split_once('\n').unwrap_or((&text, ""));
    let name = arm.split_once(' ').map_or(arm, |(_, name)| name);
    let value: serde_json::Value = serde_json::from_str(value).unwrap_or_default();
    serde_json::json!({ "selected": name, "value": value }).to_string().into_bytes()
}

/// The ids of children as JSON: they are kept as bytes, sixteen each.
fn ids(value: &[u8]) -> Vec<u8> {
    let ids = value.chunks_exact(16).filter_map(|bytes| Uuid::from_slice(bytes).ok()).map(JobId);
    serde_json::to_vec(&ids.collect::<Vec<_>>()).unwrap_or_default()
}

/// How to drive a dead job again.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RedriveJob {
    /// What becomes of the steps it remembers; `keep` when absent.
    #[serde(default)]
    pub steps: StepsOnRedrive,
}

/// What becomes of the steps that a dead job remembers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StepsOnRedrive {
    /// It goes on from them.
    #[default]
    Keep,
    /// Every step runs again.
    Forget,
}

/// A signal for a job.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({"name": "approved", "value": true}))]
pub struct SignalRequest {
    /// Its name.
    #[schema(min_length = 1, max_length = 128)]
    pub name: String,
    /// What it says, at most 64 KiB; null when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub value: Option<Box<RawValue>>,
}

#[cfg(test)]
mod tests {
    use redrive_core::{SignalName, StepName};

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
    fn each_kind_of_step_is_written_as_the_engine_names_it() {
        for kind in StepKind::ALL {
            let shown = serde_json::to_value(JobStepKind::from(kind)).unwrap();
            assert_eq!(shown, serde_json::to_value(kind).unwrap());
        }
    }

    #[test]
    fn what_a_job_waits_for_is_said_in_words() {
        let children = |failures_max| Await::Children { branch: 2, failures_max };
        for (awaits, words) in [
            (Await::Signal(SignalName::new("go").unwrap()), "the signal \"go\""),
            (children(0), "the children of step 2 have ended, or one of them"),
            (children(3), "or more than 3 of them"),
            (Await::Unhold, "paused"),
            (Await::Turn, "its turn"),
            (
                Await::any([Await::Signal(SignalName::new("go").unwrap()), children(0)]).unwrap(),
                "whichever comes first: the signal \"go\"; the children of step 2 have ended",
            ),
        ] {
            let shown = Awaits::show(&awaits);
            assert!(shown.detail.contains(words), "{shown:?}");
        }
    }

    #[test]
    fn what_was_selected_is_shown_by_its_name() {
        let name = StepName::new("select").unwrap();
        for (value, expected) in [
            (
                &b"1 approved\n{\"by\":\"Ada\"}"[..],
                serde_json::json!({"selected": "approved", "value": {"by": "Ada"}}),
            ),
            (b"0 sleep\n", serde_json::json!({"selected": "sleep", "value": null})),
        ] {
            let (name, value) = (name.clone(), value.to_vec());
            let step = Step { place: 1, name, kind: StepKind::Selected, value };
            let shown = serde_json::to_value(JobStep::show(&step, Detail::Whole)).unwrap();
            assert_eq!(shown["value"]["json"], expected);
        }
    }

    #[test]
    fn children_are_shown_by_their_ids() {
        let ids = [Uuid::from_u128(7), Uuid::max()];
        let value = ids.iter().flat_map(|id| id.into_bytes()).collect();
        let name = StepName::new("fan out").unwrap();
        let step = Step { place: 1, name, kind: StepKind::Children, value };
        let shown = serde_json::to_value(JobStep::show(&step, Detail::Whole)).unwrap();
        assert_eq!(shown["value"]["json"], serde_json::json!(ids));
    }
}
