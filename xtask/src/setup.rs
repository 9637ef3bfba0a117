//! Installs what the project needs and the machine lacks.

use std::process::Command;

use crate::run::{run, works};

/// Makes sure of a C compiler, for the bundled SQLite, and of cargo's formatter and linter.
pub(crate) fn setup() -> anyhow::Result<()> {
    if !works("cc", &["--version"]) {
        anyhow::ensure!(
            works("apt-get", &["--version"]),
            "a C compiler is missing: install one that answers to cc"
        );
        run(Command::new("apt-get").args(["update", "-qq"]))?;
        run(Command::new("apt-get").args(["install", "-y", "-qq", "gcc", "libc6-dev"]))?;
    }
    for (component, program) in [("rustfmt", "cargo-fmt"), ("clippy", "cargo-clippy")] {
        if !works(program, &["--version"]) {
            run(Command::new("rustup").args(["component", "add", component]))?;
        }
    }
    Ok(())
}
