//! How the command ends: one number for each thing that a script may want to tell apart.

use std::error::Error;
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::call::CallError;

/// What the numbers mean, for `--help`. The guide has the same table.
pub(crate) const EXIT_CODES: &str = "Exit codes:
  0    done
  1    failed
  2    asked wrongly: an unknown flag, or a value that is not legal
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
    error.downcast_ref::<CallError>().map_or(Exit::Failed, CallError::exit)
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
}
