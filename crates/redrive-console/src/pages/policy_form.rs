//! The fields of a policy as they stand in the designer's form: from a policy, from a form, and back.

use std::collections::BTreeSet;

use redrive_server::wire::policy::{BackoffType, JitterType, RetryPolicy};

use crate::form::Fields;
use crate::trouble::Trouble;
use crate::words;

const BACKOFFS: [(&str, BackoffType); 5] = [
    ("EXPONENTIAL", BackoffType::Exponential),
    ("LINEAR", BackoffType::Linear),
    ("FIXED", BackoffType::Fixed),
    ("POLYNOMIAL", BackoffType::Polynomial),
    ("SCHEDULE", BackoffType::Schedule),
];
const JITTERS: [(&str, JitterType); 6] = [
    ("NONE", JitterType::None),
    ("FULL", JitterType::Full),
    ("EQUAL", JitterType::Equal),
    ("DECORRELATED", JitterType::Decorrelated),
    ("PROPORTIONAL", JitterType::Proportional),
    ("ABSOLUTE", JitterType::Absolute),
];

/// The fields as they stand in the form.
#[derive(Debug, Default)]
pub(super) struct Design {
    pub(super) policy_id: String,
    pub(super) max_attempts: String,
    pub(super) backoff_type: String,
    pub(super) initial_delay_ms: String,
    pub(super) multiplier: String,
    pub(super) exponent: String,
    pub(super) delays_ms: String,
    pub(super) max_delay_ms: String,
    pub(super) total_budget_ms: String,
    pub(super) jitter_type: String,
    pub(super) jitter_fraction: String,
    pub(super) jitter_ms: String,
    pub(super) retryable_status_codes: String,
    pub(super) retryable_grpc_codes: String,
    pub(super) attempt_timeout_ms: String,
    pub(super) visibility_timeout_ms: String,
    pub(super) on_success_url: String,
    pub(super) on_exhausted_url: String,
    pub(super) signing_secret: String,
}

