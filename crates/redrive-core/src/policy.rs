//! When to try again: how often, how long between attempts, for how long in all, and after which failures.

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

use crate::chance::Chance;
use crate::invalid::Invalid;
use crate::limits::{ANNOTATIONS_BYTES_MAX, ATTEMPTS_MAX, HORIZON, LEASE_MAX, LEASE_MIN};
use crate::names::PolicyName;

/// A retry policy. Every value of it is legal by construction, so that planning never fails.
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
    /// How many attempts are started in all, the first one included.
    pub max_attempts: MaxAttempts,
    /// How the wait grows from one retry to the next.
    pub backoff: Backoff,
    /// How waits are spread, so that many failures do not come back together.
    pub jitter: Jitter,
    /// How long a run may take in all, from when it is first due.
    #[serde(rename = "totalBudgetMs", with = "crate::time::millis::option")]
    pub total_budget: Option<Duration>,
    /// Which failures are worth another attempt.
    pub eligibility: Eligibility,
    /// How long one attempt may take; the worker's own limit when absent.
    #[serde(rename = "attemptTimeoutMs", with = "crate::time::millis::option", default)]
    pub attempt_timeout: Option<Duration>,
    /// How long the claim of one attempt is leased; the worker's lease when absent.
    #[serde(
        rename = "visibilityTimeoutMs",
        with = "crate::time::millis::option",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub lease: Option<Duration>,
    /// What a face of the engine keeps with a policy, by name. The decision never looks at it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Default for Policy {
    /// Exponential from 1 s, doubling, at most 5 min, full jitter, 8 attempts, within an hour.
    fn default() -> Self {
        presets::standard()
    }
}

impl Policy {
    /// Allows `attempts` attempts in all; zero is refused.
    pub fn with_max_attempts(self, attempts: u32) -> Result<Self, Invalid> {
        Ok(Self { max_attempts: MaxAttempts::new(attempts)?, ..self })
    }

    /// Waits by `backoff`.
    pub fn with_backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Spreads waits by `jitter`.
    pub fn with_jitter(self, jitter: Jitter) -> Self {
        Self { jitter, ..self }
    }

    /// Ends the run when it would take longer than `budget` in all.
    pub fn with_total_budget(self, budget: impl Into<Option<Duration>>) -> Self {
        Self { total_budget: budget.into(), ..self }
    }

    /// Retries the failures that `eligibility` names.
    pub fn with_eligibility(self, eligibility: Eligibility) -> Self {
        Self { eligibility, ..self }
    }

    /// Ends one attempt after `timeout`.
    pub fn with_attempt_timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        Self { attempt_timeout: timeout.into(), ..self }
    }

    /// Leases the claim of one attempt for `lease`, from [`LEASE_MIN`] to [`LEASE_MAX`].
    pub fn with_lease(self, lease: impl Into<Option<Duration>>) -> Result<Self, Invalid> {
        let lease = lease.into();
        if lease.is_some_and(|lease| !(LEASE_MIN..=LEASE_MAX).contains(&lease)) {
            let problem = format!("must be from {} to {}", LEASE_MIN.as_millis(), LEASE_MAX.as_millis());
            return Err(Invalid::new("visibilityTimeoutMs", problem));
        }
        Ok(Self { lease, ..self })
    }

    /// Keeps `text` under `name` with the policy.
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

    /// The wait after `failed` attempts have failed, never shorter than what the other side asked for.
    pub fn wait(
        &self,
        failed: u32,
        previous: Option<Duration>,
        asked: Option<Duration>,
        chance: &mut dyn Chance,
    ) -> Duration {
        let own = self.jitter.spread(&self.backoff, failed, previous, chance);
        own.max(asked.unwrap_or(Duration::ZERO)).min(HORIZON)
    }

    /// Whether `elapsed`, a further `wait` and a call of the `estimated` length still fit the budget.
    pub fn affords(&self, elapsed: Duration, wait: Duration, estimated: Duration) -> bool {
        self.total_budget
            .is_none_or(|budget| elapsed.saturating_add(wait).saturating_add(estimated) <= budget)
    }

    /// The schedule this policy would give.
    pub fn preview(&self) -> Preview {
        preview::preview(self)
    }
}

/// How many attempts are started in all: one or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct MaxAttempts(NonZeroU32);

impl MaxAttempts {
    /// Takes a number from 1 to [`ATTEMPTS_MAX`].
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

/// Which policy a job was created with: the name and the version, written `name@version`.
///
/// The content behind a reference never changes, so that every node decides alike and may cache it for ever.
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

    /// The reference of a policy without a name: its content is its name.
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
    fn a_reference_survives_its_text() {
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
    fn a_policy_survives_json_and_bad_json_names_the_field() {
        let policy = presets::upload();
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy);
        let bad = json.replace("\"maxAttempts\":6", "\"maxAttempts\":0");
        let error = serde_json::from_str::<Policy>(&bad).unwrap_err().to_string();
        assert!(error.contains("maxAttempts: must be from 1"), "{error}");
    }

    #[test]
    fn asking_for_a_later_retry_moves_the_wait_up_and_never_down() {
        let policy = presets::quadratic();
        let mut none = || 0.5;
        let second = Duration::from_secs(1);
        assert_eq!(policy.wait(1, None, Some(second * 30), &mut none), second * 30);
        assert_eq!(policy.wait(2, None, Some(second), &mut none), second * 4);
        assert_eq!(policy.wait(1, None, Some(Duration::MAX), &mut none), HORIZON);
    }
}
