//! A retry policy on the wire: flat fields, each of which says what is wrong with it by name.

use std::collections::BTreeSet;
use std::time::Duration;

use redrive_core::limits::HORIZON;
use redrive_core::policy::backoff::Curve;
use redrive_core::time::ceil_ms;
use redrive_core::{Backoff, Eligibility, Invalid, Jitter, Policy, PolicyRef};
use redrive_delivery::Target;
use redrive_delivery::call::check_report_target;
use redrive_delivery::secrets::SECRET_NAME_BYTES_MAX;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::error::{Answer, Problem};

/// How the wait grows from one retry to the next; `k` is the number of attempts that have failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum BackoffType {
    /// `initialDelayMs · multiplier^(k−1)`
    Exponential,
    /// `initialDelayMs · k`
    Linear,
    /// `initialDelayMs`
    Fixed,
    /// `initialDelayMs · k^exponent`
    Polynomial,
    /// The k-th of `delaysMs`; the last one repeats.
    Schedule,
}

/// How waits are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum JitterType {
    /// Not at all.
    None,
    /// From zero to the wait.
    Full,
    /// From half the wait to the wait.
    Equal,
    /// From `initialDelayMs` to three times the wait before.
    Decorrelated,
    /// By `jitterFraction` of the wait to either side.
    Proportional,
    /// By `jitterMs` to either side.
    Absolute,
}

/// A retry policy. What is absent has the value of the default policy.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetryPolicy {
    /// Its name: letters, digits, `.`, `_` and `-`, a letter or digit first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub policy_id: Option<String>,
    /// Its version, from 1; what is sent is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub version: Option<u32>,
    /// Attempts in all, the first one included; 8 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10000)]
    pub max_attempts: Option<u32>,
    /// `EXPONENTIAL` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_type: Option<BackoffType>,
    /// The first wait; 1000 when absent. Not for `SCHEDULE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 31536000000u64)]
    pub initial_delay_ms: Option<u64>,
    /// For `EXPONENTIAL`; 2 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0)]
    pub multiplier: Option<f64>,
    /// For `POLYNOMIAL`; 2 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub exponent: Option<f64>,
    /// For `SCHEDULE`: each wait; the last one repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 100)]
    pub delays_ms: Option<Vec<u64>>,
    /// No wait is longer; 300000 when absent, or the longest wait that another field states.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 31536000000u64)]
    pub max_delay_ms: Option<u64>,
    /// How long a task may take in all; 3600000 when absent, without end when null.
    #[serde(default, deserialize_with = "stated", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 31536000000u64)]
    pub total_budget_ms: Option<Option<u64>>,
    /// `FULL` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_type: Option<JitterType>,
    /// For `PROPORTIONAL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1)]
    pub jitter_fraction: Option<f64>,
    /// For `ABSOLUTE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 31536000000u64)]
    pub jitter_ms: Option<u64>,
    /// HTTP statuses that are retried; 408, 425, 429, 500, 502, 503 and 504 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<u16>>)]
    pub retryable_status_codes: Option<BTreeSet<u16>>,
    /// gRPC codes that are retried, by number; 14 (UNAVAILABLE) when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<u16>>)]
    pub retryable_grpc_codes: Option<BTreeSet<u16>>,
    /// How long one attempt may take; 30000 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 43200000)]
    pub attempt_timeout_ms: Option<u64>,
    /// How long one attempt is leased: after a crash it is left alone for so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 43200000)]
    pub visibility_timeout_ms: Option<u64>,
    /// Where the outcome of a task that succeeded is delivered, by `http` or `https`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_success_url: Option<String>,
    /// Where the outcome of a task that is exhausted is delivered, by `http` or `https`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exhausted_url: Option<String>,
    /// The name of the secret that signs each delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<String>,
}

/// The longest attempt that a policy or task may allow.
pub const ATTEMPT_TIMEOUT_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// What a policy keeps for the service, by the name of its field.
pub const ON_SUCCESS_URL: &str = "onSuccessUrl";
/// See [`ON_SUCCESS_URL`].
pub const ON_EXHAUSTED_URL: &str = "onExhaustedUrl";
/// See [`ON_SUCCESS_URL`].
pub const SIGNING_SECRET: &str = "signingSecret";

impl RetryPolicy {
    /// The policy that these fields state.
    pub fn to_policy(&self) -> Answer<Policy> {
        let default = Policy::default();
        let policy = Policy {
            backoff: self.backoff(&default.backoff)?,
            jitter: self.jitter(default.jitter)?,
            total_budget: self.total_budget(default.total_budget)?,
            eligibility: self.eligibility(default.eligibility)?,
            attempt_timeout: self.attempt_timeout()?,
            ..default
        };
        let policy = match self.max_attempts {
            Some(attempts) => policy.with_max_attempts(attempts)?,
            None => policy,
        };
        self.annotate(policy)
    }

