//! Retry policies: number of attempts, waits between them, time budget, and retryable failures.

pub mod backoff;
pub mod eligibility;
pub mod jitter;
pub mod presets;
pub mod preview;
pub mod replay;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use backoff::Backoff;
pub use eligibility::Eligibility;
pub use jitter::{Fraction, Jitter};
pub use preview::{Preview, Retry};

use crate::invalid::Invalid;
use crate::limits::{ANNOTATIONS_BYTES_MAX, ATTEMPTS_MAX, HORIZON, LEASE_MAX, LEASE_MIN};
use crate::names::PolicyName;
use crate::random::RandomSource;

/// A retry policy. It is valid by construction, so that planning a retry never fails.
///
/// ```
/// use redrive_core::{Backoff, Jitter, Policy};
/// use std::time::Duration;
///
/// let policy = Policy::default()
///     .with_max_attempts(6)?
///     .with_backoff(Backoff::exponential(Duration::from_secs(1), 2.0, Duration::from_secs(60))?)
///     .with_jitter(Jitter::Full);
/// assert_eq!(policy.backoff.before_retry(3), Duration::from_secs(4));
/// # Ok::<(), redrive_core::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// The number of attempts, including the first one.
    pub max_attempts: MaxAttempts,
    /// How the wait grows from one retry to the next.
    pub backoff: Backoff,
    /// The random part of each wait, so that jobs that failed together do not retry together.
    pub jitter: Jitter,
    /// The time budget of a run, from its first due time.
    #[serde(rename = "totalBudgetMs", with = "crate::time::millis::option")]
    pub total_budget: Option<Duration>,
    /// The failures that are retried.
    pub eligibility: Eligibility,
    /// How long one attempt may take. If absent, the worker's limit applies.
    #[serde(rename = "attemptTimeoutMs", with = "crate::time::millis::option", default)]
    pub attempt_timeout: Option<Duration>,
    /// How long a lease lasts. If absent, the worker's lease applies.
    #[serde(
        rename = "visibilityTimeoutMs",
        with = "crate::time::millis::option",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub lease: Option<Duration>,
    /// Texts that the service stores with a policy, by name. The decision ignores them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Default for Policy {
    /// 8 attempts within an hour, exponential backoff from 1 s to at most 5 min, full jitter.
    fn default() -> Self {
        presets::standard()
    }
}

impl Policy {
    /// Sets the number of attempts, at least 1.
    pub fn with_max_attempts(self, attempts: u32) -> Result<Self, Invalid> {
        Ok(Self { max_attempts: MaxAttempts::new(attempts)?, ..self })
    }

    /// Sets the backoff.
    pub fn with_backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Sets the jitter.
    pub fn with_jitter(self, jitter: Jitter) -> Self {
        Self { jitter, ..self }
    }

    /// Sets the time budget of a run.
    pub fn with_total_budget(self, budget: impl Into<Option<Duration>>) -> Self {
        Self { total_budget: budget.into(), ..self }
    }

    /// Sets the failures that are retried.
    pub fn with_eligibility(self, eligibility: Eligibility) -> Self {
        Self { eligibility, ..self }
    }

    /// Sets the timeout of one attempt.
    pub fn with_attempt_timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        Self { attempt_timeout: timeout.into(), ..self }
    }

    /// Sets the length of a lease, from [`LEASE_MIN`] to [`LEASE_MAX`].
    pub fn with_lease(self, lease: impl Into<Option<Duration>>) -> Result<Self, Invalid> {
        let lease = lease.into();
        if lease.is_some_and(|lease| !(LEASE_MIN..=LEASE_MAX).contains(&lease)) {
            let problem = format!("must be from {} to {}", LEASE_MIN.as_millis(), LEASE_MAX.as_millis());
            return Err(Invalid::new("leaseMs", problem));
        }
        Ok(Self { lease, ..self })
    }

    /// Adds an annotation.
    pub fn with_annotation(mut self, name: &str, text: impl Into<String>) -> Result<Self, Invalid> {
        self.annotations.insert(name.to_owned(), text.into());
        let bytes: usize = self.annotations.iter().map(|(name, text)| name.len() + text.len()).sum();
        if bytes > ANNOTATIONS_BYTES_MAX {
            return Err(Invalid::new(
                "annotations",
                format!("at most {ANNOTATIONS_BYTES_MAX} bytes are allowed"),
            ));
        }
        Ok(self)
    }

    /// The wait after `failed` failed attempts: at least as long as the target `asked` for, and at most [`HORIZON`].
    pub fn wait(
        &self,
        failed: u32,
        previous: Option<Duration>,
        asked: Option<Duration>,
        random: &mut dyn RandomSource,
    ) -> Duration {
        let own = self.jitter.spread(&self.backoff, failed, previous, random);
        own.max(asked.unwrap_or(Duration::ZERO)).min(HORIZON)
    }

    /// Whether the time budget covers the `elapsed` time, a further `wait` and an attempt of the `estimated` duration.
    pub fn affords(&self, elapsed: Duration, wait: Duration, estimated: Duration) -> bool {
        self.total_budget
            .is_none_or(|budget| elapsed.saturating_add(wait).saturating_add(estimated) <= budget)
    }

    /// The waits before each retry under this policy.
    pub fn preview(&self) -> Preview {
        preview::preview(self)
    }
}

