//! `redrive completions`: what a shell needs to finish words.

use std::io;

use clap::Command;
use clap_complete::Shell;

use crate::exit::Exit;
use crate::print;

/// For which shell.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

/// Prints the script for `command`.
pub(crate) fn run(arguments: &Arguments, mut command: Command) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "redrive", &mut script);
    let script = String::from_utf8(script).map_err(io::Error::other)?;
    print::text(&script)?;
    Ok(Exit::Done)
}
