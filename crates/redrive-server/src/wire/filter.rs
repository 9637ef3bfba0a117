//! Which jobs are meant, in the words that lists, counts and operations share.

use redrive_core::store::Filter;
use redrive_core::{IdempotencyKey, Kind, PolicyName, Queue, Reason, State, Tenant, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::job::JobState;
use super::listing::WhyExhausted;
use crate::auth::Caller;
use crate::error::{Answer, Code, Problem};
use crate::text::Text;

/// Which jobs; what is absent does not narrow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobFilter {
    /// In this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Of this kind; tasks are of kind `delivery`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// In this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Under any version of this policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_id: Option<String>,
    /// About something, or with a target, that begins so.
    #[serde(skip_serializing_if = "Option::is_none", alias = "target")]
    pub subject: Option<String>,
    /// With this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Dead for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<WhyExhausted>,
    /// Of this tenant, empty for the default one; for keys that are not bound to another.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    #[param(max_length = 128)]
    pub tenant: Option<String>,
    /// With this text, large or small letters, in the payload, the last error, the metadata, or a delivery's target. A key that
    /// may not see bodies looks in the last error and the target alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    #[param(max_length = 256)]
    pub text: Option<String>,
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
}

/// Which jobs, as the engine knows them, and what it does not: their text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) filter: Filter,
    pub(crate) text: Option<Text>,
}

impl JobFilter {
    /// The jobs that `caller` asks for, of those that they may see; without a text that they may not see.
    pub(crate) fn wanted_by(&self, caller: &Caller) -> Answer<Wanted> {
        let wanted = self.wanted(caller.tenant.as_ref())?;
        let text = wanted.text.map(|text| if caller.bodies { text } else { text.outside_bodies() });
        Ok(Wanted { text, ..wanted })
    }

    /// The engine's filter, narrowed to what an operation of this tenant may touch; only admins begin one.
    pub(crate) fn wanted(&self, own: Option<&Tenant>) -> Answer<Wanted> {
        let filter = Filter {
            states: self.states(),
            tenant: tenant(own, self.tenant.as_deref())?,
            queue: self.queue.as_deref().map(Queue::new).transpose()?,
            kind: self.kind.as_deref().map(Kind::new).transpose()?,
            policy: None,
            policy_name: self.policy_id.as_deref().map(PolicyName::new).transpose()?,
            subject: beginning("subject", self.subject.as_deref())?,
            reason: self.reason.map(Reason::from),
            key: self.idempotency_key.as_deref().map(IdempotencyKey::new).transpose()?,
            created_from: after(self.created_after),
            created_before: self.created_before.map(Timestamp::from_ms),
            finished_from: after(self.finished_after),
            finished_before: self.finished_before.map(Timestamp::from_ms),
        };
        Ok(Wanted { filter, text: Text::new(self.text.as_deref())? })
    }

    /// The states that can match: only what is dead has a reason, and a store finds dead letters by themselves.
    fn states(&self) -> Vec<State> {
        match (self.state, self.reason) {
            (Some(state), _) => vec![state.into()],
            (None, Some(_)) => vec![State::Dead],
            (None, None) => Vec::new(),
        }
    }
}

impl Wanted {
    /// Only states and a queue, of which a store keeps exact counts.
    pub(crate) fn is_counted(&self) -> bool {
        let Filter { states, queue, .. } = self.filter.clone();
        self.text.is_none() && self.filter == Filter { states, queue, ..Filter::default() }
    }
}

/// The tenant to look at: the caller's own, or the one that an unbound caller names.
fn tenant(own: Option<&Tenant>, named: Option<&str>) -> Answer<Option<Tenant>> {
    match (own, named) {
        (Some(own), Some(named)) if own.as_str() != named => {
            Err(Problem::new(Code::Forbidden, "your key is bound to another tenant than `tenant` names"))
        }
        (Some(own), _) => Ok(Some(own.clone())),
        (None, named) => Ok(named.map(Tenant::new).transpose()?),
    }
}

/// How a text begins; not every store can look for a NUL.
fn beginning(field: &'static str, text: Option<&str>) -> Answer<Option<String>> {
    match text {
        Some(text) if text.contains('\0') => Err(Problem::invalid(field, "must not contain a NUL character")),
        text => Ok(text.map(str::to_owned)),
    }
}

/// The first instant after `ms`.
fn after(ms: Option<i64>) -> Option<Timestamp> {
    ms.map(|ms| Timestamp::from_ms(ms.saturating_add(1)))
}
