//! The form of the policy designer: from a policy to form fields, and back.

use std::collections::BTreeSet;

use redrive_wire::policy::{BackoffType, JitterType, RetryPolicy};

use crate::error::PageError;
use crate::form::FormFields;
use crate::text;

const BACKOFFS: [(&str, BackoffType); 5] = [
    ("exponential", BackoffType::Exponential),
    ("linear", BackoffType::Linear),
    ("fixed", BackoffType::Fixed),
    ("polynomial", BackoffType::Polynomial),
    ("schedule", BackoffType::Schedule),
];
const JITTERS: [(&str, JitterType); 6] = [
    ("none", JitterType::None),
    ("full", JitterType::Full),
    ("equal", JitterType::Equal),
    ("decorrelated", JitterType::Decorrelated),
    ("proportional", JitterType::Proportional),
    ("absolute", JitterType::Absolute),
];

/// The fields of the form.
#[derive(Debug, Default)]
pub(super) struct PolicyForm {
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
    pub(super) lease_ms: String,
    pub(super) on_success_url: String,
    pub(super) on_failure_url: String,
    pub(super) signing_secret: String,
}

impl PolicyForm {
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
            backoff_type: name_of(&BACKOFFS, backoff),
            initial_delay_ms: text(&policy.initial_delay_ms),
            multiplier: text(&policy.multiplier),
            exponent: text(&policy.exponent),
            delays_ms: delays.join(", "),
            max_delay_ms: text(&policy.max_delay_ms),
            total_budget_ms: text(&budget),
            jitter_type: name_of(&JITTERS, jitter),
            jitter_fraction: text(&policy.jitter_fraction),
            jitter_ms: text(&policy.jitter_ms),
            retryable_status_codes: list(&policy.retryable_status_codes),
            retryable_grpc_codes: list(&policy.retryable_grpc_codes),
            attempt_timeout_ms: text(&policy.attempt_timeout_ms),
            lease_ms: text(&policy.lease_ms),
            on_success_url: policy.on_success_url.clone().unwrap_or_default(),
            on_failure_url: policy.on_failure_url.clone().unwrap_or_default(),
            signing_secret: policy.signing_secret.clone().unwrap_or_default(),
        }
    }

    pub(super) fn read(fields: &FormFields) -> Self {
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
            lease_ms: fields.text("leaseMs"),
            on_success_url: fields.text("onSuccessUrl"),
            on_failure_url: fields.text("onFailureUrl"),
            signing_secret: fields.text("signingSecret"),
        }
    }

    /// Parses the fields into a policy. Fields of another backoff or jitter are ignored.
    pub(super) fn policy(&self) -> Result<RetryPolicy, PageError> {
        use BackoffType::{Exponential, Polynomial, Schedule};
        let backoff = parse_choice("backoffType", &BACKOFFS, &self.backoff_type)?;
        let jitter = parse_choice("jitterType", &JITTERS, &self.jitter_type)?;
        let statuses = parse_numbers("retryableStatusCodes", &self.retryable_status_codes)?;
        let codes = parse_numbers("retryableGrpcCodes", &self.retryable_grpc_codes)?;
        let delays =
            if backoff == Schedule { Some(parse_numbers("delaysMs", &self.delays_ms)?) } else { None };
        Ok(RetryPolicy {
            policy_id: non_empty(&self.policy_id),
            version: None,
            max_attempts: parse_number("maxAttempts", &self.max_attempts)?,
            backoff_type: Some(backoff),
            initial_delay_ms: parse_number_if(backoff != Schedule, "initialDelayMs", &self.initial_delay_ms)?,
            multiplier: parse_number_if(backoff == Exponential, "multiplier", &self.multiplier)?,
            exponent: parse_number_if(backoff == Polynomial, "exponent", &self.exponent)?,
            delays_ms: delays,
            max_delay_ms: parse_number("maxDelayMs", &self.max_delay_ms)?,
            total_budget_ms: Some(parse_number("totalBudgetMs", &self.total_budget_ms)?),
            jitter_type: Some(jitter),
            jitter_fraction: parse_number_if(
                jitter == JitterType::Proportional,
                "jitterFraction",
                &self.jitter_fraction,
            )?,
            jitter_ms: parse_number_if(jitter == JitterType::Absolute, "jitterMs", &self.jitter_ms)?,
            retryable_status_codes: Some(statuses.into_iter().collect()),
            retryable_grpc_codes: Some(codes.into_iter().collect()),
            attempt_timeout_ms: parse_number("attemptTimeoutMs", &self.attempt_timeout_ms)?,
            lease_ms: parse_number("leaseMs", &self.lease_ms)?,
            on_success_url: non_empty(&self.on_success_url),
            on_failure_url: non_empty(&self.on_failure_url),
            signing_secret: non_empty(&self.signing_secret),
        })
    }

    /// The options of the backoff field: name, label, and whether it is selected.
    pub(super) fn backoffs(&self) -> Vec<(&'static str, String, bool)> {
        BACKOFFS.iter().map(|(name, _)| (*name, text::words(name), *name == self.backoff_type)).collect()
    }

    /// The options of the jitter field: name, label, and whether it is selected.
    pub(super) fn jitters(&self) -> Vec<(&'static str, String, bool)> {
        JITTERS.iter().map(|(name, _)| (*name, text::words(name), *name == self.jitter_type)).collect()
    }
}

fn name_of<T: Copy + PartialEq>(all: &[(&'static str, T)], one: T) -> String {
    all.iter().find(|(_, value)| *value == one).map_or("", |(name, _)| name).to_owned()
}

fn parse_choice<T: Copy>(field: &str, all: &[(&'static str, T)], text: &str) -> Result<T, PageError> {
    let found = all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| PageError::InvalidInput(format!("{field}: unknown value {text:?}")))
}

/// Returns the text unless it is empty.
fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn parse_number_if<T: std::str::FromStr>(
    applies: bool,
    field: &str,
    text: &str,
) -> Result<Option<T>, PageError> {
    if applies { parse_number(field, text) } else { Ok(None) }
}

fn parse_number<T: std::str::FromStr>(field: &str, text: &str) -> Result<Option<T>, PageError> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |_| PageError::InvalidInput(format!("{field}: {text:?} is not a valid number"));
    text.replace(['_', ' '], "").parse().map(Some).map_err(wrong)
}

fn parse_numbers<T: std::str::FromStr>(field: &str, text: &str) -> Result<Vec<T>, PageError> {
    let parts = text.split([',', ' ', ';']).filter(|part| !part.is_empty());
    parts.filter_map(|part| parse_number(field, part).transpose()).collect()
}
