//! Which failures are worth another attempt.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::verdict::Fault;

/// The failures that are retried; all others are dead at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Eligibility {
    /// HTTP statuses.
    pub retryable_status_codes: BTreeSet<u16>,
    /// gRPC codes by number.
    pub retryable_grpc_codes: BTreeSet<u16>,
    /// No connection, or one that broke.
    pub connection_errors: bool,
    /// An attempt that took too long.
    pub timeouts: bool,
}

/// gRPC's code for a service that cannot answer now.
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
    /// Whether a failure of this sort is worth another attempt.
    pub fn covers(&self, fault: Fault) -> bool {
        match fault {
            Fault::Status(status) => self.retryable_status_codes.contains(&status),
            Fault::Grpc(code) => self.retryable_grpc_codes.contains(&code),
            Fault::Connection => self.connection_errors,
            Fault::Timeout => self.timeouts,
            Fault::BodyLost | Fault::TargetRefused => false,
            // A program's own error or panic says nothing about eligibility: it is retried unless it is rejected.
            Fault::Error | Fault::Panic => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_retries_what_may_pass() {
        let covered = |fault| Eligibility::default().covers(fault);
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert!(covered(Fault::Status(status)), "{status}");
        }
        for status in [300, 301, 400, 401, 403, 404, 409, 410, 413, 422, 501, 505] {
            assert!(!covered(Fault::Status(status)), "{status}");
        }
        for code in 0..=16 {
            assert_eq!(covered(Fault::Grpc(code)), code == GRPC_UNAVAILABLE, "{code}");
        }
        for fault in [Fault::Connection, Fault::Timeout, Fault::Error, Fault::Panic] {
            assert!(covered(fault), "{fault:?}");
        }
    }

    #[test]
    fn connection_errors_and_timeouts_can_be_switched_off() {
        let none = Eligibility { connection_errors: false, timeouts: false, ..Eligibility::default() };
        assert!(!none.covers(Fault::Connection) && !none.covers(Fault::Timeout));
        assert!(!none.covers(Fault::BodyLost) && !none.covers(Fault::TargetRefused));
    }
}
