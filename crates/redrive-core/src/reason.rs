//! The reasons why a job is dead.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr};

use crate::invalid::Invalid;

/// Why a job is dead.
///
/// Names in upper case, as earlier releases stored them, can still be read.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", ascii_case_insensitive)]
#[strum(parse_err_ty = Invalid, parse_err_fn = unknown_reason)]
pub enum Reason {
    /// The last attempt that the policy allows has failed.
    #[serde(alias = "ATTEMPTS_EXHAUSTED")]
    AttemptsExhausted,
    /// The next attempt would not fit into the time budget.
    #[serde(alias = "BUDGET_EXCEEDED")]
    BudgetExceeded,
    /// The policy does not retry this kind of failure.
    #[serde(alias = "NOT_RETRYABLE")]
    NotRetryable,
    /// The stored body is gone or damaged.
    #[serde(alias = "BODY_LOST")]
    BodyLost,
    /// redrive must not send to this target.
    #[serde(alias = "TARGET_REFUSED")]
    TargetRefused,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 5] = [
        Self::AttemptsExhausted,
        Self::BudgetExceeded,
        Self::NotRetryable,
        Self::BodyLost,
        Self::TargetRefused,
    ];

    /// The name in the API and in stores.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

fn unknown_reason(name: &str) -> Invalid {
    Invalid::new("reason", format!("{name:?} is not a known reason"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_read_in_lower_case_and_in_the_upper_case_of_earlier_releases() {
        for reason in Reason::ALL {
            assert_eq!(reason.to_string(), reason.name());
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
            for name in [reason.name().to_owned(), reason.name().to_uppercase()] {
                assert_eq!(name.parse(), Ok(reason));
                assert_eq!(serde_json::from_value::<Reason>(name.into()).unwrap(), reason);
            }
        }
        assert_eq!(Reason::NotRetryable.name(), "not_retryable");
        assert_eq!("other".parse::<Reason>().unwrap_err().field, "reason");
    }
}
