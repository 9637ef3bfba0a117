//! Measures the CPU time of each process, to show which one limits a figure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use anyhow::Context as _;
use serde::Serialize;

use crate::figures::Samples;

/// Linux reports CPU time in hundredths of a second.
const TICKS_PER_S: f64 = 100.0;

/// Measures the CPU time of processes.
pub struct Meter {
    began: Instant,
    used: Vec<(&'static str, u32, f64)>,
}

impl Meter {
    /// Starts the measurement of these processes and of this one, as `load`.
    pub fn start(others: &[(&'static str, u32)]) -> anyhow::Result<Self> {
        let all = others.iter().copied().chain([("load", std::process::id())]);
        let used = all.map(|(name, pid)| Ok((name, pid, seconds(pid)?)));
        Ok(Self { used: used.collect::<anyhow::Result<_>>()?, began: Instant::now() })
    }

    /// The average number of cores that each process used since the start.
    pub fn stop(self) -> anyhow::Result<Vec<(&'static str, f64)>> {
        let elapsed = self.began.elapsed().as_secs_f64();
        let cores =
            self.used.into_iter().map(|(name, pid, before)| Ok((name, (seconds(pid)? - before) / elapsed)));
        cores.collect()
    }
}

/// Cores used by each process during each measurement.
#[derive(Debug, Default)]
pub struct Cores(BTreeMap<String, BTreeMap<&'static str, Vec<f64>>>);

/// One line of [`Cores`].
#[derive(Debug, Serialize)]
pub struct CoresUsed {
    during: String,
    process: &'static str,
    cores: Samples,
}

impl Cores {
    /// Adds the cores of one repeat.
    pub fn add(&mut self, during: &str, used: Vec<(&'static str, f64)>) {
        let processes = self.0.entry(during.to_owned()).or_default();
        for (process, cores) in used {
            processes.entry(process).or_default().push(cores);
        }
    }

    /// The medians as a table, with a line per measurement.
    pub fn table(&self) -> String {
        let mut table = String::from("cores used (median)\n");
        for (during, processes) in &self.0 {
            let medians: Vec<String> = processes
                .iter()
                .map(|(process, cores)| {
                    format!("{process} {:.2}", Samples::of(cores.iter().copied()).median())
                })
                .collect();
            let _ = writeln!(table, "  {during}: {}", medians.join(", "));
        }
        table
    }

    /// All values, for JSON.
    pub fn list(&self) -> Vec<CoresUsed> {
        let lines = self.0.iter().flat_map(|(during, processes)| {
            processes.iter().map(|(process, cores)| CoresUsed {
                during: during.clone(),
                process,
                cores: Samples::of(cores.iter().copied()),
            })
        });
        lines.collect()
    }
}

/// The CPU time of a process and its children, including those that have ended.
pub fn seconds_with_children(pid: u32) -> anyhow::Result<f64> {
    let own = CpuTime::read(pid)?;
    let processes = std::fs::read_dir("/proc").context("cannot read /proc")?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // A process may end while this reads.
    let children = pids.filter_map(|child| CpuTime::read(child).ok()).filter(|child| child.parent == pid);
    let running: u64 = children.map(|child| child.own_ticks).sum();
    Ok((own.own_ticks + own.ended_children_ticks + running) as f64 / TICKS_PER_S)
}

fn seconds(pid: u32) -> anyhow::Result<f64> {
    Ok(CpuTime::read(pid)?.own_ticks as f64 / TICKS_PER_S)
}

/// The user and system time of a process.
#[derive(Debug, PartialEq)]
struct CpuTime {
    parent: u32,
    own_ticks: u64,
    ended_children_ticks: u64,
}

impl CpuTime {
    fn read(pid: u32) -> anyhow::Result<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .with_context(|| format!("process {pid} has ended, or this is not Linux"))?;
        Self::parse(&stat).context("cannot parse the CPU time in /proc")
    }

    /// Parses a line of `/proc`. The process name at its start may contain anything, including parentheses.
    fn parse(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            own_ticks: ticks(11)? + ticks(12)?,
            ended_children_ticks: ticks(13)? + ticks(14)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_after_any_process_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 20 7 20 0 3 0 1 2 3";
        let time = CpuTime { parent: 1, own_ticks: 300, ended_children_ticks: 27 };
        assert_eq!(CpuTime::parse(stat), Some(time));
        assert_eq!(CpuTime::parse("7 (a"), None);
    }
}
