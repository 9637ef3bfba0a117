//! `redrive demo`: a service, a target that fails now and then, and a stream of tasks.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use redrive::shutdown_signal;
use redrive_core::State;
use redrive_delivery::{Guard, OutgoingRequest, Target, Transport, TransportSettings, Upload};
use redrive_server::demo::FlakyTarget;
use redrive_server::{AcceptNew, Config, KeySource, Service, ServiceMonitor, Setup, assemble};
use serde_json::json;
use tokio::time::{Instant, interval, sleep};

use crate::options::{integer, parse_listen};
use crate::serve::runtime;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The address of the service
    #[arg(long, default_value = "127.0.0.1:7373", value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    listen: SocketAddr,
    /// End after this many seconds; the default is to run until Ctrl-C
    #[arg(long, value_name = "N", value_parser = integer::<u64>(0.., 60))]
    seconds: Option<u64>,
    /// Tasks per second
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = integer::<u64>(1..=1000, 2))]
    rate: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    runtime()?.block_on(run_demo(arguments))
}

async fn run_demo(arguments: &Arguments) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let service =
        assemble(setup(arguments.listen, folder.path())).await?.wrap_router(redrive_console::router);
    let address = service.address().unwrap_or(arguments.listen);
    let target = FlakyTarget::start(|line| println!("  target   {line}")).await?;
    println!(
        "redrive listens on http://{address}; console at http://{address}/, docs at http://{address}/docs"
    );
    println!(
        "a flaky target listens on {}: it fails 4 of 10 calls, and all calls for 15 s of every minute",
        target.url()
    );
    println!("the waits grow, the gate blocks calls, and in the end every task succeeds\n");
    let monitor = service.monitor();
    let end = async {
        tokio::select! {
            () = shutdown_signal() => {}
            () = wait(arguments.seconds) => {}
        }
    };
    let creating = tokio::spawn(create_tasks(address, target.url().to_owned(), arguments.rate));
    let reporting = tokio::spawn(report(monitor.clone()));
    run_service(service, end).await?;
    creating.abort();
    reporting.abort();
    println!("\n{}", summary(&monitor).await);
    println!("the store was in a temporary folder, which is deleted now; `redrive serve` keeps its store");
    Ok(())
}

async fn run_service(service: Service, end: impl Future<Output = ()> + Send) -> anyhow::Result<()> {
    service.run_until(end).await?;
    Ok(())
}

fn setup(listen: SocketAddr, folder: &std::path::Path) -> Setup {
    Setup {
        config: Config { listen, ..Config::default() },
        store: format!("sqlite:{}", folder.join("demo.db").display()),
        bodies: format!("file:{}", folder.join("bodies").display()),
        secret_key: KeySource::File(folder.join("demo.key")),
        accept_new: AcceptNew::default(),
        allow: Vec::new(),
        deny: Vec::new(),
        origin_concurrency: 64,
    }
}

async fn wait(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

/// Creates tasks over HTTP, as any other program does.
async fn create_tasks(service: SocketAddr, target: String, rate: u64) -> anyhow::Result<()> {
    let guard = Guard::open_to_loopback();
    let transport = Transport::new(TransportSettings::default().with_guard(guard))?;
    let create = Target::parse(&format!("http://{service}/v1/tasks"))?;
    let mut ticks = interval(Duration::from_secs(1) / u32::try_from(rate).unwrap_or(1));
    for number in 1u64.. {
        ticks.tick().await;
        let task = json!({
            "target": format!("{target}/orders/{number}"),
            "bodyJson": {"order": number},
            "policy": {"initialDelayMs": 500, "maxDelayMs": 10_000, "maxAttempts": 10, "jitterType": "full"},
        });
        let mut outgoing = OutgoingRequest::new(&create);
        outgoing.headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        outgoing.body = Upload::bytes(task.to_string());
        if let Some(failure) = transport.send(outgoing).await.failure {
            eprintln!("  cannot create a task: {}", failure.message);
        }
    }
    Ok(())
}

async fn report(monitor: ServiceMonitor) {
    let began = Instant::now();
    loop {
        sleep(Duration::from_secs(5)).await;
        println!("{:>4} s   {}", began.elapsed().as_secs(), summary(&monitor).await);
    }
}

async fn summary(monitor: &ServiceMonitor) -> String {
    let Ok(stats) = monitor.stats().await else { return "the store does not answer".to_owned() };
    let waiting = stats.in_state(State::Pending) + stats.in_state(State::Retrying);
    let gates: Vec<String> = monitor
        .gates()
        .iter()
        .map(|gate| {
            let blocked =
                gate.next_call_in.map(|time| format!(" for {:.1} s", time.as_secs_f64())).unwrap_or_default();
            format!("gate {:?}{blocked}, limit {}", gate.state, gate.limit).to_lowercase()
        })
        .collect();
    format!(
        "{} succeeded, {} pending or retrying, {} running, {} dead; {}",
        stats.in_state(State::Succeeded),
        waiting,
        stats.in_state(State::Running),
        stats.in_state(State::Dead),
        gates.join("; ")
    )
}
