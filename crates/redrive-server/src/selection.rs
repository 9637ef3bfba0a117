//! Translates a filter of the API into a filter of the store, restricted to the jobs that the caller may see.

use redrive_core::store::Filter;
use redrive_core::{IdempotencyKey, Job, Kind, PolicyName, Queue, Reason, State, Tenant, Timestamp};
use redrive_delivery::{Call, CallBody, KIND};
use redrive_wire::Code;
use redrive_wire::filter::JobFilter;
use redrive_wire::state::JobState;

use crate::auth::Caller;
use crate::error::{Answer, Problem};

/// The maximum length of a prefix of targets.
const TARGET_CHARS_MAX: usize = 2048;
/// The maximum length of a search text.
const TEXT_CHARS_MAX: usize = 256;

/// Selects jobs: by a filter of the store, and by conditions that only the service can check.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobSelection {
    pub(crate) filter: Filter,
    pub(crate) text: Option<SearchText>,
    /// The state as the API shows it, if the stored state does not determine it.
    pub(crate) shown_state: Option<JobState>,
}

impl JobSelection {
    /// The selection of a request. If the caller may not see bodies, the text is not searched for in bodies.
    pub(crate) fn for_caller(filter: &JobFilter, caller: &Caller) -> Answer<Self> {
        let selection = Self::for_tenant(filter, caller.tenant.as_ref())?;
        let text = selection.text.map(|text| if caller.bodies { text } else { text.outside_bodies() });
        Ok(JobSelection { text, ..selection })
    }

    /// The selection of an operation. The text is searched for in bodies too, because only admins create operations.
    pub(crate) fn for_tenant(asked: &JobFilter, own: Option<&Tenant>) -> Answer<Self> {
        let filter = Filter {
            states: states(asked),
            tenant: tenant(own, asked.tenant.as_deref())?,
            queue: asked.queue.as_deref().map(Queue::new).transpose()?,
            kind: asked.kind.as_deref().map(Kind::new).transpose()?,
            policy: None,
            policy_name: asked.policy_id.as_deref().map(PolicyName::new).transpose()?,
            target: target_prefix(asked.target.as_deref())?,
            reason: asked.reason.map(Reason::from),
            key: asked.idempotency_key.as_deref().map(IdempotencyKey::new).transpose()?,
            created_from: after(asked.created_after),
            created_before: asked.created_before.map(Timestamp::from_ms),
            finished_from: after(asked.finished_after),
            finished_before: asked.finished_before.map(Timestamp::from_ms),
        };
        let shown_state = asked.state.filter(|state| state.is_derived());
        Ok(Self { filter, text: SearchText::new(asked.text.as_deref())?, shown_state })
    }

    /// The selection that a filter of the store describes completely.
    pub(crate) fn from_store_filter(filter: Filter) -> Self {
        Self { filter, text: None, shown_state: None }
    }

    /// Whether a job that the store found also meets the conditions that only the service can check.
    pub(crate) fn matches(&self, job: &Job, now: Timestamp) -> bool {
        self.text.as_ref().is_none_or(|text| text.is_in(job))
            && self.shown_state.is_none_or(|state| JobState::of(job, now) == state)
    }

    /// Whether every job that the store finds matches.
    pub(crate) fn is_store_filter(&self) -> bool {
        self.text.is_none() && self.shown_state.is_none()
    }

    /// Whether the store keeps an exact count of these jobs: it does for states and a queue.
    pub(crate) fn has_stored_count(&self) -> bool {
        let Filter { states, queue, .. } = self.filter.clone();
        self.is_store_filter() && self.filter == Filter { states, queue, ..Filter::default() }
    }
}

/// The stored states that can match. Only a dead job has a reason, and stores have an index of dead jobs.
fn states(asked: &JobFilter) -> Vec<State> {
    match (asked.state, asked.reason) {
        (Some(state), _) => state.stored_states(),
        (None, Some(_)) => vec![State::Dead],
        (None, None) => Vec::new(),
    }
}

