//! Retry policies as flat fields. An error names the invalid field.

use std::collections::BTreeSet;
use std::time::Duration;

use redrive_core::limits::HORIZON;
use redrive_core::policy::backoff::Curve;
use redrive_core::{Backoff, Eligibility, Invalid, Jitter, Policy, PolicyRef};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::millis::ms;

/// How the wait grows from one retry to the next; `k` is the number of attempts that have failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
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

/// The random part of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JitterType {
    /// No random part.
    None,
    /// A random duration from zero to the wait.
    Full,
    /// A random duration from half the wait to the wait.
    Equal,
    /// A random duration from `initialDelayMs` to three times the previous wait.
    Decorrelated,
    /// Lengthens or shortens the wait by up to `jitterFraction` of it.
    Proportional,
    /// Lengthens or shortens the wait by up to `jitterMs`.
    Absolute,
}

/// A retry policy. A field that is absent has the value of the default policy.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetryPolicy {
    /// Its name: letters, digits, `.`, `_` and `-`, a letter or digit first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub policy_id: Option<String>,
    /// Its version, from 1. The service ignores it in requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 4294967295_u64, value_type = Option<u64>)]
    pub version: Option<u32>,
    /// The largest number of attempts, including the first; 8 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10000)]
    pub max_attempts: Option<u32>,
    /// How the wait grows; `exponential` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_type: Option<BackoffType>,
    /// The first wait; 1000 when absent. Not for `schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 31536000000u64)]
    pub initial_delay_ms: Option<u64>,
    /// The factor of `exponential` backoff; 2 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0)]
    pub multiplier: Option<f64>,
    /// The power of `polynomial` backoff; 2 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub exponent: Option<f64>,
    /// The waits of a `schedule`; the last one repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 100)]
    pub delays_ms: Option<Vec<u64>>,
    /// The longest wait. When absent: 300000, or the longest wait in another field if that is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 31536000000u64)]
    pub max_delay_ms: Option<u64>,
    /// The time budget: attempts may start within this time from the first due time of a run. 3600000 when
    /// absent, unlimited when null.
    #[serde(default, deserialize_with = "null_as_value", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 31536000000u64)]
    pub total_budget_ms: Option<Option<u64>>,
    /// The random part of a wait; `full` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_type: Option<JitterType>,
    /// The fraction of `proportional` jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1)]
    pub jitter_fraction: Option<f64>,
    /// The size of `absolute` jitter.
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
    /// The lease of one attempt. After a crash, the job runs again when its lease has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 43200000)]
    pub lease_ms: Option<u64>,
    /// The callback URL for a task that succeeds, `http` or `https`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_success_url: Option<String>,
    /// The callback URL for a task that is dead, `http` or `https`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure_url: Option<String>,
    /// The name of the secret that signs each delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<String>,
}

/// The longest attempt that a policy or task may allow.
pub const ATTEMPT_TIMEOUT_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// The annotation of a policy that stores the field of the same name.
pub const ON_SUCCESS_URL: &str = "onSuccessUrl";
/// See [`ON_SUCCESS_URL`].
pub const ON_FAILURE_URL: &str = "onFailureUrl";
/// See [`ON_SUCCESS_URL`].
pub const SIGNING_SECRET: &str = "signingSecret";

/// The callback URL of a policy for dead tasks. Older versions stored it as `onExhaustedUrl`.
pub fn on_failure_url(policy: &Policy) -> Option<&String> {
    policy.annotations.get(ON_FAILURE_URL).or_else(|| policy.annotations.get("onExhaustedUrl"))
}

