//! Callbacks: the request that reports the end of a task. It is a task of its own, enqueued in the settlement of the first one.

use redrive_core::{Job, JobId, Kind, NewJob, Outcome, PolicyRef, Reason, Verdict};
use redrive_worker::JobEnd;
use serde_json::json;
use uuid::Uuid;

use crate::call::{Call, CallBody, PropagatedContext};
use crate::deliver::KIND;
use crate::evidence::Evidence;
use crate::target::Target;

/// The callback of `job`, if its call has a callback URL.
pub(crate) fn follow_ups(job: &Job, end: &JobEnd<'_>, policy: &PolicyRef) -> Vec<NewJob> {
    // Most calls have no callback, and need not be decoded again.
    if !Call::may_have_callback(&job.payload) {
        return Vec::new();
    }
    let Ok(call) = Call::decode(&job.payload) else {
        return Vec::new();
    };
    let url = match end.verdict {
        Verdict::Complete(_) => call.on_success.clone(),
        Verdict::DeadLetter(_) => call.on_failure.clone(),
        Verdict::Retry(_)
        | Verdict::Snooze(_)
        | Verdict::Hold(_)
        | Verdict::Wait(_)
        | Verdict::Release
        | Verdict::Cancel => None,
    };
    url.map(|url| callback(url, job, &call, end, policy)).into_iter().collect()
}

fn callback(url: Target, job: &Job, call: &Call, end: &JobEnd<'_>, policy: &PolicyRef) -> NewJob {
    let target = url.to_string();
    let call_back = Call {
        headers: vec![("content-type".to_owned(), "application/json".into())],
        body: CallBody::Inline(message(job, call, end).into_bytes()),
        signing_secret: call.signing_secret.clone(),
        ..Call::new(url)
    };
    let inherited =
        job.metadata.as_deref().and_then(|json| PropagatedContext::from_json(json).ok()).unwrap_or_default();
    // Each run of a task ends once, so the receiver can drop repeated deliveries by this key.
    let context = PropagatedContext { key: Some(format!("outcome-{}-{}", job.id, job.run)), ..inherited };
    let kind = Kind::new(KIND).unwrap_or_else(|_| unreachable!("a short printable name is legal"));
    NewJob {
        tenant: job.tenant.clone(),
        queue: job.queue.clone(),
        priority: job.priority,
        target: Some(target),
        metadata: Some(context.to_json()),
        ..NewJob::new(JobId(Uuid::now_v7()), kind, policy.clone(), call_back.encode())
    }
}

/// The message: the task, the last status, the last error, and the start of the last answer.
fn message(job: &Job, call: &Call, end: &JobEnd<'_>) -> String {
    let succeeded = matches!(end.outcome, Outcome::Done(_));
    let evidence = end.note.and_then(|note| note.detail.as_deref()).and_then(Evidence::from_json);
    let context =
        job.metadata.as_deref().and_then(|json| PropagatedContext::from_json(json).ok()).unwrap_or_default();
    json!({
        "type": if succeeded { "task.succeeded" } else { "task.dead" },
        "task": {
            "taskId": job.id,
            "idempotencyKey": context.key_for(job),
            "target": call.target.to_string(),
            "method": call.method,
            "policyId": job.policy.name,
            "policyVersion": job.policy.version,
            "state": if succeeded { "succeeded" } else { "dead" },
            "reason": end.verdict.reason().map(Reason::name),
            "attemptNumber": job.attempt,
            "createdAt": job.created_at,
        },
        "lastResponseStatus": end.note.and_then(|note| note.status).or(job.last_status),
        "lastError": end.outcome.error().or(job.last_error.as_deref().filter(|_| !succeeded)),
        "responseExcerpt": evidence.and_then(|evidence| evidence.excerpt),
    })
    .to_string()
}
