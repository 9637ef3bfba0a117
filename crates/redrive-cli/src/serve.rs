//! `redrive serve`: the service, until it is told to end.

use std::future::ready;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;

use anyhow::Context as _;
use redrive::shutdown_signal;
use redrive_server::{Service, assemble};

use crate::config::Flags;
use crate::file_limit;
use crate::telemetry::Telemetry;

/// What to serve, and how.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A file with any of these settings, in TOML
    #[arg(long, env = "REDRIVE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let flags = arguments.flags.with_file(arguments.config.as_deref())?;
    let telemetry = Telemetry::start(flags.log_format())?;
    file_limit::raise();
    let setup = flags.setup()?;
    let served = runtime()?.block_on(async {
        let store = redrive::shown(&setup.store);
        let service = assemble(setup).await?.dressed(redrive_console::router);
        let mut shutdown = pin!(shutdown_signal());
        // Signals are heard from the first poll on: whoever reads the greeting may send one at once.
        let told = tokio::select! { biased; () = &mut shutdown => true, () = ready(()) => false };
        if told {
            return Ok(());
        }
        greet(&service, &store);
        let summary = service.run_until(shutdown).await?;
        if let Some(summary) = summary {
            tracing::info!(settled = summary.settled(), released = summary.released, "ended in good order");
        }
        anyhow::Ok(())
    });
    telemetry.end();
    served
}

/// A runtime for a service.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime could be started")
}

fn greet(service: &Service, store: &str) {
    let text = match service.address() {
        Some(address) => greeting(address, store, service.is_open()),
        None => format!("redrive works on {store}, without an API"),
    };
    // Whoever started it may have stopped reading: no reason to end.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Where it listens, and one line to try.
fn greeting(address: SocketAddr, store: &str, open: bool) -> String {
    let key = if open { "" } else { " -H \"authorization: Bearer $REDRIVE_API_KEY\"" };
    // On all addresses it listens on this one too.
    let host = if address.ip().is_unspecified() {
        SocketAddr::from(([127, 0, 0, 1], address.port()))
    } else {
        address
    };
    format!(
        "redrive listens on http://{address} with {store}; console at http://{host}/, docs at http://{host}/docs\n\
         try: curl -s http://{host}/retry-tasks{key} -H 'content-type: application/json' \
         -d '{{\"targetUrl\": \"http://{host}/healthz\", \"method\": \"GET\"}}'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_can_be_pasted() {
        let open = greeting(([127, 0, 0, 1], 7373).into(), "sqlite:redrive.db", true);
        assert!(open.contains("curl -s http://127.0.0.1:7373/retry-tasks -H 'content-type"), "{open}");
        let keyed = greeting(([0, 0, 0, 0], 7373).into(), "sqlite:redrive.db", false);
        assert!(keyed.contains("http://127.0.0.1:7373/retry-tasks -H \"authorization: Bearer $"), "{keyed}");
    }
}
