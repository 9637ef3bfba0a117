//! `redrive serve`: runs the service until a signal ends it.

pub(crate) mod config;
mod file_limit;
mod telemetry;

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

use self::config::ServeOptions;
use self::file_limit::FileLimit;
use self::telemetry::Telemetry;
use crate::options::ExplicitOptions;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    explicit: ExplicitOptions,
    /// A TOML file with any of these settings
    #[arg(long, env = "REDRIVE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: ServeOptions,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let options = arguments.options.resolve(&arguments.explicit)?.with_file(arguments.config.as_deref())?;
    let telemetry = Telemetry::start(options.log_format())?;
    let file_limit = FileLimit::raise();
    let setup = options.setup()?;
    let served = runtime()?.block_on(async {
        let (store, ranges) =
            (redrive::mask_password(&setup.store), (setup.allow.clone(), setup.deny.clone()));
        let service = assemble(setup).await.map_err(name_option)?.wrap_router(redrive_console::router);
        file_limit.log();
        let mut shutdown = pin!(shutdown_signal());
        // The first poll registers the signal handlers. A reader of the greeting may send a signal at once.
        let interrupted = tokio::select! { biased; () = &mut shutdown => true, () = ready(()) => false };
        if interrupted {
            return Ok(());
        }
        print_greeting(&service, &store, &ranges);
        let summary = service.run_until(shutdown).await?;
        if let Some(summary) = summary {
            tracing::info!(settled = summary.settled(), released = summary.released, "shut down");
        }
        anyhow::Ok(())
    });
    telemetry.end();
    served
}

/// Adds the option with the invalid value to the error.
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

pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start a runtime")
}

fn print_greeting(service: &Service, store: &str, (allow, deny): &(Vec<IpNet>, Vec<IpNet>)) {
    let text = match service.address() {
        Some(address) => {
            let host = reachable(address);
            let has = |ranges: &[IpNet]| ranges.iter().any(|range| range.contains(&host.ip()));
            let calls_itself = (service.is_open() || has(allow)) && !has(deny);
            greeting(address, store, service.is_open(), calls_itself)
        }
        None => format!("redrive executes jobs of {store}, without an API"),
    };
    // A closed standard output must not end the service.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// The address to call the service at. A service that listens on all addresses is reachable on loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() { ([127, 0, 0, 1], address.port()).into() } else { address }
}

/// The address of the service, and a command to try: a task whose target the service may call.
fn greeting(address: SocketAddr, store: &str, open: bool, calls_itself: bool) -> String {
    let key = if open { "" } else { " -H \"authorization: Bearer $REDRIVE_API_KEY\"" };
    let host = reachable(address);
    let target =
        if calls_itself { format!("http://{host}/healthz") } else { "https://example.com/".to_owned() };
    format!(
        "redrive listens on http://{address} with {store}; console at http://{host}/, docs at http://{host}/docs\n\
         try: curl -sS 'http://{host}/v1/tasks'{key} -H 'content-type: application/json' \
         -d '{{\"target\": \"{target}\", \"method\": \"GET\"}}'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_has_a_target_that_the_service_may_call() {
        let open = greeting(([127, 0, 0, 1], 7373).into(), "sqlite:redrive.db", true, true);
        assert!(open.contains("curl -sS 'http://127.0.0.1:7373/v1/tasks' -H 'content-type"), "{open}");
        assert!(open.contains("\"target\": \"http://127.0.0.1:7373/healthz\""), "{open}");
        let keyed = greeting(([0, 0, 0, 0], 7373).into(), "sqlite:redrive.db", false, false);
        assert!(keyed.contains("http://127.0.0.1:7373/v1/tasks' -H \"authorization: Bearer $"), "{keyed}");
        assert!(keyed.contains("\"target\": \"https://example.com/\""), "{keyed}");
    }
}
