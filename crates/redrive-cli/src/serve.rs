//! `redrive serve`: the service, until it is told to end.

use std::future::ready;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;

use anyhow::Context as _;
use ipnet::IpNet;
use redrive::shutdown_signal;
use redrive_delivery::secrets::KeyError;
use redrive_server::{AssembleError, Service, assemble};

use crate::config::Flags;
use crate::explicit::ExplicitOptions;
use crate::file_limit::FileLimit;
use crate::telemetry::Telemetry;

/// What to serve, and how.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    explicit: ExplicitOptions,
    /// A file with any of these settings, in TOML
    #[arg(long, env = "REDRIVE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let flags = arguments.flags.decide(&arguments.explicit)?.with_file(arguments.config.as_deref())?;
    let telemetry = Telemetry::start(flags.log_format())?;
    let file_limit = FileLimit::raise();
    let setup = flags.setup()?;
    let served = runtime()?.block_on(async {
        let (store, ranges) = (redrive::shown(&setup.store), (setup.allow.clone(), setup.deny.clone()));
        let service = assemble(setup).await.map_err(name_option)?.dressed(redrive_console::router);
        file_limit.log();
        let mut shutdown = pin!(shutdown_signal());
        // Signals are heard from the first poll on: whoever reads the greeting may send one at once.
        let told = tokio::select! { biased; () = &mut shutdown => true, () = ready(()) => false };
        if told {
            return Ok(());
        }
        greet(&service, &store, &ranges);
        let summary = service.run_until(shutdown).await?;
        if let Some(summary) = summary {
            tracing::info!(settled = summary.settled(), released = summary.released, "ended in good order");
        }
        anyhow::Ok(())
    });
    telemetry.end();
    served
}

/// Names the option that an invalid value was given for.
pub(crate) fn name_option(error: AssembleError) -> anyhow::Error {
    let option = match &error {
        AssembleError::Bodies(_) => "--bodies",
        AssembleError::Key(KeyError::Malformed) => "--secret-key",
        AssembleError::Key(_) => "--secret-key-file",
        AssembleError::Store(_)
        | AssembleError::Transport(_)
        | AssembleError::Identity(_)
        | AssembleError::Start(_) => return error.into(),
    };
    anyhow::Error::new(error).context(option)
}

/// A runtime for a service.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime could be started")
}

fn greet(service: &Service, store: &str, (allow, deny): &(Vec<IpNet>, Vec<IpNet>)) {
    let text = match service.address() {
        Some(address) => {
            let host = reachable(address);
            let has = |ranges: &[IpNet]| ranges.iter().any(|range| range.contains(&host.ip()));
            let calls_itself = (service.is_open() || has(allow)) && !has(deny);
            greeting(address, store, service.is_open(), calls_itself)
        }
        None => format!("redrive works on {store}, without an API"),
    };
    // Whoever started it may have stopped reading: no reason to end.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// An address to call a service at: one on all addresses listens on loopback too.
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() { ([127, 0, 0, 1], address.port()).into() } else { address }
}

/// Where it listens, and one command to try: a task with a target that the service may call.
fn greeting(address: SocketAddr, store: &str, open: bool, calls_itself: bool) -> String {
    let key = if open { "" } else { " -H \"authorization: Bearer $REDRIVE_API_KEY\"" };
    let host = reachable(address);
    let target =
        if calls_itself { format!("http://{host}/healthz") } else { "https://example.com/".to_owned() };
    format!(
        "redrive listens on http://{address} with {store}; console at http://{host}/, docs at http://{host}/docs\n\
         try: curl -sS 'http://{host}/retry-tasks'{key} -H 'content-type: application/json' \
         -d '{{\"targetUrl\": \"{target}\", \"method\": \"GET\"}}'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_has_a_target_that_the_service_may_call() {
        let open = greeting(([127, 0, 0, 1], 7373).into(), "sqlite:redrive.db", true, true);
        assert!(open.contains("curl -sS 'http://127.0.0.1:7373/retry-tasks' -H 'content-type"), "{open}");
        assert!(open.contains("\"targetUrl\": \"http://127.0.0.1:7373/healthz\""), "{open}");
        let keyed = greeting(([0, 0, 0, 0], 7373).into(), "sqlite:redrive.db", false, false);
        assert!(keyed.contains("http://127.0.0.1:7373/retry-tasks' -H \"authorization: Bearer $"), "{keyed}");
        assert!(keyed.contains("\"targetUrl\": \"https://example.com/\""), "{keyed}");
    }
}
