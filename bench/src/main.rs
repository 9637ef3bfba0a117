//! Runs the benchmarks: a table for people, JSON for programs.

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use redrive_bench::bench::{self, Size};
use redrive_bench::{drain, enqueue, figures, lag, paste, peers, pickup, retry, service, waiting};
use redrive_bench::{jobs, postgres, redis};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Measure less. Takes about a minute.
    #[arg(long)]
    quick: bool,
    /// Measure longer: on Postgres, another session keeps its transaction open for an hour.
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// Programs of peers to compare with.
    #[arg(long, value_name = "PROGRAM")]
    peer: Vec<PathBuf>,
    /// Write the figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// One measurement alone, by name: drain, batches, singles, pickup, lag, retry.
    Only {
        /// The name of the measurement.
        name: String,
    },
    /// The drain with jobs that wait in the future, as JSON. The whole run starts it as a process of its own.
    Waiting {
        /// Jobs in the future.
        #[arg(long)]
        waiting: usize,
        /// Jobs to drain.
        #[arg(long)]
        jobs: usize,
        /// Repeats.
        #[arg(long)]
        repeats: usize,
    },
    /// The service, as a process of its own.
    Service {
        /// The program of the service.
        #[arg(long, value_name = "PROGRAM")]
        program: PathBuf,
        /// Measure this part only.
        #[arg(long)]
        only: Option<service::Part>,
        /// Measure the service on this store, next to SQLite.
        #[arg(long)]
        store: Option<service::StoreKind>,
    },
    /// The paste site, as a process of its own.
    Paste {
        /// The program of the site.
        #[arg(long, value_name = "PROGRAM")]
        program: PathBuf,
    },
    /// Several nodes on Postgres, on a private server.
    Postgres {
        /// Measure this part only.
        #[arg(long)]
        only: Option<postgres::Part>,
    },
    /// High volume on Redis, on private servers.
    Redis {
        /// Measure this part only.
        #[arg(long)]
        only: Option<redis::Part>,
    },
    /// Durable jobs, on SQLite and on a private Postgres server.
    Jobs,
    /// A node that runs until its standard input closes.
    #[command(hide = true)]
    PostgresNode {
        /// The database.
        address: String,
    },
    /// An endpoint that stores nothing, to compare creates with. Ends when its standard input closes.
    #[command(hide = true)]
    Probe,
    /// A target of deliveries. Ends when its standard input closes.
    #[command(hide = true)]
    Sink,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let is_postgres = matches!(arguments.command, Some(Command::Postgres { .. }));
    anyhow::ensure!(is_postgres || !arguments.long, "--long is for postgres only");
    let size = if arguments.quick { Size::QUICK } else { Size::FULL };
    match &arguments.command {
        Some(Command::Waiting { waiting, jobs, repeats }) => {
            let report = waiting::measure(*waiting, *jobs, *repeats)?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
        Some(Command::Only { name }) => measure_one(name, size),
        Some(Command::Service { program, only, store }) => {
            measure_service(&arguments, program, *only, *store)
        }
        Some(Command::Paste { program }) => measure_paste(&arguments, program),
        Some(Command::Postgres { only }) => measure_postgres(&arguments, *only),
        Some(Command::Redis { only }) => measure_redis(&arguments, *only),
        Some(Command::Jobs) => measure_jobs(&arguments),
        Some(Command::PostgresNode { address }) => postgres::run_node(address),
        Some(Command::Probe) => service::run_probe(),
        Some(Command::Sink) => service::run_sink(),
        None => measure_engine(&arguments, size),
    }
}

fn measure_engine(arguments: &Arguments, size: Size) -> anyhow::Result<()> {
    let figures = bench::all(size, progress)?;
    print!("{}", figures::table(&figures));
    let mut json = serde_json::json!({ "figures": figures });
    if !arguments.peer.is_empty() {
        let (ours, measured) = bench::peers(&arguments.peer, size, progress)?;
        print!("\n{}", peers::table(&ours, &measured));
        json["peers"] = serde_json::to_value(std::iter::once(&ours).chain(&measured).collect::<Vec<_>>())?;
    }
    write(arguments, &json)
}

fn measure_service(
    arguments: &Arguments,
    program: &Path,
    only: Option<service::Part>,
    store: Option<service::StoreKind>,
) -> anyhow::Result<()> {
    let size = if arguments.quick { service::Size::QUICK } else { service::Size::FULL };
    let all = match store {
        None => &service::Part::ON_SQLITE,
        Some(service::StoreKind::Postgres) => &service::Part::ON_POSTGRES,
    };
    let parts = only.as_ref().map_or(&all[..], std::slice::from_ref);
    let (figures, cores) = service::measure(program, size, store, parts, progress)?;
    print!("{}\n{}", figures::table(&figures), cores.table());
    write(arguments, &serde_json::json!({ "figures": figures, "cores": cores.list() }))
}

fn measure_paste(arguments: &Arguments, program: &Path) -> anyhow::Result<()> {
    let size = if arguments.quick { paste::Size::QUICK } else { paste::Size::FULL };
    let figures = paste::measure(program, size, progress)?;
    print!("{}", figures::table(&figures));
    write(arguments, &serde_json::json!({ "figures": figures }))
}

fn measure_postgres(arguments: &Arguments, only: Option<postgres::Part>) -> anyhow::Result<()> {
    let size = match arguments {
        Arguments { quick: true, .. } => postgres::Size::QUICK,
        Arguments { long: true, .. } => postgres::Size::LONG,
        _ => postgres::Size::FULL,
    };
    let parts = only.as_ref().map_or(&postgres::Part::ALL[..], std::slice::from_ref);
    let figures = postgres::measure(size, &arguments.peer, parts, progress)?;
    print!("{}", figures::table(&figures));
    write(arguments, &serde_json::json!({ "figures": figures }))
}

fn measure_redis(arguments: &Arguments, only: Option<redis::Part>) -> anyhow::Result<()> {
    let size = if arguments.quick { redis::Size::QUICK } else { redis::Size::FULL };
    let parts = only.as_ref().map_or(&redis::Part::ALL[..], std::slice::from_ref);
    let figures = redis::measure(size, &arguments.peer, parts, progress)?;
    print!("{}", figures::table(&figures));
    write(arguments, &serde_json::json!({ "figures": figures }))
}

fn measure_jobs(arguments: &Arguments) -> anyhow::Result<()> {
    let size = if arguments.quick { jobs::Size::QUICK } else { jobs::Size::FULL };
    let figures = jobs::measure(size, progress)?;
    print!("{}", figures::table(&figures));
    write(arguments, &serde_json::json!({ "figures": figures }))
}

fn progress(what: &str) {
    eprintln!("measuring {what} …");
}

fn write(arguments: &Arguments, json: &serde_json::Value) -> anyhow::Result<()> {
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(json)?)?;
        println!("\nwritten to {}", path.display());
    }
    Ok(())
}

fn measure_one(name: &str, size: Size) -> anyhow::Result<()> {
    let figure = match name {
        "drain" => drain::figure(size.jobs, size.repeats)?,
        "batches" => enqueue::batches(size.jobs, size.repeats)?,
        "singles" => enqueue::singles(size.jobs / 2, size.repeats)?,
        "pickup" => pickup::figure(size.picks, size.repeats)?,
        "lag" => lag::figure(size.seconds, size.repeats)?,
        "retry" => retry::figure(2_000_000, size.repeats)?,
        other => anyhow::bail!("there is no measurement {other:?}; see --help"),
    };
    print!("{}", figures::table(&[figure]));
    Ok(())
}
