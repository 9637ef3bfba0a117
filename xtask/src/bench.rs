//! Builds the benchmark and the peers in release, and runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::run::{cargo, root, run, works};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to measure; the engine when absent
    what: Option<What>,
    /// Measure less, in about a minute
    #[arg(long)]
    quick: bool,
    /// Leave out the peers, which take minutes to build
    #[arg(long)]
    no_peers: bool,
}

/// What can be measured.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Stores, worker and `retry()`, in one process
    Engine,
    /// `redrive serve` as a process of its own
    Service,
    /// Several nodes on a private Postgres server
    Postgres,
    /// High volume on private Redis servers
    Redis,
    /// Durable jobs: steps, fan-out, limits
    Jobs,
    /// The paste site as a process of its own
    Paste,
}

/// The peers that run beside; each is a workspace of its own, because they link different versions of SQLite.
const PEERS: [&str; 2] = ["apalis-sqlite", "effectum"];
/// Those on Postgres.
const POSTGRES_PEERS: [&str; 3] = ["graphile-worker", "apalis-postgres", "awa"];
/// Those on Redis that cargo builds; BullMQ runs on Node.
const REDIS_PEERS: [&str; 1] = ["apalis-redis"];

pub(crate) fn bench(arguments: &Arguments) -> anyhow::Result<()> {
    let target = target()?;
    match arguments.what.unwrap_or(What::Engine) {
        What::Engine => engine(arguments, &target),
        What::Service => service(arguments, &target),
        What::Postgres => postgres(arguments, &target),
        What::Redis => redis(arguments, &target),
        What::Jobs => jobs(arguments, &target),
        What::Paste => paste(arguments, &target),
    }
}

fn engine(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    run(cargo().args(["build", "--release", "--locked", "--package", "redrive-bench"]))?;
    let mut bench = program(arguments, target, "bench.json");
    beside(&mut bench, arguments, &PEERS, target)?;
    run(&mut bench)
}

fn postgres(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    crate::setup::servers()?;
    run(cargo().args(["build", "--release", "--locked", "--package", "redrive-bench"]))?;
    let mut bench = program(arguments, target, "bench-postgres.json");
    beside(&mut bench, arguments, &POSTGRES_PEERS, target)?;
    run(bench.arg("postgres"))
}

fn redis(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    crate::setup::servers()?;
    run(cargo().args(["build", "--release", "--locked", "--package", "redrive-bench"]))?;
    let mut bench = program(arguments, target, "bench-redis.json");
    beside(&mut bench, arguments, &REDIS_PEERS, target)?;
    if !arguments.no_peers
        && let Some(peer) = install_bullmq(target)?
    {
        bench.arg("--peer").arg(peer);
    }
    run(bench.arg("redis"))
}

fn jobs(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    crate::setup::servers()?;
    run(cargo().args(["build", "--release", "--locked", "--package", "redrive-bench"]))?;
    run(program(arguments, target, "bench-jobs.json").arg("jobs"))
}

fn beside(bench: &mut Command, arguments: &Arguments, peers: &[&str], target: &Path) -> anyhow::Result<()> {
    if !arguments.no_peers {
        for peer in peers {
            bench.arg("--peer").arg(build_peer(peer, target)?);
        }
    }
    Ok(())
}

fn service(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    run(cargo().args([
        "build",
        "--release",
        "--locked",
        "--package",
        "redrive-bench",
        "--package",
        "redrive-cli",
    ]))?;
    let mut bench = program(arguments, target, "bench-service.json");
    run(bench.args(["service", "--program"]).arg(target.join("release/redrive")))
}

fn paste(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    let packages = ["--package", "redrive-bench", "--package", "paste"];
    run(cargo().args(["build", "--release", "--locked"]).args(packages))?;
    let mut bench = program(arguments, target, "bench-paste.json");
    run(bench.args(["paste", "--program"]).arg(target.join("release/paste")))
}

fn program(arguments: &Arguments, target: &Path, json: &str) -> Command {
    let mut bench = Command::new(target.join("release/redrive-bench"));
    bench.current_dir(target).arg("--json").arg(target.join(json));
    if arguments.quick {
        bench.arg("--quick");
    }
    bench
}

fn build_peer(peer: &str, target: &Path) -> anyhow::Result<PathBuf> {
    let target = target.join("peers");
    let manifest = root().join("bench/peers").join(peer).join("Cargo.toml");
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "--manifest-path"]).arg(manifest);
    run(build.arg("--target-dir").arg(&target))?;
    Ok(target.join("release").join(format!("peer-{peer}")))
}

/// Puts BullMQ's program and what its lock file names under the target folder; nothing where there is no Node.
fn install_bullmq(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    if !works("node", &["--version"]) || !works("npm", &["--version"]) {
        println!("\nbullmq is left out: it needs node and npm");
        return Ok(None);
    }
    let (from, to) = (root().join("bench/peers/bullmq"), target.join("peers/bullmq"));
    std::fs::create_dir_all(&to)?;
    for file in ["package.json", "package-lock.json", "measure.js"] {
        std::fs::copy(from.join(file), to.join(file)).with_context(|| format!("{file} cannot be copied"))?;
    }
    let mut npm = Command::new("npm");
    // Not `ci`: it refuses a lock file without the optional parts for other platforms.
    run(npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&to))?;
    Ok(Some(to.join("measure.js")))
}

/// Where cargo builds, which a user may have moved out of the checkout.
fn target() -> anyhow::Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().current_dir(root()).exec()?;
    Ok(metadata.target_directory.into_std_path_buf())
}
