//! `redrive demo`: a service, a target that fails, and a trickle of tasks, so that a newcomer sees it work.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use redrive::shutdown_signal;
use redrive_core::State;
use redrive_delivery::{Guard, Outgoing, Target, Transport, TransportSettings, Upload};
use redrive_server::demo::FlakyTarget;
use redrive_server::{AcceptNew, Config, KeySource, Service, Setup, View, assemble};
use serde_json::json;
use tokio::time::{Instant, interval, sleep};

use crate::serve::runtime;
use crate::values::{parse_listen, whole};

/// How the demonstration runs.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where the service listens
    #[arg(long, default_value = "127.0.0.1:7373", value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    listen: SocketAddr,
    /// End after this many seconds instead of at Ctrl-C
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0.., 60))]
    seconds: Option<u64>,
    /// Tasks a second
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = whole::<u64>(1..=1000, 2))]
    rate: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    runtime()?.block_on(show(arguments))
}

async fn show(arguments: &Arguments) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let service = assemble(setup(arguments.listen, folder.path())).await?.dressed(redrive_console::router);
    let address = service.address().unwrap_or(arguments.listen);
    let target = FlakyTarget::start(|line| println!("  target   {line}")).await?;
    println!(
        "redrive listens on http://{address}; console at http://{address}/, docs at http://{address}/docs"
    );
    println!("a flaky target listens on {}: it fails 4 calls in 10, and all of them for", target.url());
    println!(
        "15 s of every minute; watch the waits grow, the gate close, and everything arrive in the end\n"
    );
    let view = service.view();
    let end = async {
        tokio::select! {
            () = shutdown_signal() => {}
            () = after(arguments.seconds) => {}
        }
    };
    let trickle = tokio::spawn(trickle(address, target.url().to_owned(), arguments.rate));
    let telling = tokio::spawn(tell(view.clone()));
    run_service(service, end).await?;
    trickle.abort();
    telling.abort();
    println!("\n{}", so_far(&view).await);
    println!("everything was kept in a temporary folder, which is gone now; `redrive serve` keeps it");
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

async fn after(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

/// Creates tasks as any other program would: over HTTP.
async fn trickle(service: SocketAddr, target: String, rate: u64) -> anyhow::Result<()> {
    let guard = Guard::open_to_loopback();
    let transport = Transport::new(TransportSettings::default().with_guard(guard))?;
    let create = Target::parse(&format!("http://{service}/retry-tasks"))?;
    let mut ticks = interval(Duration::from_secs(1) / u32::try_from(rate).unwrap_or(1));
    for number in 1u64.. {
        ticks.tick().await;
        let task = json!({
            "targetUrl": format!("{target}/orders/{number}"),
            "bodyJson": {"order": number},
            "policy": {"initialDelayMs": 500, "maxDelayMs": 10_000, "maxAttempts": 10, "jitterType": "FULL"},
        });
        let mut outgoing = Outgoing::new(&create);
        outgoing.headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        outgoing.body = Upload::bytes(task.to_string());
        if let Some(trouble) = transport.send(outgoing).await.trouble {
            eprintln!("  a task could not be created: {}", trouble.message);
        }
    }
    Ok(())
}

async fn tell(view: View) {
    let began = Instant::now();
    loop {
        sleep(Duration::from_secs(5)).await;
        println!("{:>4} s   {}", began.elapsed().as_secs(), so_far(&view).await);
    }
}

async fn so_far(view: &View) -> String {
    let Ok(stats) = view.stats().await else { return "the store does not answer".to_owned() };
    let waiting = stats.in_state(State::Pending) + stats.in_state(State::Retrying);
    let gates: Vec<String> = view
        .gates()
        .iter()
        .map(|gate| {
            let opens =
                gate.opens_in.map(|span| format!(" for {:.1} s", span.as_secs_f64())).unwrap_or_default();
            format!("gate {:?}{opens}, at most {} at once", gate.state, gate.limit).to_lowercase()
        })
        .collect();
    format!(
        "{} succeeded, {} waiting, {} in flight, {} exhausted; {}",
        stats.in_state(State::Succeeded),
        waiting,
        stats.in_state(State::Running),
        stats.in_state(State::Dead),
        gates.join("; ")
    )
}
