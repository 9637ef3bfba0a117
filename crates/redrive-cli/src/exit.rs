//! Exit codes: one for each result that a script may want to distinguish.

use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

use redrive_core::{Invalid, StoreError};
use redrive_delivery::bodies::OpenError;
use redrive_delivery::secrets::KeyError;
use redrive_server::{AssembleError, StartError};

use crate::client::ClientError;

/// The exit codes as `--help` shows them. The guide has the same table.
pub(crate) const EXIT_CODES: &str = "Exit codes:
  0    success
  1    failure
  2    usage error: an unknown option, an invalid value, or an input file that cannot be read
  3    not found
  4    rejected: a conflict, a missing API key, a key without the needed scope, or no --yes
  5    the service cannot be reached, or cannot answer now
  6    the watched task or operation ended without success
  130  interrupted";

/// How the command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    Success,
    Failed,
    /// The command line is invalid. clap exits with the same code.
    Usage,
    NotFound,
    /// The service rejected the request: a conflict, or a missing permission.
    Rejected,
    /// The service does not answer.
    Unreachable,
    /// A task or an operation was watched to its end, and it did not succeed.
    Unsuccessful,
    /// Ctrl-C while something was watched.
    Interrupted,
}

impl ExitStatus {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Rejected => 4,
            Self::Unreachable => 5,
            Self::Unsuccessful => 6,
            Self::Interrupted => 130,
        }
    }

    /// Returns an error that makes the command end with this status.
    pub(crate) fn error(self, text: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(CommandError { status: self, text: text.into() })
    }
}

/// An error with the exit status that it leads to.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct CommandError {
    status: ExitStatus,
    text: String,
}

/// Prints the error, if there is one, and returns the exit code of the process.
pub(crate) fn exit_code(result: anyhow::Result<ExitStatus>) -> ExitCode {
    ExitCode::from(result.unwrap_or_else(|error| report(&error)).code())
}

/// Prints an error and returns the exit status that it leads to.
pub(crate) fn report(error: &anyhow::Error) -> ExitStatus {
    let status = status_of(error);
    if status != ExitStatus::Success {
        // A closed standard error does not change the exit status.
        let _ = writeln!(io::stderr(), "error: {error:#}");
    }
    status
}

fn status_of(error: &anyhow::Error) -> ExitStatus {
    if error.chain().any(is_broken_pipe) {
        // The reader has read enough, as in `| head`.
        return ExitStatus::Success;
    }
    if let Some(error) = error.downcast_ref::<CommandError>() {
        return error.status;
    }
    if let Some(error) = error.downcast_ref::<ClientError>() {
        return error.exit_status();
    }
    if error.chain().any(is_invalid_value) { ExitStatus::Usage } else { ExitStatus::Failed }
}

/// Whether the cause is an invalid value, whichever part of the program found it.
fn is_invalid_value(cause: &(dyn Error + 'static)) -> bool {
    if let Some(error) = cause.downcast_ref::<AssembleError>() {
        return match error {
            AssembleError::Store(error) => is_invalid_library_value(error),
            AssembleError::Bodies(error) => matches!(error, OpenError::Address(_)),
            AssembleError::Key(error) => matches!(error, KeyError::Malformed | KeyError::File(..)),
            AssembleError::Start(error) => matches!(error, StartError::Invalid(_)),
            AssembleError::Transport(_) | AssembleError::Identity(_) => false,
        };
    }
    cause.is::<Invalid>()
        || cause.downcast_ref::<redrive::Error>().is_some_and(is_invalid_library_value)
        || cause.downcast_ref::<StoreError>().is_some_and(|error| matches!(error, StoreError::Invalid(_)))
}

fn is_invalid_library_value(error: &redrive::Error) -> bool {
    use redrive::Error;
    matches!(error, Error::Address(_) | Error::Invalid(_) | Error::Store(StoreError::Invalid(_)))
}

fn is_broken_pipe(cause: &(dyn Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ExitStatus; 8] = [
        ExitStatus::Success,
        ExitStatus::Failed,
        ExitStatus::Usage,
        ExitStatus::NotFound,
        ExitStatus::Rejected,
        ExitStatus::Unreachable,
        ExitStatus::Unsuccessful,
        ExitStatus::Interrupted,
    ];

    #[test]
    fn every_code_is_in_the_help_and_in_the_guide() {
        let guide = include_str!("../../../docs/cli.md");
        for exit in ALL {
            let code = exit.code();
            assert!(EXIT_CODES.lines().any(|line| line.starts_with(&format!("  {code} "))), "{code}");
            assert!(guide.lines().any(|line| line.starts_with(&format!("| {code} |"))), "{code}");
        }
        assert_eq!(EXIT_CODES.lines().count(), ALL.len() + 1);
    }

    #[test]
    fn a_closed_pipe_is_not_an_error_and_other_errors_keep_their_code() {
        let gone = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe)).context("a list");
        assert_eq!(status_of(&gone), ExitStatus::Success);
        assert_eq!(status_of(&ExitStatus::NotFound.error("x").context("y")), ExitStatus::NotFound);
        assert_eq!(status_of(&anyhow::anyhow!("x")), ExitStatus::Failed);
    }

    #[test]
    fn an_invalid_value_ends_with_2_whichever_part_finds_it() {
        let invalid = || Invalid::new("lease", "must be longer");
        let address = || redrive::Error::Address("x".to_owned());
        for error in [
            anyhow::Error::new(invalid()),
            anyhow::Error::new(StoreError::Invalid(invalid())),
            anyhow::Error::new(address()),
            anyhow::Error::new(redrive::Error::Invalid(invalid())),
            anyhow::Error::new(redrive::Error::Store(StoreError::Invalid(invalid()))),
            anyhow::Error::new(AssembleError::Store(address())),
            anyhow::Error::new(AssembleError::Bodies(OpenError::Address("x".to_owned()))),
            anyhow::Error::new(AssembleError::Key(KeyError::Malformed)),
            anyhow::Error::new(AssembleError::Start(StartError::Invalid(invalid()))),
        ] {
            assert_eq!(status_of(&error.context("while it started")), ExitStatus::Usage);
        }
        let down = StoreError::Unavailable("x".into());
        assert_eq!(status_of(&anyhow::Error::new(AssembleError::Store(down.into()))), ExitStatus::Failed);
    }
}