impl Design {
    pub(super) fn of(policy: &RetryPolicy) -> Self {
        fn text<T: ToString>(value: &Option<T>) -> String {
            value.as_ref().map(ToString::to_string).unwrap_or_default()
        }
        let list = |codes: &Option<BTreeSet<u16>>| {
            codes.iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let delays: Vec<String> = policy.delays_ms.iter().flatten().map(ToString::to_string).collect();
        let backoff = policy.backoff_type.unwrap_or(BackoffType::Exponential);
        let jitter = policy.jitter_type.unwrap_or(JitterType::Full);
        let budget = policy.total_budget_ms.unwrap_or(Some(3_600_000));
        Self {
            policy_id: policy.policy_id.clone().unwrap_or_default(),
            max_attempts: text(&policy.max_attempts),
            backoff_type: named(&BACKOFFS, backoff),
            initial_delay_ms: text(&policy.initial_delay_ms),
            multiplier: text(&policy.multiplier),
            exponent: text(&policy.exponent),
            delays_ms: delays.join(", "),
            max_delay_ms: text(&policy.max_delay_ms),
            total_budget_ms: text(&budget),
            jitter_type: named(&JITTERS, jitter),
            jitter_fraction: text(&policy.jitter_fraction),
            jitter_ms: text(&policy.jitter_ms),
            retryable_status_codes: list(&policy.retryable_status_codes),
            retryable_grpc_codes: list(&policy.retryable_grpc_codes),
            attempt_timeout_ms: text(&policy.attempt_timeout_ms),
            visibility_timeout_ms: text(&policy.visibility_timeout_ms),
            on_success_url: policy.on_success_url.clone().unwrap_or_default(),
            on_exhausted_url: policy.on_exhausted_url.clone().unwrap_or_default(),
            signing_secret: policy.signing_secret.clone().unwrap_or_default(),
        }
    }

    pub(super) fn read(fields: &Fields) -> Self {
        Self {
            policy_id: fields.text("policyId"),
            max_attempts: fields.text("maxAttempts"),
            backoff_type: fields.text("backoffType"),
            initial_delay_ms: fields.text("initialDelayMs"),
            multiplier: fields.text("multiplier"),
            exponent: fields.text("exponent"),
            delays_ms: fields.text("delaysMs"),
            max_delay_ms: fields.text("maxDelayMs"),
            total_budget_ms: fields.text("totalBudgetMs"),
            jitter_type: fields.text("jitterType"),
            jitter_fraction: fields.text("jitterFraction"),
            jitter_ms: fields.text("jitterMs"),
            retryable_status_codes: fields.text("retryableStatusCodes"),
            retryable_grpc_codes: fields.text("retryableGrpcCodes"),
            attempt_timeout_ms: fields.text("attemptTimeoutMs"),
            visibility_timeout_ms: fields.text("visibilityTimeoutMs"),
            on_success_url: fields.text("onSuccessUrl"),
            on_exhausted_url: fields.text("onExhaustedUrl"),
            signing_secret: fields.text("signingSecret"),
        }
    }

    /// The policy that the fields state; those that do not belong to its backoff or jitter are left out.
    pub(super) fn policy(&self) -> Result<RetryPolicy, Trouble> {
        use BackoffType::{Exponential, Polynomial, Schedule};
        let backoff = chosen("backoffType", &BACKOFFS, &self.backoff_type)?;
        let jitter = chosen("jitterType", &JITTERS, &self.jitter_type)?;
        let statuses = numbers("retryableStatusCodes", &self.retryable_status_codes)?;
        let codes = numbers("retryableGrpcCodes", &self.retryable_grpc_codes)?;
        let delays = if backoff == Schedule { Some(numbers("delaysMs", &self.delays_ms)?) } else { None };
        Ok(RetryPolicy {
            policy_id: stated(&self.policy_id),
            version: None,
            max_attempts: number("maxAttempts", &self.max_attempts)?,
            backoff_type: Some(backoff),
            initial_delay_ms: number_if(backoff != Schedule, "initialDelayMs", &self.initial_delay_ms)?,
            multiplier: number_if(backoff == Exponential, "multiplier", &self.multiplier)?,
            exponent: number_if(backoff == Polynomial, "exponent", &self.exponent)?,
            delays_ms: delays,
            max_delay_ms: number("maxDelayMs", &self.max_delay_ms)?,
            total_budget_ms: Some(number("totalBudgetMs", &self.total_budget_ms)?),
            jitter_type: Some(jitter),
            jitter_fraction: number_if(
                jitter == JitterType::Proportional,
                "jitterFraction",
                &self.jitter_fraction,
            )?,
            jitter_ms: number_if(jitter == JitterType::Absolute, "jitterMs", &self.jitter_ms)?,
            retryable_status_codes: Some(statuses.into_iter().collect()),
            retryable_grpc_codes: Some(codes.into_iter().collect()),
            attempt_timeout_ms: number("attemptTimeoutMs", &self.attempt_timeout_ms)?,
            visibility_timeout_ms: number("visibilityTimeoutMs", &self.visibility_timeout_ms)?,
            on_success_url: stated(&self.on_success_url),
            on_exhausted_url: stated(&self.on_exhausted_url),
            signing_secret: stated(&self.signing_secret),
        })
    }

    /// Every growth of waits, and whether it is chosen.
    pub(super) fn backoffs(&self) -> Vec<(&'static str, String, bool)> {
        BACKOFFS.iter().map(|(name, _)| (*name, words::plain(name), *name == self.backoff_type)).collect()
    }

    /// Every spread, and whether it is chosen.
    pub(super) fn jitters(&self) -> Vec<(&'static str, String, bool)> {
        JITTERS.iter().map(|(name, _)| (*name, words::plain(name), *name == self.jitter_type)).collect()
    }
}

fn named<T: Copy + PartialEq>(all: &[(&'static str, T)], one: T) -> String {
    all.iter().find(|(_, value)| *value == one).map_or("", |(name, _)| name).to_owned()
}

fn chosen<T: Copy>(field: &str, all: &[(&'static str, T)], text: &str) -> Result<T, Trouble> {
    let found = all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| Trouble::Senseless(format!("{field}: there is no {text:?}")))
}

/// A text that is not empty.
fn stated(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn number_if<T: std::str::FromStr>(applies: bool, field: &str, text: &str) -> Result<Option<T>, Trouble> {
    if applies { number(field, text) } else { Ok(None) }
}

fn number<T: std::str::FromStr>(field: &str, text: &str) -> Result<Option<T>, Trouble> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |_| Trouble::Senseless(format!("{field}: {text:?} is not a number that fits here"));
    text.replace(['_', ' '], "").parse().map(Some).map_err(wrong)
}

fn numbers<T: std::str::FromStr>(field: &str, text: &str) -> Result<Vec<T>, Trouble> {
    let parts = text.split([',', ' ', ';']).filter(|part| !part.is_empty());
    parts.filter_map(|part| number(field, part).transpose()).collect()
}
