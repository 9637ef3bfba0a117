//! The code that the SQLite peers share: the command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::phases::Phase;

/// The range of the pauses between pickups.
pub const PAUSE_MS: std::ops::Range<u64> = 5..25;
/// The number of callers that enqueue batches. SQLite has one writer, so more callers would wait for each other.
pub const BATCH_CALLERS: usize = 1;

/// The command line.
pub struct Args {
    pub dir: PathBuf,
    pub jobs: usize,
    picks: usize,
}

impl Args {
    pub fn parse() -> Result<Self> {
        let (mut dir, mut jobs, mut picks) = (None, None, 200);
        let mut arguments = std::env::args().skip(1);
        while let Some(flag) = arguments.next() {
            let value = arguments.next().with_context(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--dir" => dir = Some(PathBuf::from(value)),
                "--jobs" => jobs = Some(value.parse().context("--jobs")?),
                "--picks" => picks = value.parse().context("--picks")?,
                _ => bail!("unknown flag {flag}"),
            }
        }
        let dir = dir.context("--dir is required")?;
        std::fs::create_dir_all(&dir)?;
        if std::fs::read_dir(&dir)?.next().is_some() {
            bail!("--dir must be empty, because existing jobs would be drained too");
        }
        let jobs = jobs.context("--jobs is required")?;
        Ok(Self { dir, jobs, picks })
    }

    /// The number of pickups to measure. It is 0 if the drain was incomplete: the worker would not be idle then, and the start of
    /// another job would count as the pickup.
    pub fn picks_after(&self, drained: Phase, jobs: usize) -> usize {
        if drained.done < jobs { 0 } else { self.picks }
    }
}
