//! The failures that a policy retries.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::verdict::FailureKind;

/// The failures that are retried. After any other failure, the job is dead at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Eligibility {
    /// HTTP statuses.
    pub retryable_status_codes: BTreeSet<u16>,
    /// gRPC codes by number.
    pub retryable_grpc_codes: BTreeSet<u16>,
    /// The connection failed or broke.
    pub connection_errors: bool,
    /// The attempt took too long.
    pub timeouts: bool,
}

/// The gRPC code UNAVAILABLE.
pub const GRPC_UNAVAILABLE: u16 = 14;

impl Default for Eligibility {
    /// 408, 425, 429, 500, 502, 503, 504; gRPC UNAVAILABLE; connection errors and timeouts.
    fn default() -> Self {
        Self {
            retryable_status_codes: BTreeSet::from([408, 425, 429, 500, 502, 503, 504]),
            retryable_grpc_codes: BTreeSet::from([GRPC_UNAVAILABLE]),
            connection_errors: true,
            timeouts: true,
        }
    }
}

impl Eligibility {
    /// Whether a failure of this kind is retried.
    pub fn covers(&self, kind: FailureKind) -> bool {
        match kind {
            FailureKind::Status(status) => self.retryable_status_codes.contains(&status),
            FailureKind::Grpc(code) => self.retryable_grpc_codes.contains(&code),
            FailureKind::Connection => self.connection_errors,
            FailureKind::Timeout => self.timeouts,
            FailureKind::BodyLost | FailureKind::TargetRefused => false,
            // A policy does not list errors and panics of handlers. They are retried unless the handler rejects the
            // job.
            FailureKind::Error | FailureKind::Panic => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_retries_failures_that_may_be_temporary() {
        let covered = |kind| Eligibility::default().covers(kind);
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert!(covered(FailureKind::Status(status)), "{status}");
        }
        for status in [300, 301, 400, 401, 403, 404, 409, 410, 413, 422, 501, 505] {
            assert!(!covered(FailureKind::Status(status)), "{status}");
        }
        for code in 0..=16 {
            assert_eq!(covered(FailureKind::Grpc(code)), code == GRPC_UNAVAILABLE, "{code}");
        }
        for kind in [FailureKind::Connection, FailureKind::Timeout, FailureKind::Error, FailureKind::Panic] {
            assert!(covered(kind), "{kind:?}");
        }
    }

    #[test]
    fn connection_errors_and_timeouts_can_be_switched_off() {
        let none = Eligibility { connection_errors: false, timeouts: false, ..Eligibility::default() };
        assert!(!none.covers(FailureKind::Connection) && !none.covers(FailureKind::Timeout));
        assert!(!none.covers(FailureKind::BodyLost) && !none.covers(FailureKind::TargetRefused));
    }
}
