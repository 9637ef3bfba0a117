//! Every test program of the workspace, two at a time: most of them wait for servers and clocks more than they compute.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use cargo_metadata::{Artifact, Message};

use crate::run::said;

/// Programs that run beside each other.
const LANES: usize = 2;

/// A program with tests in it.
struct Program {
    name: String,
    path: PathBuf,
    /// Where cargo would start it.
    folder: PathBuf,
}

/// Builds all test programs with `cargo` and runs them to their ends, so that one failure does not hide another. What failed
/// beside another is judged alone, and both runs are shown.
pub(crate) fn build_and_run(cargo: &mut Command) -> anyhow::Result<()> {
    let programs = build(cargo)?;
    anyhow::ensure!(!programs.is_empty(), "cargo built no test program");
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !program.passes()
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(program);
                    }
                }
            });
        }
    });
    let (mut disturbed, mut broken) = (Vec::new(), Vec::new());
    for program in failed.into_inner().unwrap_or_default() {
        println!("\nonce more, with nothing beside it:");
        if program.passes() { &mut disturbed } else { &mut broken }.push(program.name.as_str());
    }
    if !disturbed.is_empty() {
        println!("\nfailed beside another program and passed alone, look into it: {}", disturbed.join(", "));
    }
    anyhow::ensure!(broken.is_empty(), "tests failed in: {}", broken.join(", "));
    Ok(())
}

fn build(cargo: &mut Command) -> anyhow::Result<Vec<Program>> {
    cargo.args(["test", "--workspace", "--locked", "--no-run"]);
    println!("\n$ {}", said(cargo));
    cargo.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let mut building = cargo.spawn().context("cargo does not start")?;
    let stdout = building.stdout.take().context("cargo has no output")?;
    let mut programs = Vec::new();
    for message in Message::parse_stream(BufReader::new(stdout)) {
        if let Message::CompilerArtifact(artifact) = message.context("cannot read what cargo says")? {
            programs.extend(Program::of(artifact));
        }
    }
    anyhow::ensure!(building.wait()?.success(), "the tests do not build");
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(programs)
}

impl Program {
    fn of(artifact: Artifact) -> Option<Self> {
        let path = artifact.executable.filter(|_| artifact.profile.test)?.into_std_path_buf();
        let folder = artifact.manifest_path.parent().map(Path::new)?.to_owned();
        let source = artifact.target.src_path.strip_prefix(&folder).unwrap_or(&artifact.target.src_path);
        let name = format!("{} {source}", folder.file_name()?.to_string_lossy());
        Some(Self { name, path, folder })
    }

    /// Runs it and prints what it said as one piece.
    fn passes(&self) -> bool {
        let began = Instant::now();
        let ended = Command::new(&self.path)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null())
            .output();
        let seconds = began.elapsed().as_secs_f64();
        match ended {
            Ok(Output { status, stdout, .. }) if status.success() => {
                println!("\n{} ({seconds:.1} s)\n{}", self.name, String::from_utf8_lossy(&stdout).trim_end());
                true
            }
            Ok(Output { status, stdout, stderr }) => {
                let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
                println!("\n{} FAILED ({seconds:.1} s, {status})\n{stdout}\n{stderr}", self.name);
                false
            }
            Err(error) => {
                println!("\n{} does not start: {error}", self.name);
                false
            }
        }
    }
}
