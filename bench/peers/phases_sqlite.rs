//! What the SQLite peers share beyond the phases: their command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::phases::Phase;

/// Pauses between pickups.
pub const PAUSE_MS: std::ops::Range<u64> = 5..25;
/// SQLite has one writer: more callers would only wait for each other.
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
        let mut words = std::env::args().skip(1);
        while let Some(flag) = words.next() {
            let value = words.next().with_context(|| format!("{flag} needs a value"))?;
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
            bail!("--dir must be empty: leftovers would be drained as well");
        }
        let jobs = jobs.context("--jobs is required")?;
        Ok(Self { dir, jobs, picks })
    }

    /// How many pickups to measure: none while jobs are left, as the worker is not idle then
    /// and another job's start would be taken for the pickup.
    pub fn picks_after(&self, drained: Phase, jobs: usize) -> usize {
        if drained.done < jobs { 0 } else { self.picks }
    }
}
