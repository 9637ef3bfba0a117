//! What a job leaves to be done when it ends: jobs that its settlement enqueues.

use redrive_core::limits::FOLLOW_UPS_MAX;
use redrive_core::panics::catch;
use redrive_core::{Job, NewJob, Outcome, Verdict};

use crate::engine::Engine;
use crate::handler::{Ending, Note};

impl Engine {
    /// The handler's follow-ups when the verdict ends the job. What no store would take is left out: it must not keep a
    /// job from ending.
    pub(crate) fn follow_ups(
        &self,
        job: &Job,
        outcome: &Outcome,
        verdict: &Verdict,
        note: Option<&Note>,
    ) -> Vec<NewJob> {
        let ends = matches!(verdict, Verdict::Complete(_) | Verdict::DeadLetter(_));
        let Some(handler) = self.handlers.get(&job.kind).filter(|_| ends) else {
            return Vec::new();
        };
        let ending = Ending { outcome, verdict, note };
        let asked = catch("the handler's follow_ups", || handler.follow_ups(job, &ending));
        let mut jobs = asked.unwrap_or_else(|panic| {
            tracing::error!(job = %job.id, %panic, "the job ends without follow-ups");
            Vec::new()
        });
        jobs.retain(|follow_up| match follow_up.check() {
            Ok(()) => true,
            Err(problem) => {
                tracing::error!(job = %job.id, %problem, "follow-up left out");
                false
            }
        });
        jobs.truncate(FOLLOW_UPS_MAX);
        jobs
    }
}
