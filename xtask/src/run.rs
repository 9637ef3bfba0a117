//! Runs other programs, and finds the folder of the project.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// The folder of the project.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.to_owned(), Path::to_owned)
}

/// The cargo that started this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // cargo sets these variables for xtask. Build scripts that read them would run again, and their crates would be built again,
    // whenever cargo is called directly and through xtask in turn, or from another clone.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    command.current_dir(root());
    command
}

/// Prints a command, runs it, and fails if the command fails.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let line = command_line(command);
    println!("\n$ {line}");
    let status = command.status().with_context(|| format!("{line} does not start"))?;
    anyhow::ensure!(status.success(), "failed: {line}");
    Ok(())
}

/// The command as it would be typed in a shell.
pub(crate) fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Whether a program starts and exits with success.
pub(crate) fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}
