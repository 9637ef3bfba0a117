//! `redrive bench`: what the embedded store does on this machine, in about half a minute.

use redrive_bench::bench::{self, Size};
use redrive_bench::figures;

use crate::print;
use crate::values::whole;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Jobs in each drain and enqueue
    #[arg(long, default_value_t = Size::QUICK.jobs as u32, value_name = "N", value_parser = whole::<u32>(1_000..=10_000_000, 20_000))]
    jobs: u32,
    /// Repeats of each measurement; the median counts
    #[arg(long, default_value_t = Size::QUICK.repeats as u32, value_name = "N", value_parser = whole::<u32>(1..=100, 5))]
    repeats: u32,
    /// JSON for programs instead of a table for people
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let size = Size { jobs: arguments.jobs as usize, repeats: arguments.repeats as usize, ..Size::QUICK };
    let figures = bench::engine(size, |what| print::note(&format!("measuring {what} …")))?;
    if arguments.json {
        print::line(&serde_json::to_string_pretty(&figures)?)?;
    } else {
        print::text(&figures::table(&figures))?;
    }
    Ok(())
}
