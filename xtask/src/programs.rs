//! Builds and runs every test program of the workspace.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use cargo_metadata::{Artifact, Message};

use crate::program_run::{End, ProgramRun, TimeLimits};
use crate::run::command_line;

/// The number of programs that run at once. Most of them spend more time waiting for servers than computing.
const PARALLEL_PROGRAMS: usize = 2;
/// Tests in a module of this name measure time or memory. They run alone, after all others.
const QUIET: &str = "quiet::";

/// A test program.
struct Program {
    name: String,
    path: PathBuf,
    /// The folder in which cargo would start the program.
    folder: PathBuf,
}

/// Builds all test programs with `cargo` and runs each to its end, so that one failure does not hide another. A failed program
/// is not run again: a test that passes only at the second try has found a race.
pub(crate) fn build_and_run(cargo: &mut Command) -> anyhow::Result<()> {
    let building = Instant::now();
    let programs = build(cargo)?;
    anyhow::ensure!(!programs.is_empty(), "cargo built no test program");
    println!("\nbuilt {} test programs in {:.0} s", programs.len(), building.elapsed().as_secs_f64());
    let running = Instant::now();
    let mut failed = run_in_parallel(&programs);
    failed.extend(run_quiet_tests(&programs)?);
    println!("\nran {} test programs in {:.0} s", programs.len(), running.elapsed().as_secs_f64());
    anyhow::ensure!(failed.is_empty(), "tests failed in: {}", failed.join(", "));
    Ok(())
}

fn run_in_parallel(programs: &[Program]) -> Vec<&str> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL_PROGRAMS {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !program.passes(&["--skip", QUIET])
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(program.name.as_str());
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_default()
}

/// Runs the tests that need a quiet machine, one at a time.
fn run_quiet_tests(programs: &[Program]) -> anyhow::Result<Vec<&str>> {
    let mut failed = Vec::new();
    for program in programs {
        if program.has_quiet_tests()? && !program.passes(&[QUIET, "--test-threads=1"]) {
            failed.push(program.name.as_str());
        }
    }
    Ok(failed)
}

fn build(cargo: &mut Command) -> anyhow::Result<Vec<Program>> {
    cargo.args(["test", "--workspace", "--locked", "--no-run"]);
    println!("\n$ {}", command_line(cargo));
    cargo.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let mut build = cargo.spawn().context("cargo does not start")?;
    let stdout = build.stdout.take().context("cargo has no output")?;
    let mut programs = Vec::new();
    for message in Message::parse_stream(BufReader::new(stdout)) {
        if let Message::CompilerArtifact(artifact) = message.context("cannot read a message of cargo")? {
            programs.extend(Program::from_artifact(artifact));
        }
    }
    anyhow::ensure!(build.wait()?.success(), "the tests do not build");
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(programs)
}

impl Program {
    fn from_artifact(artifact: Artifact) -> Option<Self> {
        let path = artifact.executable.filter(|_| artifact.profile.test)?.into_std_path_buf();
        let folder = artifact.manifest_path.parent().map(Path::new)?.to_owned();
        let source = artifact.target.src_path.strip_prefix(&folder).unwrap_or(&artifact.target.src_path);
        let name = format!("{} {source}", folder.file_name()?.to_string_lossy());
        Some(Self { name, path, folder })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).stdin(Stdio::null());
        command
    }

    fn has_quiet_tests(&self) -> anyhow::Result<bool> {
        let listed = self.command().args([QUIET, "--list", "--format=terse"]).output();
        let listed = listed.with_context(|| format!("{} does not start", self.name))?;
        Ok(String::from_utf8_lossy(&listed.stdout).lines().any(|line| line.ends_with(": test")))
    }

    /// Runs the program and prints its output as one piece. The program fails if it hangs or leaves a process running.
    fn passes(&self, arguments: &[&str]) -> bool {
        let started = Instant::now();
        let run = ProgramRun::start_and_wait(self.command().args(arguments), TimeLimits::default());
        let seconds = started.elapsed().as_secs_f64();
        let problem = match run {
            Ok(ProgramRun { end: End::Exited(status), stdout, .. }) if status.success() => {
                println!("\n{} ({seconds:.1} s)\n{}", self.name, stdout.trim_end());
                return true;
            }
            Ok(ProgramRun { end, stdout, stderr }) => format!("{end}\n{stdout}\n{stderr}"),
            Err(error) => format!("{error:#}"),
        };
        println!("\n{} FAILED ({seconds:.1} s): {problem}", self.name);
        false
    }
}