    /// The fields of a policy, all of those that apply to it.
    pub fn show(policy: &Policy) -> Self {
        let mut shown = Self {
            max_attempts: Some(policy.max_attempts.get()),
            total_budget_ms: Some(policy.total_budget.map(ms)),
            retryable_status_codes: Some(policy.eligibility.retryable_status_codes.clone()),
            retryable_grpc_codes: Some(policy.eligibility.retryable_grpc_codes.clone()),
            attempt_timeout_ms: policy.attempt_timeout.map(ms),
            visibility_timeout_ms: policy.lease.map(ms),
            max_delay_ms: Some(ms(policy.backoff.max_delay())),
            on_success_url: policy.annotations.get(ON_SUCCESS_URL).cloned(),
            on_exhausted_url: policy.annotations.get(ON_EXHAUSTED_URL).cloned(),
            signing_secret: policy.annotations.get(SIGNING_SECRET).cloned(),
            ..Self::default()
        };
        shown.show_backoff(policy.backoff.curve());
        shown.show_jitter(policy.jitter);
        shown
    }

    /// The same under its name.
    pub fn named(self, policy: &PolicyRef) -> Self {
        let policy_id = Some(policy.name.as_str().to_owned());
        Self { policy_id, version: Some(policy.version.get()), ..self }
    }

    fn annotate(&self, policy: Policy) -> Answer<Policy> {
        let mut policy = policy.with_lease(self.visibility_timeout_ms.map(Duration::from_millis))?;
        for (field, url) in
            [(ON_SUCCESS_URL, &self.on_success_url), (ON_EXHAUSTED_URL, &self.on_exhausted_url)]
        {
            if let Some(url) = url {
                let target = Target::parse_as(field, url)?;
                check_report_target(field, &target)?;
                policy = policy.with_annotation(field, target.to_string())?;
            }
        }
        if let Some(secret) = &self.signing_secret {
            if secret.is_empty() || secret.len() > SECRET_NAME_BYTES_MAX {
                let detail = format!("must be from 1 to {SECRET_NAME_BYTES_MAX} bytes long");
                return Err(Problem::invalid(SIGNING_SECRET, detail));
            }
            policy = policy.with_annotation(SIGNING_SECRET, secret.as_str())?;
        }
        Ok(policy)
    }

    fn backoff(&self, default: &Backoff) -> Answer<Backoff> {
        use BackoffType::{Exponential, Fixed, Linear, Polynomial, Schedule};
        let kind = self.backoff_type.unwrap_or(Exponential);
        self.belongs("multiplier", self.multiplier.is_some(), kind == Exponential)?;
        self.belongs("exponent", self.exponent.is_some(), kind == Polynomial)?;
        self.belongs("delaysMs", self.delays_ms.is_some(), kind == Schedule)?;
        self.belongs("initialDelayMs", self.initial_delay_ms.is_some(), kind != Schedule)?;
        let initial = self.initial_delay_ms.map_or(default.initial(), Duration::from_millis);
        let curve = match kind {
            Exponential => Curve::Exponential(initial, self.multiplier.unwrap_or(2.0)),
            Linear => Curve::Linear(initial),
            Fixed => Curve::Fixed(initial),
            Polynomial => Curve::Polynomial(initial, self.exponent.unwrap_or(2.0)),
            Schedule => Curve::Schedule(self.delays()?),
        };
        let stated =
            if let Curve::Schedule(delays) = &curve { delays.iter().max().copied() } else { Some(initial) };
        within("initialDelayMs", initial)?;
        let longest = stated.unwrap_or_default().max(default.max_delay());
        Ok(Backoff::new(curve, self.max_delay_ms.map_or(longest, Duration::from_millis))?)
    }

    fn delays(&self) -> Answer<Vec<Duration>> {
        let missing = || Problem::invalid("delaysMs", "is missing: backoffType SCHEDULE needs it");
        let delays = self.delays_ms.as_ref().ok_or_else(missing)?;
        delays.iter().map(|ms| within("delaysMs", Duration::from_millis(*ms))).collect()
    }

