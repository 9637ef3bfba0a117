//! Everything that must pass before a change is done.

use crate::run::{cargo, run};
use crate::{setup, tidy};

/// Sets up, then checks formatting, lints, layout and all tests, in the order of how soon they can fail.
pub(crate) fn test() -> anyhow::Result<()> {
    setup::setup()?;
    run(cargo().args(["fmt", "--all", "--check"]))?;
    tidy::tidy()?;
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    run(cargo().args(["test", "--workspace", "--locked"]))?;
    run(cargo().env("RUSTDOCFLAGS", "-D warnings").args([
        "doc",
        "--workspace",
        "--no-deps",
        "--locked",
        "--quiet",
    ]))
}
