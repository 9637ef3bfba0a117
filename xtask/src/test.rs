//! Everything that must pass before a change is done.

use std::process::Command;

use crate::run::{cargo, run};
use crate::{programs, setup, tidy};

/// Sets up, then checks formatting, lints, layout and all tests, in the order of how soon they can fail.
pub(crate) fn test() -> anyhow::Result<()> {
    setup::setup()?;
    run(cargo().args(["fmt", "--all", "--check"]))?;
    tidy::tidy()?;
    run(once().args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    programs::build_and_run(&mut once())?;
    run(once().args(["test", "--workspace", "--locked", "--doc"]))?;
    run(once().env("RUSTDOCFLAGS", "-D warnings").args([
        "doc",
        "--workspace",
        "--no-deps",
        "--locked",
        "--quiet",
    ]))
}

/// What is built from nothing and then thrown away need not be prepared for the next change.
fn once() -> Command {
    let mut cargo = cargo();
    cargo.env("CARGO_INCREMENTAL", "0");
    cargo
}
