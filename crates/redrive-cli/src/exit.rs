//! How the command ends: one number for each thing that a script may want to tell apart.

use std::error::Error;
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use redrive_core::{Invalid, StoreError};
use redrive_delivery::bodies::OpenError;
use redrive_delivery::secrets::KeyError;
use redrive_server::{AssembleError, StartError};

use crate::call::CallError;

/// What the numbers mean, for `--help`. The guide has the same table.
pub(crate) const EXIT_CODES: &str = "Exit codes:
  0    done
  1    failed
  2    asked wrongly: an unknown option, an invalid value, or an input file that cannot be read
  3    there is no such thing
  4    refused: a conflict, a key that is missing or does not allow it, or no --yes
  5    the service cannot be reached, or cannot answer now
  6    what was followed has ended, and not with success
  130  interrupted";

/// How the command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what was asked.
    Done,
    /// It could not.
    Failed,
    /// It was asked wrongly; clap ends with the same.
    Usage,
    /// There is nothing under that name.
    NotFound,
    /// The service does not do it: a conflict, or a right that is missing.
    Refused,
    /// Nothing answers, or not now.
    Unreachable,
    /// A task or an operation was followed to its end, which is not a success.
    Unsuccessful,
    /// Ctrl-C, while something was followed.
    Interrupted,
}

impl Exit {
    /// The number.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Refused => 4,
            Self::Unreachable => 5,
            Self::Unsuccessful => 6,
            Self::Interrupted => 130,
        }
    }

    /// An error that ends the command so.
    pub(crate) fn because(self, text: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Fault { exit: self, text: text.into() })
    }
}

/// An error that knows how the command ends.
#[derive(Debug)]
struct Fault {
    exit: Exit,
    text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Fault {}

/// Says what went wrong, if anything, and ends.
pub(crate) fn end(outcome: anyhow::Result<Exit>) -> ExitCode {
    ExitCode::from(outcome.unwrap_or_else(|error| say(&error)).code())
}

/// Says what went wrong, and how the command ends for it.
pub(crate) fn say(error: &anyhow::Error) -> Exit {
    let exit = exit_of(error);
    if exit != Exit::Done {
        // Nobody may be reading: no reason to end differently.
        let _ = writeln!(io::stderr(), "error: {error:#}");
    }
    exit
}

fn exit_of(error: &anyhow::Error) -> Exit {
    if error.chain().any(is_broken_pipe) {
        // Whoever reads has seen enough, as in `| head`.
        return Exit::Done;
    }
    if let Some(fault) = error.downcast_ref::<Fault>() {
        return fault.exit;
    }
    if let Some(call) = error.downcast_ref::<CallError>() {
        return call.exit();
    }
    if error.chain().any(is_invalid_value) { Exit::Usage } else { Exit::Failed }
}

/// Whether the cause is an invalid value, wherever it was found out.
fn is_invalid_value(cause: &(dyn Error + 'static)) -> bool {
    if let Some(error) = cause.downcast_ref::<AssembleError>() {
        return match error {
            AssembleError::Store(error) => is_invalid_of_library(error),
            AssembleError::Bodies(error) => matches!(error, OpenError::Address(_)),
            AssembleError::Key(error) => matches!(error, KeyError::Malformed | KeyError::File(..)),
            AssembleError::Start(error) => matches!(error, StartError::Invalid(_)),
            AssembleError::Transport(_) | AssembleError::Identity(_) => false,
        };
    }
    cause.is::<Invalid>()
        || cause.downcast_ref::<redrive::Error>().is_some_and(is_invalid_of_library)
        || cause.downcast_ref::<StoreError>().is_some_and(|error| matches!(error, StoreError::Invalid(_)))
}

fn is_invalid_of_library(error: &redrive::Error) -> bool {
    use redrive::Error;
    matches!(error, Error::Address(_) | Error::Invalid(_) | Error::Store(StoreError::Invalid(_)))
}

fn is_broken_pipe(cause: &(dyn Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Exit; 8] = [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::NotFound,
        Exit::Refused,
        Exit::Unreachable,
        Exit::Unsuccessful,
        Exit::Interrupted,
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
    fn a_reader_that_has_gone_is_no_error_and_others_keep_their_number() {
        let gone = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe)).context("a list");
        assert_eq!(exit_of(&gone), Exit::Done);
        assert_eq!(exit_of(&Exit::NotFound.because("x").context("y")), Exit::NotFound);
        assert_eq!(exit_of(&anyhow::anyhow!("x")), Exit::Failed);
    }

    #[test]
    fn an_invalid_value_is_known_wherever_it_was_found_out() {
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
            assert_eq!(exit_of(&error.context("while it started")), Exit::Usage);
        }
        let down = StoreError::Unavailable("x".into());
        assert_eq!(exit_of(&anyhow::Error::new(AssembleError::Store(down.into()))), Exit::Failed);
    }
}
