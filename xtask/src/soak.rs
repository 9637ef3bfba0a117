//! Goes on simulating and crashing with fresh seeds for as long as it is given.

use crate::run::{cargo, run};

/// For how long.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Minutes to go on for: a third of them simulating, a third crashing, a third crashing durable jobs on both stores
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: u64,
}

pub(crate) fn soak(arguments: &Arguments) -> anyhow::Result<()> {
    let third = arguments.minutes * 20;
    // The last of them takes its time on each of two stores.
    let parts = [
        ("redrive-testkit", "simulation", third),
        ("redrive", "crash", third),
        ("redrive", "durable", third / 2),
    ];
    for (package, test, seconds) in parts {
        let mut soak = cargo();
        soak.args(["test", "--release", "--locked", "--package", package, "--test", test]);
        run(soak.env("REDRIVE_SOAK_SECONDS", seconds.to_string()).args(["--", "--nocapture"]))?;
    }
    Ok(())
}
