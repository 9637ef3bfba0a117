//! Measures due tasks per second that reach a sink, which answers at once.

use std::path::Path;
use std::time::Duration;

use super::bare_client::BareClient;
use super::cpu::{Cores, Meter};
use super::request::{self, When};
use super::running_service::RunningService;
use super::sink::Sink;
use crate::figures::{Bar, Figure, Samples};

/// Requests at once: the default of the service, also used for the bare client.
const SENDERS: usize = 64;
/// The timeout of a drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Flags of the service, and the bar that it must reach with them.
struct Setting {
    name: &'static str,
    flags: &'static [&'static str],
    bar: Option<Bar>,
}

const SETTINGS: [Setting; 3] = [
    Setting { name: "deliveries of due tasks", flags: &[], bar: Some(Bar::AtLeast(0.5)) },
    Setting { name: "deliveries, --concurrency 256", flags: &["--concurrency", "256"], bar: None },
    Setting {
        name: "deliveries, 256 and 256 to one origin",
        flags: &["--concurrency", "256", "--origin-concurrency", "256"],
        bar: None,
    },
];

/// Compares the service in each setting with the bare client, in turn. Only the first setting has a bar. The others are measured in
/// every second repeat, to save time.
pub async fn figures(
    program: &Path,
    tasks: usize,
    repeats: usize,
    cores: &mut Cores,
) -> anyhow::Result<Vec<Figure>> {
    let mut sink = Sink::start().await?;
    let mut rates = SETTINGS.map(|_| (Vec::new(), Vec::new()));
    for repeat in 0..repeats {
        let bare = bare_rate(&mut sink, tasks, cores).await?;
        for (setting, (ours, theirs)) in SETTINGS.iter().zip(&mut rates) {
            if setting.bar.is_some() || repeat % 2 == 0 {
                let mut service = RunningService::start(program, setting.flags).await?;
                ours.push(rate(&mut service, setting.name, &mut sink, tasks, cores).await?);
                service.end().await?;
                theirs.push(bare);
            }
        }
    }
    sink.end().await?;
    let figures = SETTINGS.iter().zip(rates).map(|(setting, (ours, theirs))| Figure {
        name: setting.name.to_owned(),
        unit: "/s",
        ours: Samples::of(ours),
        other: Some((format!("the client alone, {SENDERS} at once"), Samples::of(theirs))),
        bar: setting.bar,
    });
    Ok(figures.collect())
}

async fn bare_rate(sink: &mut Sink, calls: usize, cores: &mut Cores) -> anyhow::Result<f64> {
    let bare = BareClient::new(&sink.target())?;
    sink.take().await?;
    let meter = Meter::start(&[sink.name_and_pid()])?;
    bare.send_all(calls, SENDERS).await?;
    cores.add("deliveries, the client alone", meter.stop()?);
    let statistics = sink.take().await?;
    anyhow::ensure!(
        statistics.count == calls as u64,
        "{} of {calls} bare requests arrived",
        statistics.count
    );
    Ok(statistics.per_s())
}

/// Creates tasks while their queue is paused, and measures the time from the first arrival to the last.
pub(super) async fn rate(
    service: &mut RunningService,
    name: &str,
    sink: &mut Sink,
    tasks: usize,
    cores: &mut Cores,
) -> anyhow::Result<f64> {
    service.pause().await?;
    let target = sink.target();
    service.fill(tasks, |task| request::task(&target, &format!("order-{task:012}"), When::Now)).await?;
    let early = sink.take().await?.count;
    anyhow::ensure!(early == 0, "{early} tasks were delivered although their queue was paused");
    service.resume().await?;
    sink.wait_for_arrivals(1, DRAIN_TIMEOUT).await?;
    let meter = Meter::start(&[service.child.name_and_pid(), sink.name_and_pid()])?;
    sink.wait_for_arrivals(tasks as u64, DRAIN_TIMEOUT).await?;
    cores.add(name, meter.stop()?);
    service.until_succeeded(tasks).await?;
    let statistics = sink.take().await?;
    anyhow::ensure!(statistics.count == tasks as u64, "{} deliveries of {tasks} tasks", statistics.count);
    Ok(statistics.per_s())
}
