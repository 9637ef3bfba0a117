//! Goes on simulating and crashing with fresh seeds for as long as it is given.

use crate::run::{cargo, run};

/// For how long.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Minutes to go on for, half of them simulating and half of them crashing
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: u64,
}

pub(crate) fn soak(arguments: &Arguments) -> anyhow::Result<()> {
    let seconds = (arguments.minutes * 30).to_string();
    for (package, test) in [("redrive-testkit", "simulation"), ("redrive", "crash")] {
        let mut soak = cargo();
        soak.args(["test", "--release", "--locked", "--package", package, "--test", test]);
        run(soak.env("REDRIVE_SOAK_SECONDS", &seconds).args(["--", "--nocapture"]))?;
    }
    Ok(())
}