impl RetryPolicy {
    /// The policy that these fields describe.
    pub fn to_policy(&self) -> Result<Policy, Invalid> {
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

    /// Every field that applies to a policy.
    pub fn show(policy: &Policy) -> Self {
        let mut shown = Self {
            max_attempts: Some(policy.max_attempts.get()),
            total_budget_ms: Some(policy.total_budget.map(ms)),
            retryable_status_codes: Some(policy.eligibility.retryable_status_codes.clone()),
            retryable_grpc_codes: Some(policy.eligibility.retryable_grpc_codes.clone()),
            attempt_timeout_ms: policy.attempt_timeout.map(ms),
            lease_ms: policy.lease.map(ms),
            max_delay_ms: Some(ms(policy.backoff.max_delay())),
            on_success_url: policy.annotations.get(ON_SUCCESS_URL).cloned(),
            on_failure_url: on_failure_url(policy).cloned(),
            signing_secret: policy.annotations.get(SIGNING_SECRET).cloned(),
            ..Self::default()
        };
        shown.show_backoff(policy.backoff.curve());
        shown.show_jitter(policy.jitter);
        shown
    }

    /// Adds the name and the version of the policy.
    pub fn with_name(self, policy: &PolicyRef) -> Self {
        let policy_id = Some(policy.name.as_str().to_owned());
        Self { policy_id, version: Some(policy.version.get()), ..self }
    }

    fn annotate(&self, policy: Policy) -> Result<Policy, Invalid> {
        let mut policy = policy.with_lease(self.lease_ms.map(Duration::from_millis))?;
        for (field, url) in [(ON_SUCCESS_URL, &self.on_success_url), (ON_FAILURE_URL, &self.on_failure_url)] {
            if let Some(url) = url {
                policy = policy.with_annotation(field, url.as_str())?;
            }
        }
        if let Some(secret) = &self.signing_secret {
            policy = policy.with_annotation(SIGNING_SECRET, secret.as_str())?;
        }
        Ok(policy)
    }

    fn backoff(&self, default: &Backoff) -> Result<Backoff, Invalid> {
        use BackoffType::{Exponential, Fixed, Linear, Polynomial, Schedule};
        let kind = self.backoff_type.unwrap_or(Exponential);
        self.check_applies("multiplier", self.multiplier.is_some(), kind == Exponential)?;
        self.check_applies("exponent", self.exponent.is_some(), kind == Polynomial)?;
        self.check_applies("delaysMs", self.delays_ms.is_some(), kind == Schedule)?;
        self.check_applies("initialDelayMs", self.initial_delay_ms.is_some(), kind != Schedule)?;
        let initial = self.initial_delay_ms.map_or(default.initial(), Duration::from_millis);
        let curve = match kind {
            Exponential => Curve::Exponential(initial, self.multiplier.unwrap_or(2.0)),
            Linear => Curve::Linear(initial),
            Fixed => Curve::Fixed(initial),
            Polynomial => Curve::Polynomial(initial, self.exponent.unwrap_or(2.0)),
            Schedule => Curve::Schedule(self.delays()?),
        };
        let configured =
            if let Curve::Schedule(delays) = &curve { delays.iter().max().copied() } else { Some(initial) };
        at_most_a_year("initialDelayMs", initial)?;
        let longest = configured.unwrap_or_default().max(default.max_delay());
        Backoff::new(curve, self.max_delay_ms.map_or(longest, Duration::from_millis))
    }

    fn delays(&self) -> Result<Vec<Duration>, Invalid> {
        let missing = || Invalid::new("delaysMs", "is missing: backoffType schedule needs it");
        let delays = self.delays_ms.as_ref().ok_or_else(missing)?;
        delays.iter().map(|ms| at_most_a_year("delaysMs", Duration::from_millis(*ms))).collect()
    }

    fn jitter(&self, default: Jitter) -> Result<Jitter, Invalid> {
        let kind = self.jitter_type;
        self.check_applies(
            "jitterFraction",
            self.jitter_fraction.is_some(),
            kind == Some(JitterType::Proportional),
        )?;
        self.check_applies("jitterMs", self.jitter_ms.is_some(), kind == Some(JitterType::Absolute))?;
        let missing = |field| Invalid::new(field, "is missing: this jitterType needs it");
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
                Jitter::absolute(at_most_a_year("jitterMs", width)?)
            }
        })
    }

    fn total_budget(&self, default: Option<Duration>) -> Result<Option<Duration>, Invalid> {
        match self.total_budget_ms {
            None => Ok(default),
            Some(None) => Ok(None),
            Some(Some(0)) => Err(Invalid::new("totalBudgetMs", "must be at least 1, or null for no limit")),
            Some(Some(ms)) => at_most_a_year("totalBudgetMs", Duration::from_millis(ms)).map(Some),
        }
    }

    fn eligibility(&self, default: Eligibility) -> Result<Eligibility, Invalid> {
        let status = self.retryable_status_codes.clone().unwrap_or(default.retryable_status_codes);
        if let Some(wrong) = status.iter().find(|code| !(100..=599).contains(*code)) {
            let detail = format!("must contain only statuses from 100 to 599, contains {wrong}");
            return Err(Invalid::new("retryableStatusCodes", detail));
        }
        let grpc = self.retryable_grpc_codes.clone().unwrap_or(default.retryable_grpc_codes);
        if let Some(wrong) = grpc.iter().find(|code| !(1..=16).contains(*code)) {
            let detail = format!("must contain only codes from 1 to 16, contains {wrong}");
            return Err(Invalid::new("retryableGrpcCodes", detail));
        }
        Ok(Eligibility { retryable_status_codes: status, retryable_grpc_codes: grpc, ..default })
    }

    fn attempt_timeout(&self) -> Result<Option<Duration>, Invalid> {
        attempt_timeout("attemptTimeoutMs", self.attempt_timeout_ms)
    }

    /// Rejects a field that would be ignored.
    fn check_applies(&self, field: &'static str, given: bool, applies: bool) -> Result<(), Invalid> {
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

/// Checks the timeout of one attempt. The error names `field`.
pub fn attempt_timeout(field: &'static str, asked: Option<u64>) -> Result<Option<Duration>, Invalid> {
    let longest = ATTEMPT_TIMEOUT_MAX.as_millis();
    match asked {
        Some(ms) if ms == 0 || u128::from(ms) > longest => {
            Err(Invalid::new(field, format!("must be from 1 to {longest}, is {ms}")))
        }
        asked => Ok(asked.map(Duration::from_millis)),
    }
}

fn at_most_a_year(field: &'static str, span: Duration) -> Result<Duration, Invalid> {
    if span <= HORIZON {
        return Ok(span);
    }
    Err(Invalid::new(field, format!("must be at most {} (a year)", HORIZON.as_millis())))
}

/// Reads `null` as a value, to distinguish it from an absent field.
fn null_as_value<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> RetryPolicy {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn without_fields_it_is_the_default_policy() {
        assert_eq!(parse("{}").to_policy().unwrap(), Policy::default());
    }

    #[test]
    fn the_shown_fields_describe_the_same_policy() {
        for json in [
            "{}",
            r#"{"backoffType":"fixed","initialDelayMs":600000}"#,
            r#"{"backoffType":"linear","initialDelayMs":5,"maxDelayMs":50,"totalBudgetMs":null}"#,
            r#"{"multiplier":1.1,"jitterType":"decorrelated","maxAttempts":1}"#,
            r#"{"backoffType":"polynomial","exponent":0.3,"jitterType":"proportional","jitterFraction":0.1}"#,
            r#"{"backoffType":"schedule","delaysMs":[5,3600000,7],"jitterType":"absolute","jitterMs":20}"#,
            r#"{"jitterType":"none","retryableStatusCodes":[],"retryableGrpcCodes":[4,14]}"#,
            r#"{"jitterType":"equal","attemptTimeoutMs":100,"totalBudgetMs":5,"leaseMs":5000}"#,
            r#"{"onSuccessUrl":"https://a.example/","onFailureUrl":"http://b.example/x","signingSecret":"main"}"#,
        ] {
            let policy = parse(json).to_policy().unwrap();
            let shown = serde_json::to_string(&RetryPolicy::show(&policy)).unwrap();
            assert_eq!(parse(&shown).to_policy().unwrap(), policy, "{json} was shown as {shown}");
        }
    }

    #[test]
    fn an_error_names_the_invalid_field() {
        for (json, field) in [
            (r#"{"maxAttempts":0}"#, "maxAttempts"),
            (r#"{"maxAttempts":10001}"#, "maxAttempts"),
            (r#"{"multiplier":0}"#, "multiplier"),
            (r#"{"multiplier":2,"backoffType":"fixed"}"#, "multiplier"),
            (r#"{"exponent":2}"#, "exponent"),
            (r#"{"delaysMs":[1]}"#, "delaysMs"),
            (r#"{"backoffType":"schedule"}"#, "delaysMs"),
            (r#"{"backoffType":"schedule","delaysMs":[]}"#, "delaysMs"),
            (r#"{"backoffType":"schedule","delaysMs":[31536000001]}"#, "delaysMs"),
            (r#"{"backoffType":"schedule","delaysMs":[1],"initialDelayMs":1}"#, "initialDelayMs"),
            (r#"{"initialDelayMs":2,"maxDelayMs":1}"#, "initialDelayMs"),
            (r#"{"initialDelayMs":31536000001}"#, "initialDelayMs"),
            (r#"{"maxDelayMs":31536000001}"#, "maxDelayMs"),
            (r#"{"totalBudgetMs":0}"#, "totalBudgetMs"),
            (r#"{"jitterFraction":0.1}"#, "jitterFraction"),
            (r#"{"jitterType":"proportional"}"#, "jitterFraction"),
            (r#"{"jitterType":"proportional","jitterFraction":2}"#, "jitterFraction"),
            (r#"{"jitterType":"absolute"}"#, "jitterMs"),
            (r#"{"jitterMs":1}"#, "jitterMs"),
            (r#"{"retryableStatusCodes":[99]}"#, "retryableStatusCodes"),
            (r#"{"retryableGrpcCodes":[0]}"#, "retryableGrpcCodes"),
            (r#"{"attemptTimeoutMs":0}"#, "attemptTimeoutMs"),
            (r#"{"leaseMs":999}"#, "leaseMs"),
        ] {
            let problem = parse(json).to_policy().unwrap_err();
            assert_eq!(problem.field, field, "{json}: {problem:?}");
        }
    }
}