/// The number of attempts, from 1 to [`ATTEMPTS_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct MaxAttempts(NonZeroU32);

impl MaxAttempts {
    /// Accepts a number from 1 to [`ATTEMPTS_MAX`].
    pub fn new(attempts: u32) -> Result<Self, Invalid> {
        NonZeroU32::new(attempts).filter(|n| n.get() <= ATTEMPTS_MAX).map(Self).ok_or_else(|| {
            Invalid::new("maxAttempts", format!("must be from 1 to {ATTEMPTS_MAX}, is {attempts}"))
        })
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl TryFrom<u32> for MaxAttempts {
    type Error = Invalid;
    fn try_from(attempts: u32) -> Result<Self, Invalid> {
        Self::new(attempts)
    }
}

impl From<MaxAttempts> for u32 {
    fn from(attempts: MaxAttempts) -> u32 {
        attempts.get()
    }
}

/// Refers to one version of a policy, written `name@version`.
///
/// The content of a version never changes. So all nodes decide in the same way, and may cache the content forever.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PolicyRef {
    /// The policy's name.
    pub name: PolicyName,
    /// Its version, from 1.
    pub version: NonZeroU32,
}

impl PolicyRef {
    /// The first version of `name`.
    pub fn first(name: PolicyName) -> Self {
        Self { name, version: NonZeroU32::MIN }
    }

    /// The reference of an inline policy. Its name contains a hash of its content.
    pub fn inline(policy: &Policy) -> Self {
        let content = serde_json::to_vec(policy).unwrap_or_default();
        let hash = Sha256::digest(content);
        let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let name = PolicyName::new(format!("inline:{hex}"));
        Self::first(name.unwrap_or_else(|_| unreachable!("39 printable bytes are a legal name")))
    }
}

impl fmt::Display for PolicyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

impl FromStr for PolicyRef {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong = || Invalid::new("policy", format!("must be written name@version, is {text:?}"));
        let (name, version) = text.rsplit_once('@').ok_or_else(wrong)?;
        Ok(Self { name: PolicyName::new(name)?, version: version.parse().map_err(|_| wrong())? })
    }
}

impl TryFrom<String> for PolicyRef {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<PolicyRef> for String {
    fn from(policy: PolicyRef) -> String {
        policy.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_parses_back_from_its_text() {
        for text in ["default@1", "a@b@7", "inline:00ff@1"] {
            assert_eq!(text.parse::<PolicyRef>().unwrap().to_string(), text);
        }
        for text in ["default", "default@0", "default@x", "@1", ""] {
            assert!(text.parse::<PolicyRef>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_inline_policy_is_named_by_its_content() {
        let policy = Policy::default();
        assert_eq!(PolicyRef::inline(&policy), PolicyRef::inline(&policy.clone()));
        let other = policy.clone().with_max_attempts(3).unwrap();
        assert_ne!(PolicyRef::inline(&policy), PolicyRef::inline(&other));
    }

    #[test]
    fn a_policy_is_unchanged_after_json_and_invalid_json_names_the_field() {
        let policy = presets::upload();
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy);
        let bad = json.replace("\"maxAttempts\":6", "\"maxAttempts\":0");
        let error = serde_json::from_str::<Policy>(&bad).unwrap_err().to_string();
        assert!(error.contains("maxAttempts: must be from 1"), "{error}");
    }

    #[test]
    fn retry_after_can_delay_the_next_attempt_but_never_bring_it_forward() {
        let policy = presets::quadratic();
        let mut random = || 0.5;
        let second = Duration::from_secs(1);
        assert_eq!(policy.wait(1, None, Some(second * 30), &mut random), second * 30);
        assert_eq!(policy.wait(2, None, Some(second), &mut random), second * 4);
        assert_eq!(policy.wait(1, None, Some(Duration::MAX), &mut random), HORIZON);
    }
}
