//! Bears with a service that is silent for a while, as during a restart, once it has answered.

use std::time::{Duration, Instant};

use crate::call::CallError;
use crate::exit::Exit;

/// How long a service that has answered before may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Whether to go on although nothing answers.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    answered: bool,
    silent_since: Option<Instant>,
}

impl Patience {
    /// Notes that the service answers.
    pub(crate) fn answered(&mut self) {
        *self = Self { answered: true, silent_since: None };
    }

    /// Gives the error back unless it is a silence that may pass.
    pub(crate) fn bear(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        let silent = error.downcast_ref::<CallError>().is_some_and(|error| error.exit() == Exit::Unreachable);
        let since = *self.silent_since.get_or_insert_with(Instant::now);
        if self.answered && silent && since.elapsed() < SILENCE_MAX {
            return Ok(());
        }
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Silence;

    fn silence() -> anyhow::Error {
        let (url, cause) = ("http://x".to_owned(), "refused".to_owned());
        anyhow::Error::new(CallError::Unreachable { url, cause, silence: Silence::Nobody })
    }

    #[test]
    fn only_a_service_that_has_answered_may_be_silent() {
        let mut patience = Patience::default();
        assert!(patience.bear(silence()).is_err());
        patience.answered();
        assert!(patience.bear(silence()).is_ok());
        assert!(patience.bear(anyhow::anyhow!("something else")).is_err());
    }

    #[test]
    fn it_has_an_end() {
        let long_ago = Instant::now().checked_sub(SILENCE_MAX * 2);
        let mut patience = Patience { answered: true, silent_since: long_ago };
        assert_eq!(patience.bear(silence()).is_err(), long_ago.is_some());
    }
}