    fn jitter(&self, default: Jitter) -> Answer<Jitter> {
        let kind = self.jitter_type;
        self.belongs(
            "jitterFraction",
            self.jitter_fraction.is_some(),
            kind == Some(JitterType::Proportional),
        )?;
        self.belongs("jitterMs", self.jitter_ms.is_some(), kind == Some(JitterType::Absolute))?;
        let missing = |field| Problem::invalid(field, "is missing: this jitterType needs it");
        Ok(match kind {
            None => default,
            Some(JitterType::None) => Jitter::None,
            Some(JitterType::Full) => Jitter::Full,
            Some(JitterType::Equal) => Jitter::Equal,
            Some(JitterType::Decorrelated) => Jitter::Decorrelated,
            Some(JitterType::Proportional) => {
                Jitter::proportional(self.jitter_fraction.ok_or_else(|| missing("jitterFraction"))?)?
            }
            Some(JitterType::Absolute) => {
                let width = Duration::from_millis(self.jitter_ms.ok_or_else(|| missing("jitterMs"))?);
                Jitter::absolute(within("jitterMs", width)?)
            }
        })
    }

    fn total_budget(&self, default: Option<Duration>) -> Answer<Option<Duration>> {
        match self.total_budget_ms {
            None => Ok(default),
            Some(None) => Ok(None),
            Some(Some(0)) => Err(Problem::invalid("totalBudgetMs", "must be at least 1, or null for no end")),
            Some(Some(ms)) => within("totalBudgetMs", Duration::from_millis(ms)).map(Some),
        }
    }

    fn eligibility(&self, default: Eligibility) -> Answer<Eligibility> {
        let status = self.retryable_status_codes.clone().unwrap_or(default.retryable_status_codes);
        if let Some(wrong) = status.iter().find(|code| !(100..=599).contains(*code)) {
            let detail = format!("must hold statuses from 100 to 599, holds {wrong}");
            return Err(Problem::invalid("retryableStatusCodes", detail));
        }
        let grpc = self.retryable_grpc_codes.clone().unwrap_or(default.retryable_grpc_codes);
        if let Some(wrong) = grpc.iter().find(|code| !(1..=16).contains(*code)) {
            let detail = format!("must hold codes from 1 to 16, holds {wrong}");
            return Err(Problem::invalid("retryableGrpcCodes", detail));
        }
        Ok(Eligibility { retryable_status_codes: status, retryable_grpc_codes: grpc, ..default })
    }

    fn attempt_timeout(&self) -> Answer<Option<Duration>> {
        attempt_timeout("attemptTimeoutMs", self.attempt_timeout_ms)
    }

    /// Refuses a field that would be ignored.
    fn belongs(&self, field: &'static str, given: bool, applies: bool) -> Result<(), Invalid> {
        if given && !applies {
            return Err(Invalid::new(
                field,
                "does not belong to this backoffType or jitterType; leave it out",
            ));
        }
        Ok(())
    }

    fn show_backoff(&mut self, curve: &Curve) {
        let (kind, initial) = match curve {
            Curve::Fixed(initial) => (BackoffType::Fixed, Some(initial)),
            Curve::Linear(initial) => (BackoffType::Linear, Some(initial)),
            Curve::Exponential(initial, multiplier) => {
                self.multiplier = Some(*multiplier);
                (BackoffType::Exponential, Some(initial))
            }
            Curve::Polynomial(initial, exponent) => {
                self.exponent = Some(*exponent);
                (BackoffType::Polynomial, Some(initial))
            }
            Curve::Schedule(delays) => {
                self.delays_ms = Some(delays.iter().copied().map(ms).collect());
                (BackoffType::Schedule, None)
            }
        };
        self.backoff_type = Some(kind);
        self.initial_delay_ms = initial.copied().map(ms);
    }

    fn show_jitter(&mut self, jitter: Jitter) {
        self.jitter_type = Some(match jitter {
            Jitter::None => JitterType::None,
            Jitter::Full => JitterType::Full,
            Jitter::Equal => JitterType::Equal,
            Jitter::Decorrelated => JitterType::Decorrelated,
            Jitter::Proportional { fraction } => {
                self.jitter_fraction = Some(fraction.get());
                JitterType::Proportional
            }
            Jitter::Absolute { width } => {
                self.jitter_ms = Some(ms(width));
                JitterType::Absolute
            }
        });
    }
}

/// The limit of one attempt, within bounds.
pub(crate) fn attempt_timeout(field: &'static str, asked: Option<u64>) -> Answer<Option<Duration>> {
    let longest = ATTEMPT_TIMEOUT_MAX.as_millis();
    match asked {
        Some(ms) if ms == 0 || u128::from(ms) > longest => {
            Err(Problem::invalid(field, format!("must be from 1 to {longest}, is {ms}")))
        }
        asked => Ok(asked.map(Duration::from_millis)),
    }
}

/// Milliseconds on the wire.
pub(crate) fn ms(span: Duration) -> u64 {
    u64::try_from(ceil_ms(span)).unwrap_or(0)
}

