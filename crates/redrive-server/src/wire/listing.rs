//! Which tasks and jobs to list, as the query says it.

use redrive_core::store::{Filter, PageRequest};
use redrive_core::{IdempotencyKey, Kind, PolicyName, Queue, Reason, State, Tenant, Timestamp};
use redrive_delivery::KIND;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::job::JobState;
use super::page;
use super::status::Status;
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

/// Which dead letters an operation is about; what is absent does not narrow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeadLetterFilter {
    /// Of this kind: jobs of the library. Tasks, of kind `delivery`, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// In this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Under any version of this policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// With a target, or about something, that begins so.
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
    /// The engine's filter, narrowed to what the caller may see.
    pub fn filter(&self, tenant: Option<&Tenant>) -> Answer<Filter> {
        let states = self.status.map(|status| status.states().to_vec()).unwrap_or_default();
        Ok(Filter {
            states,
            policy_name: name(self.policy_id.as_deref())?,
            subject: beginning("target", self.target.as_deref())?,
            key: self.idempotency_key.as_deref().map(IdempotencyKey::new).transpose()?,
            reason: self.reason.map(Reason::from),
            created_from: after(self.created_after),
            created_before: self.created_before.map(Timestamp::from_ms),
            ..tasks_of(tenant)?
        })
    }

    /// Which page.
    pub fn page(&self) -> Answer<PageRequest> {
        page::request(self.limit, self.cursor.as_deref())
    }
}

impl JobQuery {
    /// The engine's filter, narrowed to what the caller may see.
    pub fn filter(&self, tenant: Option<&Tenant>) -> Answer<Filter> {
        Ok(Filter {
            states: self.state.map(State::from).into_iter().collect(),
            tenant: tenant.cloned(),
            queue: self.queue.as_deref().map(Queue::new).transpose()?,
            kind: self.kind.as_deref().map(Kind::new).transpose()?,
            policy: None,
            policy_name: name(self.policy_id.as_deref())?,
            subject: beginning("subject", self.subject.as_deref())?,
            reason: self.reason.map(Reason::from),
            key: self.idempotency_key.as_deref().map(IdempotencyKey::new).transpose()?,
            created_from: after(self.created_after),
            created_before: self.created_before.map(Timestamp::from_ms),
            finished_from: after(self.finished_after),
            finished_before: self.finished_before.map(Timestamp::from_ms),
        })
    }

    /// Which page.
    pub fn page(&self) -> Answer<PageRequest> {
        page::request(self.limit, self.cursor.as_deref())
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
    pub fn filter(&self) -> DeadLetterFilter {
        DeadLetterFilter {
            kind: None,
            queue: None,
            policy_id: self.policy_id.clone(),
            target: self.target.clone(),
            reason: self.reason,
            finished_after: self.finished_after,
            finished_before: self.finished_before,
        }
    }

    /// Which page.
    pub fn page(&self) -> Answer<PageRequest> {
        page::request(self.limit, self.cursor.as_deref())
    }
}

impl DeadLetterFilter {
    /// The engine's filter, narrowed to what the caller may see.
    pub fn filter(&self, tenant: Option<&Tenant>) -> Answer<Filter> {
        let of_kind = self.kind.as_deref().unwrap_or(KIND);
        Ok(Filter {
            states: vec![State::Dead],
            tenant: tenant.cloned(),
            kind: Some(Kind::new(of_kind)?),
            queue: self.queue.as_deref().map(Queue::new).transpose()?,
            policy_name: name(self.policy_id.as_deref())?,
            subject: beginning("target", self.target.as_deref())?,
            reason: self.reason.map(Reason::from),
            finished_from: after(self.finished_after),
            finished_before: self.finished_before.map(Timestamp::from_ms),
            ..Filter::default()
        })
    }
}

/// Deliveries that the caller may see: a store may hold other jobs too.
fn tasks_of(tenant: Option<&Tenant>) -> Answer<Filter> {
    Ok(Filter { tenant: tenant.cloned(), kind: Some(Kind::new(KIND)?), ..Filter::default() })
}

/// How a text begins; not every store can look for a NUL.
fn beginning(field: &'static str, text: Option<&str>) -> Answer<Option<String>> {
    match text {
        Some(text) if text.contains('\0') => Err(Problem::invalid(field, "must not contain a NUL character")),
        text => Ok(text.map(str::to_owned)),
    }
}

fn name(policy_id: Option<&str>) -> Answer<Option<PolicyName>> {
    policy_id.map(PolicyName::new).transpose().map_err(Problem::from)
}

/// The first instant after `ms`.
fn after(ms: Option<i64>) -> Option<Timestamp> {
    ms.map(|ms| Timestamp::from_ms(ms.saturating_add(1)))
}
