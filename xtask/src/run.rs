//! Running other programs, and where the project is.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// The project's folder.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.to_owned(), Path::to_owned)
}

/// The cargo that runs this.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Says what it runs, runs it, and fails if it does.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let line = said(command);
    println!("\n$ {line}");
    let status = command.status().with_context(|| format!("{line} does not start"))?;
    anyhow::ensure!(status.success(), "failed: {line}");
    Ok(())
}

/// A command as a person would type it.
pub(crate) fn said(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Whether a program starts and ends well.
pub(crate) fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}