fn within(field: &'static str, span: Duration) -> Answer<Duration> {
    if span <= HORIZON {
        return Ok(span);
    }
    Err(Problem::invalid(field, format!("must be at most {} (a year)", HORIZON.as_millis())))
}

/// Tells a null that was stated from a field that was left out.
fn stated<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> RetryPolicy {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn nothing_stated_is_the_default_policy() {
        assert_eq!(parse("{}").to_policy().unwrap(), Policy::default());
    }

    #[test]
    fn what_is_shown_states_the_same_policy() {
        for json in [
            "{}",
            r#"{"backoffType":"FIXED","initialDelayMs":600000}"#,
            r#"{"backoffType":"LINEAR","initialDelayMs":5,"maxDelayMs":50,"totalBudgetMs":null}"#,
            r#"{"multiplier":1.1,"jitterType":"DECORRELATED","maxAttempts":1}"#,
            r#"{"backoffType":"POLYNOMIAL","exponent":0.3,"jitterType":"PROPORTIONAL","jitterFraction":0.1}"#,
            r#"{"backoffType":"SCHEDULE","delaysMs":[5,3600000,7],"jitterType":"ABSOLUTE","jitterMs":20}"#,
            r#"{"jitterType":"NONE","retryableStatusCodes":[],"retryableGrpcCodes":[4,14]}"#,
            r#"{"jitterType":"EQUAL","attemptTimeoutMs":100,"totalBudgetMs":5,"visibilityTimeoutMs":5000}"#,
            r#"{"onSuccessUrl":"https://a.example/","onExhaustedUrl":"http://b.example/x","signingSecret":"main"}"#,
        ] {
            let policy = parse(json).to_policy().unwrap();
            let shown = serde_json::to_string(&RetryPolicy::show(&policy)).unwrap();
            assert_eq!(parse(&shown).to_policy().unwrap(), policy, "{json} was shown as {shown}");
        }
    }

    #[test]
    fn what_is_wrong_names_its_field() {
        for (json, field) in [
            (r#"{"maxAttempts":0}"#, "maxAttempts"),
            (r#"{"maxAttempts":10001}"#, "maxAttempts"),
            (r#"{"multiplier":0}"#, "multiplier"),
            (r#"{"multiplier":2,"backoffType":"FIXED"}"#, "multiplier"),
            (r#"{"exponent":2}"#, "exponent"),
            (r#"{"delaysMs":[1]}"#, "delaysMs"),
            (r#"{"backoffType":"SCHEDULE"}"#, "delaysMs"),
            (r#"{"backoffType":"SCHEDULE","delaysMs":[]}"#, "delaysMs"),
            (r#"{"backoffType":"SCHEDULE","delaysMs":[31536000001]}"#, "delaysMs"),
            (r#"{"backoffType":"SCHEDULE","delaysMs":[1],"initialDelayMs":1}"#, "initialDelayMs"),
            (r#"{"initialDelayMs":2,"maxDelayMs":1}"#, "initialDelayMs"),
            (r#"{"initialDelayMs":31536000001}"#, "initialDelayMs"),
            (r#"{"maxDelayMs":31536000001}"#, "maxDelayMs"),
            (r#"{"totalBudgetMs":0}"#, "totalBudgetMs"),
            (r#"{"jitterFraction":0.1}"#, "jitterFraction"),
            (r#"{"jitterType":"PROPORTIONAL"}"#, "jitterFraction"),
            (r#"{"jitterType":"PROPORTIONAL","jitterFraction":2}"#, "jitterFraction"),
            (r#"{"jitterType":"ABSOLUTE"}"#, "jitterMs"),
            (r#"{"jitterMs":1}"#, "jitterMs"),
            (r#"{"retryableStatusCodes":[99]}"#, "retryableStatusCodes"),
            (r#"{"retryableGrpcCodes":[0]}"#, "retryableGrpcCodes"),
            (r#"{"attemptTimeoutMs":0}"#, "attemptTimeoutMs"),
            (r#"{"visibilityTimeoutMs":999}"#, "visibilityTimeoutMs"),
            (r#"{"onSuccessUrl":"x"}"#, "onSuccessUrl"),
            (r#"{"onExhaustedUrl":"ftp://a/"}"#, "onExhaustedUrl"),
            (r#"{"onSuccessUrl":"grpc://a.example/b.C/D"}"#, "onSuccessUrl"),
            (r#"{"onExhaustedUrl":"grpcs://a.example/b.C/D"}"#, "onExhaustedUrl"),
            (r#"{"signingSecret":""}"#, "signingSecret"),
        ] {
            let problem = parse(json).to_policy().unwrap_err();
            assert_eq!(problem.field.as_deref(), Some(field), "{json}: {problem:?}");
        }
    }
}
