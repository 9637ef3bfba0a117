//! Builds the benchmark and the peers in release mode, and runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::run::{cargo, root, run, works};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to measure [default: engine]
    what: Option<Benchmark>,
    /// Measure less, in about a minute
    #[arg(long)]
    quick: bool,
    /// Measure longer: on Postgres, another session keeps its transaction open for an hour
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// Measure this part only, on postgres, redis or service
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// Measure the service on this store, next to SQLite
    #[arg(long)]
    store: Option<ServiceStore>,
    /// Leave out the peers, which take minutes to build
    #[arg(long)]
    no_peers: bool,
}

/// The benchmarks.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Benchmark {
    /// Stores, worker and `retry()`, in one process
    Engine,
    /// `redrive serve` as a separate process
    Service,
    /// Several nodes on a private Postgres server
    Postgres,
    /// High volume on private Redis servers
    Redis,
    /// Durable jobs: steps, fan-out, limits
    Jobs,
    /// The paste site as a separate process
    Paste,
}

/// A store of the service to compare with SQLite.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum ServiceStore {
    /// A private Postgres server
    Postgres,
}

impl Arguments {
    /// Rejects options that the benchmark does not have.
    fn check(&self, benchmark: Benchmark) -> anyhow::Result<()> {
        let has_parts = matches!(benchmark, Benchmark::Postgres | Benchmark::Redis | Benchmark::Service);
        anyhow::ensure!(has_parts || self.only.is_none(), "--only is for postgres, redis and service only");
        anyhow::ensure!(benchmark == Benchmark::Postgres || !self.long, "--long is for postgres only");
        anyhow::ensure!(
            benchmark == Benchmark::Service || self.store.is_none(),
            "--store is for service only"
        );
        Ok(())
    }
}

/// The peers on SQLite. Each has its own workspace, because they link different versions of SQLite.
const PEERS: [&str; 2] = ["apalis-sqlite", "effectum"];
/// The peers on Postgres.
const POSTGRES_PEERS: [&str; 3] = ["graphile-worker", "apalis-postgres", "awa"];
/// The peers on Redis that cargo builds. BullMQ runs on Node.
const REDIS_PEERS: [&str; 1] = ["apalis-redis"];

pub(crate) fn bench(arguments: &Arguments) -> anyhow::Result<()> {
    let benchmark = arguments.what.unwrap_or(Benchmark::Engine);
    arguments.check(benchmark)?;
    let target = target_folder()?;
    match benchmark {
        Benchmark::Engine => engine(arguments, &target),
        Benchmark::Service => service(arguments, &target),
        Benchmark::Postgres => postgres(arguments, &target),
        Benchmark::Redis => redis(arguments, &target),
        Benchmark::Jobs => jobs(arguments, &target),
        Benchmark::Paste => paste(arguments, &target),
    }
}

fn engine(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    run(cargo().args(["build", "--release", "--locked", "--package", "redrive-bench"]))?;
    let mut bench = bench_command(arguments, target, "bench.json");
    add_peers(&mut bench, arguments, &PEERS, target)?;
    run(&mut bench)
}

fn postgres(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    crate::setup::install_servers()?;
    run(cargo().args(["build", "--release", "--locked", "--package", "redrive-bench"]))?;
    let mut bench = bench_command(arguments, target, "bench-postgres.json");
    add_peers(&mut bench, arguments, &POSTGRES_PEERS, target)?;
    run(with_only(bench.arg("postgres"), arguments))
}

fn redis(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    crate::setup::install_servers()?;
    run(cargo().args(["build", "--release", "--locked", "--package", "redrive-bench"]))?;
    let mut bench = bench_command(arguments, target, "bench-redis.json");
    add_peers(&mut bench, arguments, &REDIS_PEERS, target)?;
    if !arguments.no_peers
        && let Some(peer) = install_bullmq(target)?
    {
        bench.arg("--peer").arg(peer);
    }
    run(with_only(bench.arg("redis"), arguments))
}

fn jobs(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    crate::setup::install_servers()?;
    run(cargo().args(["build", "--release", "--locked", "--package", "redrive-bench"]))?;
    run(bench_command(arguments, target, "bench-jobs.json").arg("jobs"))
}

fn add_peers(
    bench: &mut Command,
    arguments: &Arguments,
    peers: &[&str],
    target: &Path,
) -> anyhow::Result<()> {
    if !arguments.no_peers {
        for peer in peers {
            bench.arg("--peer").arg(build_peer(peer, target)?);
        }
    }
    Ok(())
}

fn service(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    if arguments.store == Some(ServiceStore::Postgres) {
        crate::setup::install_servers()?;
    }
    run(cargo().args([
        "build",
        "--release",
        "--locked",
        "--package",
        "redrive-bench",
        "--package",
        "redrive-cli",
    ]))?;
    let mut bench = bench_command(arguments, target, "bench-service.json");
    bench.args(["service", "--program"]).arg(target.join("release/redrive"));
    if arguments.store == Some(ServiceStore::Postgres) {
        bench.args(["--store", "postgres"]);
    }
    run(with_only(&mut bench, arguments))
}

fn paste(arguments: &Arguments, target: &Path) -> anyhow::Result<()> {
    let packages = ["--package", "redrive-bench", "--package", "paste"];
    run(cargo().args(["build", "--release", "--locked"]).args(packages))?;
    let mut bench = bench_command(arguments, target, "bench-paste.json");
    run(bench.args(["paste", "--program"]).arg(target.join("release/paste")))
}

fn bench_command(arguments: &Arguments, target: &Path, json: &str) -> Command {
    let mut bench = Command::new(target.join("release/redrive-bench"));
    bench.current_dir(target).arg("--json").arg(target.join(json));
    if arguments.quick {
        bench.arg("--quick");
    }
    if arguments.long {
        bench.arg("--long");
    }
    bench
}

/// Adds `--only`, which is an argument of the subcommand.
fn with_only<'a>(bench: &'a mut Command, arguments: &Arguments) -> &'a mut Command {
    bench.args(arguments.only.iter().flat_map(|part| ["--only", part]))
}

fn build_peer(peer: &str, target: &Path) -> anyhow::Result<PathBuf> {
    let target = target.join("peers");
    let manifest = root().join("bench/peers").join(peer).join("Cargo.toml");
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "--manifest-path"]).arg(manifest);
    run(build.arg("--target-dir").arg(&target))?;
    Ok(target.join("release").join(format!("peer-{peer}")))
}

/// Installs the benchmark of BullMQ and its locked dependencies in the target folder. Returns `None` if Node is missing.
fn install_bullmq(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    if !works("node", &["--version"]) || !works("npm", &["--version"]) {
        println!("\nbullmq is not measured: it needs node and npm");
        return Ok(None);
    }
    let (from, to) = (root().join("bench/peers/bullmq"), target.join("peers/bullmq"));
    std::fs::create_dir_all(&to)?;
    for file in ["package.json", "package-lock.json", "measure.js"] {
        std::fs::copy(from.join(file), to.join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    let mut npm = Command::new("npm");
    // `npm ci` would reject this lock file, because it lacks the optional packages of other platforms.
    run(npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&to))?;
    Ok(Some(to.join("measure.js")))
}

/// The target folder of cargo, which may be outside the checkout.
fn target_folder() -> anyhow::Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().current_dir(root()).exec()?;
    Ok(metadata.target_directory.into_std_path_buf())
}
