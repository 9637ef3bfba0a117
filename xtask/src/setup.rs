//! Installs what the project needs and the machine lacks.

use std::path::Path;
use std::process::Command;

use crate::run::{root, run, works};

/// Drives the OpenAPI document in the tests of `redrive-cli`.
const SCHEMATHESIS: &str = "4.32.5";

/// Makes sure of a C compiler, for the bundled SQLite, of cargo's formatter and linter, and of what tests drive the API
/// with.
pub(crate) fn setup() -> anyhow::Result<()> {
    if !works("cc", &["--version"]) {
        install("a C compiler is missing: install one that answers to cc", &["gcc", "libc6-dev"])?;
    }
    for (component, program) in [("rustfmt", "cargo-fmt"), ("clippy", "cargo-clippy")] {
        if !works(program, &["--version"]) {
            run(Command::new("rustup").args(["component", "add", component]))?;
        }
    }
    schemathesis()
}

/// Puts schemathesis beside the build, where the test looks for it, in a Python environment of its own.
fn schemathesis() -> anyhow::Result<()> {
    let metadata = cargo_metadata::MetadataCommand::new().current_dir(root()).no_deps().exec()?;
    let home = metadata.target_directory.join("tools/schemathesis").into_std_path_buf();
    if is_installed(&home) {
        return Ok(());
    }
    if !works("python3", &["-c", "import ensurepip, venv"]) {
        install("Python with venv is missing: install both", &["python3", "python3-venv"])?;
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
    let wanted = format!("schemathesis=={SCHEMATHESIS}");
    run(Command::new(home.join("bin/python")).args(["-m", "pip", "install", "--quiet", &wanted]))?;
    anyhow::ensure!(
        is_installed(&home),
        "schemathesis does not start: remove {} and try again",
        home.display()
    );
    Ok(())
}

fn is_installed(home: &Path) -> bool {
    let version = Command::new(home.join("bin/schemathesis")).arg("--version").output();
    version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(SCHEMATHESIS))
}

/// Installs packages where that can be done from here; otherwise `missing` says what a person has to do.
fn install(missing: &'static str, packages: &[&str]) -> anyhow::Result<()> {
    anyhow::ensure!(works("apt-get", &["--version"]), missing);
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    run(Command::new("apt-get").args(["install", "-y", "-qq"]).args(packages))
}
