//! Measures the tasks per second that are created and delivered at the same time.

use std::time::Duration;

use super::cpu::Cores;
use super::load;
use super::request::{self, When};
use super::running_service::RunningService;
use super::sink::Sink;

/// All tasks must arrive within this time after the last create.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates due tasks over many connections for `duration`. Returns tasks per second, from the first arrival to the last.
pub async fn rate(
    service: &mut RunningService,
    name: &str,
    sink: &mut Sink,
    duration: Duration,
    cores: &mut Cores,
) -> anyhow::Result<f64> {
    let target = sink.target();
    let make = move |task: u64| request::task(&target, &format!("order-{task:012}"), When::Now).into();
    sink.take().await?;
    let child = &service.child;
    let created = load::post(child.address(), "/v1/tasks", duration, child.name_and_pid(), make).await?;
    sink.wait_for_arrivals(created.answers, ARRIVAL_TIMEOUT).await?;
    cores.add(name, created.cores);
    service.until_succeeded(created.answers as usize).await?;
    let arrived = sink.take().await?;
    anyhow::ensure!(
        arrived.count == created.answers,
        "{} deliveries of {} tasks",
        arrived.count,
        created.answers
    );
    Ok(arrived.per_s())
}
