//! Which tasks and jobs to list, as the query says it.

use redrive_core::store::PageRequest;
use redrive_core::{Reason, State};
use redrive_delivery::KIND;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::filter::JobFilter;
use super::job::JobState;
use super::page;
use super::status::Status;
use crate::cursors::Cursors;
use crate::error::{Answer, Problem};

/// Which tasks to list, and which page of them; newest first.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TaskQuery {
    /// With this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Under any version of this policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// With a target that begins so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// With this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Exhausted for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<WhyExhausted>,
    /// Created after this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<i64>,
    /// Created before this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<i64>,
    /// Of this tenant, empty for the default one; for keys that are not bound to another.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(max_length = 128)]
    pub tenant: Option<String>,
    /// With this text, large or small letters, in the body, the target or the last error. The page may be short, or empty, while
    /// `nextCursor` is there: go on with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(max_length = 256)]
    pub text: Option<String>,
    /// Tasks on the page, 50 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `nextCursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Which jobs to list, and which page of them; newest first.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobQuery {
    /// In this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// In this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Under any version of this policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// About something that begins so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// With this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Dead for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<WhyExhausted>,
    /// Enqueued after this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<i64>,
    /// Enqueued before this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<i64>,
    /// Ended after this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_after: Option<i64>,
    /// Ended before this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_before: Option<i64>,
    /// Of this tenant, empty for the default one; for keys that are not bound to another.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(max_length = 128)]
    pub tenant: Option<String>,
    /// With this text, large or small letters, in the payload, the last error, the metadata or the target. The page may be short, or empty, while
    /// `nextCursor` is there: go on with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(max_length = 256)]
    pub text: Option<String>,
    /// Jobs on the page, 50 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `nextCursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Which page of a job's steps.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StepsQuery {
    /// Steps on the page, 50 when absent; each may have 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<usize>,
    /// The `nextCursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Steps on a page: they are shown whole.
pub const STEPS_ITEMS_MAX: usize = 100;

/// Which dead letters, and which page of them; newest first.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeadLetterQuery {
    /// Under any version of this policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// With a target that begins so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Exhausted for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<WhyExhausted>,
    /// Exhausted after this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_after: Option<i64>,
    /// Exhausted before this instant, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_before: Option<i64>,
    /// Tasks on the page, 50 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `nextCursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Why a task is exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum WhyExhausted {
    /// The last attempt that the policy allows has failed.
    AttemptsExhausted,
    /// The next attempt would not fit the budget.
    BudgetExceeded,
    /// The answer is not one that the policy retries.
    NotRetryable,
    /// The body is gone from the object store, or damaged.
    BodyLost,
    /// The target's address may not be called.
    TargetRefused,
}

impl From<Reason> for WhyExhausted {
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

impl From<WhyExhausted> for Reason {
    fn from(why: WhyExhausted) -> Self {
        match why {
            WhyExhausted::AttemptsExhausted => Self::AttemptsExhausted,
            WhyExhausted::BudgetExceeded => Self::BudgetExceeded,
            WhyExhausted::NotRetryable => Self::NotRetryable,
            WhyExhausted::BodyLost => Self::BodyLost,
            WhyExhausted::TargetRefused => Self::TargetRefused,
        }
    }
}

impl TaskQuery {
    /// Which tasks, and their states: a status may stand for several.
    pub fn filter(&self) -> (JobFilter, &'static [State]) {
        let filter = JobFilter {
            kind: Some(KIND.to_owned()),
            policy_id: self.policy_id.clone(),
            subject: self.target.clone(),
            idempotency_key: self.idempotency_key.clone(),
            reason: self.reason,
            tenant: self.tenant.clone(),
            text: self.text.clone(),
            created_after: self.created_after,
            created_before: self.created_before,
            ..JobFilter::default()
        };
        (filter, self.status.map_or(&[][..], Status::states))
    }

    /// Which page.
    pub(crate) fn page(&self, cursors: &Cursors<'_>) -> Answer<PageRequest> {
        cursors.page(self.limit, self.cursor.as_deref())
    }
}

impl JobQuery {
    /// Which jobs.
    pub fn filter(&self) -> JobFilter {
        JobFilter {
            state: self.state,
            kind: self.kind.clone(),
            queue: self.queue.clone(),
            policy_id: self.policy_id.clone(),
            subject: self.subject.clone(),
            idempotency_key: self.idempotency_key.clone(),
            reason: self.reason,
            tenant: self.tenant.clone(),
            text: self.text.clone(),
            created_after: self.created_after,
            created_before: self.created_before,
            finished_after: self.finished_after,
            finished_before: self.finished_before,
        }
    }

    /// Which page.
    pub(crate) fn page(&self, cursors: &Cursors<'_>) -> Answer<PageRequest> {
        cursors.page(self.limit, self.cursor.as_deref())
    }
}

impl StepsQuery {
    /// How many steps, within bounds.
    pub fn limit(&self) -> Answer<usize> {
        page::limit_to(self.limit, STEPS_ITEMS_MAX)
    }

    /// The place at which the page begins.
    pub fn from(&self) -> Answer<u32> {
        let Some(cursor) = &self.cursor else { return Ok(0) };
        let place = cursor.strip_prefix('s').and_then(|place| u32::from_str_radix(place, 16).ok());
        place.ok_or_else(|| Problem::invalid("cursor", "is not one that a list returned"))
    }

    /// What leads to the page that begins at `place`.
    pub fn cursor_at(place: u32) -> String {
        format!("s{place:x}")
    }
}

impl DeadLetterQuery {
    /// Which dead letters.
    pub fn filter(&self) -> JobFilter {
        JobFilter {
            state: Some(JobState::Dead),
            kind: Some(KIND.to_owned()),
            policy_id: self.policy_id.clone(),
            subject: self.target.clone(),
            reason: self.reason,
            finished_after: self.finished_after,
            finished_before: self.finished_before,
            ..JobFilter::default()
        }
    }

    /// Which page.
    pub(crate) fn page(&self, cursors: &Cursors<'_>) -> Answer<PageRequest> {
        cursors.page(self.limit, self.cursor.as_deref())
    }
}
