//! Runs one test program, ends it if it hangs, and finds the processes that it leaves behind.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tempfile::TempDir;

/// The interval between two checks whether a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A variable that every process of a test program inherits. Its value is unique to the run.
const MARK: &str = "REDRIVE_TEST_RUN";

/// How long a test program may take.
#[derive(Clone, Copy)]
pub(crate) struct TimeLimits {
    /// A program that takes longer hangs.
    pub(crate) program: Duration,
    /// The time that the servers of a test have to end after their program.
    pub(crate) servers: Duration,
}

impl Default for TimeLimits {
    /// The slowest program takes about a third of the limit.
    fn default() -> Self {
        Self { program: Duration::from_secs(15 * 60), servers: Duration::from_secs(15) }
    }
}

/// A finished run of a test program.
pub(crate) struct ProgramRun {
    pub(crate) end: End,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// How a run ended.
pub(crate) enum End {
    Exited(ExitStatus),
    /// The program exceeded the time limit and was killed.
    Hung {
        after: Duration,
        stacks: String,
    },
    /// The program exited and left these processes running.
    LeftRunning {
        processes: Vec<Process>,
    },
}

/// A running process.
pub(crate) struct Process {
    pid: u32,
    command_line: String,
}

impl ProgramRun {
    /// Runs `command` to its end. The output goes to files: a process that the program leaves behind would keep a pipe open,
    /// and the run would wait for it forever.
    pub(crate) fn start_and_wait(command: &mut Command, limits: TimeLimits) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let (stdout, stderr) = (folder.path().join("stdout"), folder.path().join("stderr"));
        let mark = format!("{MARK}={}", folder.path().display());
        command.env(MARK, folder.path()).stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
        let mut child = command.spawn().context("the program does not start")?;
        let end = match wait(&mut child, limits.program)? {
            End::Exited(status) if status.signal().is_none() => {
                wait_for_servers(&mark, status, limits.servers)
            }
            end => end,
        };
        kill(&marked_processes(&mark));
        Ok(Self { end, stdout: read(&stdout)?, stderr: read(&stderr)? })
    }
}

fn wait(child: &mut Child, limit: Duration) -> anyhow::Result<End> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(End::Exited(status));
        }
        sleep(POLL_INTERVAL);
    }
    let stacks = stacks(child.id());
    child.kill()?;
    child.wait()?;
    Ok(End::Hung { after: limit, stacks })
}

/// The stacks of the threads of a process, or the reason why they are unknown.
fn stacks(pid: u32) -> String {
    let pid = pid.to_string();
    match Command::new("gdb").args(["-p", &pid, "-batch", "-ex", "thread apply all backtrace 40"]).output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => format!("no stacks, because gdb does not start: {error}"),
    }
}

fn wait_for_servers(mark: &str, status: ExitStatus, limit: Duration) -> End {
    let started = Instant::now();
    loop {
        let processes = marked_processes(mark);
        if processes.is_empty() {
            return End::Exited(status);
        }
        if started.elapsed() > limit {
            return End::LeftRunning { processes };
        }
        sleep(POLL_INTERVAL);
    }
}

/// The running processes whose environment contains `mark`.
fn marked_processes(mark: &str) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Process::read(pid, mark)).collect()
}

impl Process {
    fn read(pid: u32, mark: &str) -> Option<Self> {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()).then_some(())?;
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command_line = String::from_utf8_lossy(&command_line).replace('\0', " ").trim_end().to_owned();
        Some(Self { pid, command_line })
    }
}

fn kill(processes: &[Process]) {
    for process in processes {
        // The command fails if the process has already ended.
        let _ = Command::new("kill").args(["-KILL", &process.pid.to_string()]).output();
    }
}

fn read(path: &std::path::Path) -> anyhow::Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "{status}"),
            Self::Hung { after, stacks } => {
                write!(f, "it hung and was killed after {} s. Its threads:\n{stacks}", after.as_secs())
            }
            Self::LeftRunning { processes } => {
                write!(f, "it left these processes running, which were killed:")?;
                processes
                    .iter()
                    .try_for_each(|process| write!(f, "\n{} {}", process.pid, process.command_line))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> ProgramRun {
        let limits = TimeLimits { program: Duration::from_secs(2), servers: Duration::from_millis(500) };
        ProgramRun::start_and_wait(Command::new("sh").args(["-c", script]), limits).unwrap()
    }

    #[test]
    fn a_program_ends_with_its_status_and_output() {
        let run = run("echo out; echo err >&2; exit 3");
        assert!(matches!(run.end, End::Exited(status) if status.code() == Some(3)), "{}", run.end);
        assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("out\n", "err\n"));
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let run = run("echo started; sleep 60");
        assert!(matches!(run.end, End::Hung { .. }), "{}", run.end);
        assert_eq!(run.stdout, "started\n");
    }

    #[test]
    fn a_process_that_outlives_its_program_is_reported_and_killed() {
        let run = run("sleep 60 & echo $!");
        let End::LeftRunning { processes } = &run.end else { panic!("{}", run.end) };
        let [process] = processes.as_slice() else { panic!("{}", run.end) };
        assert_eq!(
            (process.pid.to_string(), process.command_line.as_str()),
            (run.stdout.trim().to_owned(), "sleep 60")
        );
        let deadline = Instant::now() + Duration::from_secs(5);
        while is_running(process.pid) {
            assert!(Instant::now() < deadline, "the process still runs");
            sleep(POLL_INTERVAL);
        }
    }

    /// A killed process whose parent has not waited for it yet has an empty environment.
    fn is_running(pid: u32) -> bool {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| !environment.is_empty())
    }
}
