//! Shows jobs, attempts, gates, secrets, schedules and keys as the types of the API.

use redrive::ScheduleInfo;
use redrive_core::{Attempt, Job, Timestamp};
use redrive_delivery::gate::{OriginState, OriginStatus};
use redrive_delivery::secrets::SecretInfo;
use redrive_delivery::{Call, CallBody, Evidence, PropagatedContext, grpc_name};
use redrive_wire::content::Detail;
use redrive_wire::key::ApiKey;
use redrive_wire::millis::ms;
use redrive_wire::origin::{GateState, OriginGate, SigningSecretInfo};
use redrive_wire::schedule::{MissedRuns, ScheduleStatus};
use redrive_wire::state::{JobState, WaitingFor};
use redrive_wire::task::{Task, TaskAttempt};

use crate::keys::Key;

/// Occurrences of a schedule that are shown.
const UPCOMING: usize = 5;

/// The fields of a task that come from its call.
pub(crate) fn call(call: Call) -> Task {
    let body_ref = match call.body {
        CallBody::None | CallBody::Inline(_) => None,
        CallBody::Stored(name) => Some(String::from(name)),
    };
    Task {
        target: call.target.to_string(),
        method: call.method,
        headers: call.headers.iter().map(|(name, value)| (name.clone(), value.masked(name))).collect(),
        body_ref,
        on_success_url: call.on_success.map(|target| target.to_string()),
        on_failure_url: call.on_failure.map(|target| target.to_string()),
        signing_secret: call.signing_secret,
        ..Task::default()
    }
}

/// Shows a job as a task. `max_attempts` comes from the job's policy.
pub(crate) fn task(job: &Job, max_attempts: Option<u32>, now: Timestamp) -> Task {
    // If the payload cannot be read, the task still shows the fields of the row.
    let unreadable = || Task { target: job.target.clone().unwrap_or_default(), ..Task::default() };
    let context =
        job.metadata.as_deref().and_then(|json| PropagatedContext::from_json(json).ok()).unwrap_or_default();
    Task {
        task_id: job.id.to_string(),
        tenant: Some(job.tenant.as_str()).filter(|tenant| !tenant.is_empty()).map(str::to_owned),
        idempotency_key: context.key_for(job),
        policy_id: job.policy.name.as_str().to_owned(),
        policy_version: job.policy.version.get(),
        state: JobState::of(job, now),
        waiting_for: WaitingFor::of(job, now),
        attempt_number: job.attempt,
        max_attempts,
        next_attempt_at: (job.state.is_claimable() && job.awaits.is_none()).then(|| job.next_run_at.as_ms()),
        created_at: job.created_at.as_ms(),
        finished_at: job.finished_at.map(|at| at.as_ms()),
        last_error: job.last_error.clone(),
        last_response_status: job.last_status,
        reason: job.reason.map(Into::into),
        cancel_requested: job.cancel_requested,
        priority: job.priority.get(),
        timeout_ms: job.timeout.map(ms),
        ..Call::decode(&job.payload).map_or_else(|_| unreadable(), call)
    }
}