/// The caller's own tenant, or the tenant that an unbound caller names.
fn tenant(own: Option<&Tenant>, named: Option<&str>) -> Answer<Option<Tenant>> {
    match (own, named) {
        (Some(own), Some(named)) if own.as_str() != named => {
            Err(Problem::new(Code::Forbidden, "`tenant` must be the tenant that your key is bound to"))
        }
        (Some(own), _) => Ok(Some(own.clone())),
        (None, named) => Ok(named.map(Tenant::new).transpose()?),
    }
}

/// The prefix of targets to search for. Not every store can search for a NUL character.
fn target_prefix(prefix: Option<&str>) -> Answer<Option<String>> {
    match prefix {
        Some(prefix) if prefix.contains('\0') => {
            Err(Problem::invalid("target", "must not contain a NUL character"))
        }
        Some(prefix) if prefix.chars().count() > TARGET_CHARS_MAX => {
            Err(Problem::invalid("target", format!("must have at most {TARGET_CHARS_MAX} characters")))
        }
        prefix => Ok(prefix.map(str::to_owned)),
    }
}

/// The first millisecond after `ms`.
fn after(ms: Option<i64>) -> Option<Timestamp> {
    ms.map(|ms| Timestamp::from_ms(ms.saturating_add(1)))
}

/// A text to search for in jobs. The case of ASCII letters does not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SearchText {
    /// In lower case.
    bytes: Vec<u8>,
    /// Whether payloads and metadata are searched too.
    in_bodies: bool,
}

impl SearchText {
    /// `None` for an empty text, which every job contains.
    pub(crate) fn new(text: Option<&str>) -> Answer<Option<Self>> {
        match text {
            Some(text) if text.chars().count() > TEXT_CHARS_MAX => {
                Err(Problem::invalid("text", format!("must have at most {TEXT_CHARS_MAX} characters")))
            }
            text => {
                let text = text.filter(|text| !text.is_empty());
                Ok(text.map(|text| Self { bytes: text.to_ascii_lowercase().into(), in_bodies: true }))
            }
        }
    }

    /// The same text for a caller who may not see bodies: a search must not reveal their content.
    pub(crate) fn outside_bodies(self) -> Self {
        Self { in_bodies: false, ..self }
    }

    /// Whether the last error, the target, the metadata or the payload of a job contains the text.
    pub(crate) fn is_in(&self, job: &Job) -> bool {
        let metadata = job.metadata.as_deref().filter(|_| self.in_bodies);
        let fields = [job.last_error.as_deref(), metadata, job.target.as_deref()];
        fields.into_iter().flatten().any(|text| self.is_within(text.as_bytes()))
            || (self.in_bodies && self.is_in_payload(job))
    }

    /// Of a task only the body is searched, because headers may contain secrets.
    fn is_in_payload(&self, job: &Job) -> bool {
        if job.kind.as_str() != KIND {
            return self.is_within(&job.payload);
        }
        match Call::decode(&job.payload).map(|call| call.body) {
            Ok(CallBody::Inline(body)) => self.is_within(&body),
            Ok(CallBody::None | CallBody::Stored(_)) | Err(_) => false,
        }
    }

    fn is_within(&self, bytes: &[u8]) -> bool {
        let Some((first, rest)) = self.bytes.split_first() else { return true };
        let is_match = |window: &[u8]| {
            window[0].to_ascii_lowercase() == *first && window[1..].eq_ignore_ascii_case(rest)
        };
        bytes.windows(self.bytes.len()).any(is_match)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_in_any_case_of_its_letters() {
        for (text, within, found) in [
            ("Order-7", "the ORDER-7 of today", true),
            ("order-7", "order-8", false),
            ("é", "caf\u{e9}", true),
            ("É", "caf\u{e9}", false),
            ("abc", "ab", false),
            ("c", "abc", true),
        ] {
            let text = SearchText::new(Some(text)).unwrap().unwrap();
            assert_eq!(text.is_within(within.as_bytes()), found, "{text:?} in {within}");
        }
        assert_eq!(SearchText::new(Some("")).unwrap(), None);
        assert_eq!(SearchText::new(Some(&"x".repeat(257))).unwrap_err().field.as_deref(), Some("text"));
    }
}
