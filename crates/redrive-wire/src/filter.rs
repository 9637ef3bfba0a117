//! The filter that lists, counts, groups and operations share.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::state::{DeadReason, JobState};
use super::task::TASK_KIND;

/// Selects jobs. A field that is absent matches every job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobFilter {
    /// Only jobs in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Only jobs of this kind. Tasks have the kind `delivery`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only jobs of this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Only jobs under any version of this policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// Only jobs whose target starts with this text.
    #[serde(skip_serializing_if = "Option::is_none", alias = "subject")]
    pub target: Option<String>,
    /// Only the job with this idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Only jobs that are dead for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<DeadReason>,
    /// Only jobs of this tenant; empty for the default tenant. A key that is bound to a tenant can name only that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    #[param(max_length = 128)]
    pub tenant: Option<String>,
    /// Only jobs with this text in the payload, the last error, the metadata or the target. Upper and lower
    /// case are equal. For a key that may not see bodies, only the last error and the target are searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    #[param(max_length = 256)]
    pub text: Option<String>,
    /// Only jobs enqueued after this time, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<i64>,
    /// Only jobs enqueued before this time, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<i64>,
    /// Only jobs that ended after this time, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_after: Option<i64>,
    /// Only jobs that ended before this time, in epoch ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_before: Option<i64>,
}

impl JobFilter {
    /// Restricts the filter to tasks. `None` if it selects another kind, because then nothing can match.
    #[must_use]
    pub fn for_tasks(self) -> Option<Self> {
        match self.kind.as_deref() {
            None | Some(TASK_KIND) => Some(Self { kind: Some(TASK_KIND.to_owned()), ..self }),
            Some(_) => None,
        }
    }

    /// Restricts the filter to dead letters. `None` if it selects another state, because then nothing can
    /// match.
    #[must_use]
    pub fn for_dead_letters(self) -> Option<Self> {
        match self.state {
            None | Some(JobState::Dead) => Some(Self { state: Some(JobState::Dead), ..self }),
            Some(_) => None,
        }
    }
}
