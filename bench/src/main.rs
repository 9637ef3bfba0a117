//! Runs the benchmarks: a table for people, JSON for programs.

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use redrive_bench::bench::{self, Size};
use redrive_bench::{drain, enqueue, figures, lag, paste, peers, pickup, retry, service, waiting};
#[cfg(feature = "servers")]
use redrive_bench::{jobs, postgres, redis};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// Measure less, in about a minute.
    #[arg(long)]
    quick: bool,
    /// Programs of peers to run beside.
    #[arg(long, value_name = "PROGRAM")]
    peer: Vec<PathBuf>,
    /// Write the figures here as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum What {
    /// One measurement alone, by name: drain, batches, singles, pickup, lag, retry.
    Only {
        /// Its name.
        name: String,
    },
    /// The drain beside jobs in the future, as JSON; used by the whole run for a process of its own.
    Waiting {
        /// Jobs in the future.
        #[arg(long)]
        waiting: usize,
        /// Jobs to drain.
        #[arg(long)]
        jobs: usize,
        /// How often.
        #[arg(long)]
        repeats: usize,
    },
    /// The service, as a process of its own.
    Service {
        /// The program that serves.
        #[arg(long, value_name = "PROGRAM")]
        program: PathBuf,
        /// Leave out the other parts.
        #[arg(long)]
        only: Option<service::Part>,
    },
    /// The paste site, as a process of its own.
    Paste {
        /// The program of the site.
        #[arg(long, value_name = "PROGRAM")]
        program: PathBuf,
    },
    /// Several nodes on Postgres, on a private server.
    #[cfg(feature = "servers")]
    Postgres {
        /// Leave out the other parts.
        #[arg(long)]
        only: Option<postgres::Part>,
    },
    /// High volume on Redis, on private servers.
    #[cfg(feature = "servers")]
    Redis {
        /// Leave out the other parts.
        #[arg(long)]
        only: Option<redis::Part>,
    },
    /// Durable jobs, on SQLite and on a private Postgres server.
    #[cfg(feature = "servers")]
    Jobs,
    /// A node that works until its input ends.
    #[cfg(feature = "servers")]
    #[command(hide = true)]
    PostgresNode {
        /// The database.
        address: String,
    },
    /// An endpoint that stores nothing, which creates are held against; ends with its input.
    #[command(hide = true)]
    Probe,
    /// A target of deliveries; ends with its input.
    #[command(hide = true)]
    Sink,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let size = if arguments.quick { Size::QUICK } else { Size::FULL };
    match &arguments.what {
        Some(What::Waiting { waiting, jobs, repeats }) => {
            let report = waiting::measure(*waiting, *jobs, *repeats)?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
        Some(What::Only { name }) => only(name, size),
        Some(What::Service { program, only }) => serve(&arguments, program, *only),
        Some(What::Paste { program }) => paste_site(&arguments, program),
        #[cfg(feature = "servers")]
        Some(What::Postgres { only }) => several_nodes(&arguments, *only),
        #[cfg(feature = "servers")]
        Some(What::Redis { only }) => high_volume(&arguments, *only),
        #[cfg(feature = "servers")]
        Some(What::Jobs) => durable_jobs(&arguments),
        #[cfg(feature = "servers")]
        Some(What::PostgresNode { address }) => postgres::be_a_node(address),
        Some(What::Probe) => service::be_the_probe(),
        Some(What::Sink) => service::be_the_sink(),
        None => whole(&arguments, size),
    }
}

fn whole(arguments: &Arguments, size: Size) -> anyhow::Result<()> {
    let figures = bench::all(size, said)?;
    print!("{}", figures::table(&figures));
    let mut json = serde_json::json!({ "figures": figures });
    if !arguments.peer.is_empty() {
        let (ours, measured) = bench::peers(&arguments.peer, size, said)?;
        print!("\n{}", peers::table(&ours, &measured));
        json["peers"] = serde_json::to_value(std::iter::once(&ours).chain(&measured).collect::<Vec<_>>())?;
    }
    write(arguments, &json)
}

fn serve(arguments: &Arguments, program: &Path, only: Option<service::Part>) -> anyhow::Result<()> {
    let size = if arguments.quick { service::Size::QUICK } else { service::Size::FULL };
    let parts = only.as_ref().map_or(&service::Part::ALL[..], std::slice::from_ref);
    let (figures, cores) = service::measure(program, size, parts, said)?;
    print!("{}\n{}", figures::table(&figures), cores.table());
    write(arguments, &serde_json::json!({ "figures": figures, "cores": cores.list() }))
}

fn paste_site(arguments: &Arguments, program: &Path) -> anyhow::Result<()> {
    let size = if arguments.quick { paste::Size::QUICK } else { paste::Size::FULL };
    let figures = paste::measure(program, size, said)?;
    print!("{}", figures::table(&figures));
    write(arguments, &serde_json::json!({ "figures": figures }))
}

#[cfg(feature = "servers")]
fn several_nodes(arguments: &Arguments, only: Option<postgres::Part>) -> anyhow::Result<()> {
    let size = if arguments.quick { postgres::Size::QUICK } else { postgres::Size::FULL };
    let parts = only.as_ref().map_or(&postgres::Part::ALL[..], std::slice::from_ref);
    let figures = postgres::measure(size, &arguments.peer, parts, said)?;
    print!("{}", figures::table(&figures));
    write(arguments, &serde_json::json!({ "figures": figures }))
}

#[cfg(feature = "servers")]
fn high_volume(arguments: &Arguments, only: Option<redis::Part>) -> anyhow::Result<()> {
    let size = if arguments.quick { redis::Size::QUICK } else { redis::Size::FULL };
    let parts = only.as_ref().map_or(&redis::Part::ALL[..], std::slice::from_ref);
    let figures = redis::measure(size, &arguments.peer, parts, said)?;
    print!("{}", figures::table(&figures));
    write(arguments, &serde_json::json!({ "figures": figures }))
}

#[cfg(feature = "servers")]
fn durable_jobs(arguments: &Arguments) -> anyhow::Result<()> {
    let size = if arguments.quick { jobs::Size::QUICK } else { jobs::Size::FULL };
    let figures = jobs::measure(size, said)?;
    print!("{}", figures::table(&figures));
    write(arguments, &serde_json::json!({ "figures": figures }))
}

fn said(what: &str) {
    eprintln!("measuring {what} …");
}

fn write(arguments: &Arguments, json: &serde_json::Value) -> anyhow::Result<()> {
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(json)?)?;
        println!("\nwritten to {}", path.display());
    }
    Ok(())
}

fn only(name: &str, size: Size) -> anyhow::Result<()> {
    let figure = match name {
        "drain" => drain::figure(size.jobs, size.repeats)?,
        "batches" => enqueue::batches(size.jobs, size.repeats)?,
        "singles" => enqueue::singles(size.jobs / 2, size.repeats)?,
        "pickup" => pickup::figure(size.picks, size.repeats)?,
        "lag" => lag::figure(size.seconds, size.repeats)?,
        "retry" => retry::figure(2_000_000, size.repeats)?,
        other => anyhow::bail!("no measurement is called {other:?}; see --help"),
    };
    print!("{}", figures::table(&[figure]));
    Ok(())
}
