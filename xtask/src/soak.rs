//! Runs simulations and crash tests with new seeds for a given time.

use crate::run::{cargo, run};

/// How long to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Minutes in total: a third for simulations, a third for crash tests, a third for crash tests of durable jobs
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: u64,
}

pub(crate) fn soak(arguments: &Arguments) -> anyhow::Result<()> {
    let third = arguments.minutes * 20;
    // The last part runs on three stores, for a third of its time each.
    let parts = [
        ("redrive-testkit", "testkit", "thirty_days_of_faults", third),
        ("redrive", "faults", "processes_killed_at_random_moments", third),
        ("redrive", "faults", "durable_jobs_survive_kills", third / 3),
    ];
    for (package, program, filter, seconds) in parts {
        let mut soak = cargo();
        soak.args(["test", "--release", "--locked", "--package", package, "--test", program]);
        run(soak.env("REDRIVE_SOAK_SECONDS", seconds.to_string()).args(["--", filter, "--nocapture"]))?;
    }
    Ok(())
}
