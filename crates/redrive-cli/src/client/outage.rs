//! Tolerates a service that does not answer for a while, for example during a restart.

use std::time::{Duration, Instant};

use super::ClientError;
use crate::exit::ExitStatus;

/// The longest outage that is tolerated after the service has answered once.
const OUTAGE_MAX: Duration = Duration::from_secs(60);

/// Decides whether a command that watches something continues although the service does not answer.
#[derive(Debug, Default)]
pub(crate) struct OutageTolerance {
    has_answered: bool,
    unreachable_since: Option<Instant>,
}

impl OutageTolerance {
    /// Records an answer.
    pub(crate) fn answered(&mut self) {
        *self = Self { has_answered: true, unreachable_since: None };
    }

    /// Returns the error unless it is an outage that may pass.
    pub(crate) fn tolerate(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        let client_error = error.downcast_ref::<ClientError>();
        let unreachable = client_error.is_some_and(|error| error.exit_status() == ExitStatus::Unreachable);
        let since = *self.unreachable_since.get_or_insert_with(Instant::now);
        if self.has_answered && unreachable && since.elapsed() < OUTAGE_MAX {
            return Ok(());
        }
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ConnectionFailure;
    use super::*;

    fn unreachable() -> anyhow::Error {
        let (url, cause) = ("http://x".to_owned(), "refused".to_owned());
        anyhow::Error::new(ClientError::Unreachable { url, cause, failure: ConnectionFailure::NotConnected })
    }

    #[test]
    fn an_outage_is_tolerated_only_after_an_answer() {
        let mut tolerance = OutageTolerance::default();
        assert!(tolerance.tolerate(unreachable()).is_err());
        tolerance.answered();
        assert!(tolerance.tolerate(unreachable()).is_ok());
        assert!(tolerance.tolerate(anyhow::anyhow!("something else")).is_err());
    }

    #[test]
    fn a_long_outage_is_an_error() {
        let long_ago = Instant::now().checked_sub(OUTAGE_MAX * 2);
        let mut tolerance = OutageTolerance { has_answered: true, unreachable_since: long_ago };
        assert_eq!(tolerance.tolerate(unreachable()).is_err(), long_ago.is_some());
    }
}
