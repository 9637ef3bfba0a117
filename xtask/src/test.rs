//! Runs everything that must pass before a change is complete.

use std::process::Command;

use crate::run::{cargo, run};
use crate::{programs, setup, tidy};

/// Installs what is missing, then runs the quick checks first and the tests last.
pub(crate) fn test(setup: setup::Arguments) -> anyhow::Result<()> {
    setup::setup(setup)?;
    run(cargo().args(["fmt", "--all", "--check"]))?;
    tidy::tidy()?;
    run(cargo_without_cache().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))?;
    programs::build_and_run(&mut cargo_without_cache())?;
    run(cargo_without_cache().args(["test", "--workspace", "--locked", "--doc"]))?;
    run(cargo_without_cache().env("RUSTDOCFLAGS", "-D warnings").args([
        "doc",
        "--workspace",
        "--no-deps",
        "--locked",
        "--quiet",
    ]))
}

/// Builds without the incremental cache, which costs time and disk and is never used again.
fn cargo_without_cache() -> Command {
    let mut cargo = cargo();
    cargo.env("CARGO_INCREMENTAL", "0");
    cargo
}