/// Shows an entry of the attempt log with its evidence. [`Detail::Hidden`] leaves out the response body.
pub(crate) fn task_attempt(attempt: Attempt, detail: Detail) -> TaskAttempt {
    let json = attempt.entry.detail.as_deref();
    let evidence: Option<Evidence> = json.and_then(|json| serde_json::from_str(json).ok());
    let evidence = evidence.as_ref();
    let phase = evidence.and_then(|evidence| serde_json::to_value(evidence.phase).ok());
    let excerpt = evidence.and_then(|evidence| evidence.excerpt.clone());
    let is_hidden = detail == Detail::Hidden;
    TaskAttempt {
        attempt_number: attempt.entry.attempt,
        run: attempt.entry.run,
        started_at: attempt.entry.started_at.as_ms(),
        duration_ms: ms(attempt.entry.duration),
        // The HTTP status of a gRPC response is always 200, so the gRPC code is shown instead.
        response_status: evidence.and_then(|evidence| evidence.grpc_code.or(evidence.status)),
        grpc_status: evidence.and_then(|evidence| evidence.grpc_code).map(grpc_name),
        error_message: attempt.entry.error,
        outcome: outcome_name(attempt.entry.outcome),
        phase: phase.and_then(|phase| phase.as_str().map(str::to_owned)),
        led_to: attempt.led_to.into(),
        wait_ms: attempt.wait.map(ms),
        next_attempt_at: attempt.next_run_at.map(|at| at.as_ms()),
        body_hidden: is_hidden && excerpt.is_some(),
        response_excerpt: excerpt.filter(|_| !is_hidden),
        note: evidence.and_then(|evidence| evidence.note.clone()),
        address: evidence.and_then(|evidence| evidence.address.clone()),
        worker: attempt.worker.map(|worker| worker.as_str().to_owned()),
    }
}

/// Rows that older versions wrote call a success "done".
fn outcome_name(outcome: String) -> String {
    if outcome == "done" { "succeeded".to_owned() } else { outcome }
}

/// The state of a gate.
pub(crate) fn gate_state(state: OriginState) -> GateState {
    match state {
        OriginState::Passing => GateState::Passing,
        OriginState::Blocked => GateState::Blocked,
        OriginState::Probing => GateState::Probing,
        OriginState::Held => GateState::Held,
    }
}

/// The gate of an origin.
pub(crate) fn origin_gate(status: OriginStatus) -> OriginGate {
    OriginGate {
        origin: status.origin,
        state: gate_state(status.state),
        limit: status.limit,
        in_flight: status.in_flight,
        waiting: status.waiting,
        answered: status.answered,
        failed: status.failed,
        latency_ms: status.latency.map(ms),
        blocked_for_ms: status.blocked_for.map(ms),
        next_call_in_ms: status.next_call_in.map(ms),
    }
}

/// A signing secret without the secret.
pub(crate) fn signing_secret(info: SecretInfo) -> SigningSecretInfo {
    SigningSecretInfo {
        name: info.name,
        created_at: info.created_at.as_ms(),
        rotated_at: info.rotated_at.map(|at| at.as_ms()),
        has_previous: info.has_previous,
    }
}

/// A schedule with its next occurrences after `now`.
pub(crate) fn schedule(scheduled: ScheduleInfo, now: Timestamp) -> ScheduleStatus {
    let upcoming = scheduled.schedule.upcoming(now.max(scheduled.handled_until), UPCOMING);
    ScheduleStatus {
        name: scheduled.name,
        kind: scheduled.kind.to_string(),
        queue: scheduled.queue.to_string(),
        tenant: Some(scheduled.tenant.to_string()).filter(|tenant| !tenant.is_empty()),
        timing: scheduled.schedule.to_string(),
        missed: match scheduled.missed {
            redrive::MissedRuns::Skip => MissedRuns::Skip,
            redrive::MissedRuns::Once => MissedRuns::Once,
            redrive::MissedRuns::All => MissedRuns::All,
        },
        paused: scheduled.paused,
        handled_until: scheduled.handled_until.as_ms(),
        upcoming: upcoming.into_iter().map(Timestamp::as_ms).collect(),
    }
}

/// An API key. `text` is the key itself, which is shown only when the key is created.
pub fn api_key(key: Key, text: Option<String>) -> ApiKey {
    ApiKey {
        bodies: key.sees_bodies(),
        key_id: key.id,
        name: key.name,
        tenant: key.tenant.map(|tenant| tenant.as_str().to_owned()),
        scope: key.scope,
        created_at: key.created_at.as_ms(),
        key: text,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_api_and_the_delivery_crate_have_the_same_kind_for_tasks() {
        assert_eq!(redrive_wire::task::TASK_KIND, redrive_delivery::KIND);
    }
}
