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
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let name = Path::new(&words[0]).file_name().map(|name| name.to_string_lossy().into_owned());
    let line = format!("{} {}", name.unwrap_or_default(), words[1..].join(" "));
    println!("\n$ {line}");
    let status = command.status().with_context(|| format!("{line} does not start"))?;
    anyhow::ensure!(status.success(), "failed: {line}");
    Ok(())
}

/// Whether a program starts and ends well.
pub(crate) fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}
