//! Tells who asked how a task ended: a task of its own, enqueued in the settlement of the first.

use redrive_core::{Job, JobId, Kind, NewJob, Outcome, PolicyRef, Verdict};
use redrive_worker::Ending;
use serde_json::json;
use uuid::Uuid;

use crate::call::{Call, CallBody, Passport};
use crate::deliver::KIND;
use crate::evidence::Evidence;
use crate::target::Target;

/// The report on `job`, if its call names someone to report to.
pub(crate) fn follow_ups(job: &Job, ending: &Ending<'_>, policy: &PolicyRef) -> Vec<NewJob> {
    // Most calls name nobody, and are not worth another reading.
    if !Call::may_report(&job.payload) {
        return Vec::new();
    }
    let Ok(call) = Call::decode(&job.payload) else {
        return Vec::new();
    };
    let addressee = match ending.verdict {
        Verdict::Complete(_) => call.on_success.clone(),
        Verdict::DeadLetter(_) => call.on_exhausted.clone(),
        Verdict::Retry(_)
        | Verdict::Snooze(_)
        | Verdict::Park(_)
        | Verdict::Wait(_)
        | Verdict::Release
        | Verdict::Cancel => None,
    };
    addressee.map(|addressee| report_to(addressee, job, &call, ending, policy)).into_iter().collect()
}

fn report_to(addressee: Target, job: &Job, call: &Call, ending: &Ending<'_>, policy: &PolicyRef) -> NewJob {
    let subject = addressee.to_string();
    let report = Call {
        headers: vec![("content-type".to_owned(), "application/json".into())],
        body: CallBody::Inline(report(job, call, ending).into_bytes()),
        signing_secret: call.signing_secret.clone(),
        ..Call::new(addressee)
    };
    let carried = job.metadata.as_deref().and_then(|json| Passport::from_json(json).ok()).unwrap_or_default();
    // One end of one run is one message, however often it is delivered.
    let passport = Passport { key: Some(format!("outcome-{}-{}", job.id, job.run)), ..carried };
    let kind = Kind::new(KIND).unwrap_or_else(|_| unreachable!("a short printable name is legal"));
    NewJob {
        tenant: job.tenant.clone(),
        queue: job.queue.clone(),
        priority: job.priority,
        subject: Some(subject),
        metadata: Some(passport.to_json()),
        ..NewJob::new(JobId(Uuid::now_v7()), kind, policy.clone(), report.encode())
    }
}

/// The message: the task, the last status, the last error and how the last answer began.
fn report(job: &Job, call: &Call, ending: &Ending<'_>) -> String {
    let succeeded = matches!(ending.outcome, Outcome::Done(_));
    let evidence = ending.note.and_then(|note| note.detail.as_deref()).and_then(Evidence::from_json);
    let passport =
        job.metadata.as_deref().and_then(|json| Passport::from_json(json).ok()).unwrap_or_default();
    json!({
        "type": if succeeded { "task.succeeded" } else { "task.exhausted" },
        "task": {
            "taskId": job.id,
            "idempotencyKey": passport.key_for(job),
            "targetUrl": call.target.to_string(),
            "method": call.method,
            "policyId": job.policy.name,
            "policyVersion": job.policy.version,
            "status": if succeeded { "SUCCEEDED" } else { "EXHAUSTED" },
            "reason": ending.verdict.reason(),
            "attemptNumber": job.attempt,
            "createdAt": job.created_at,
        },
        "lastResponseStatus": ending.note.and_then(|note| note.status).or(job.last_status),
        "lastError": ending.outcome.error().or(job.last_error.as_deref().filter(|_| !succeeded)),
        "responseExcerpt": evidence.and_then(|evidence| evidence.excerpt),
    })
    .to_string()
}
