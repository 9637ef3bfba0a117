//! Measures created tasks per second, with one request per task over 64 connections.

use std::path::Path;
use std::time::Duration;

use super::child::Child;
use super::cpu::Cores;
use super::load::{self, CONNECTIONS, LoadResult};
use super::request::{self, When};
use super::running_service::RunningService;
use crate::figures::{Bar, Figure, Samples};

/// The target of the tasks. Nothing listens there, and nothing is sent, because the tasks are due in an hour.
const TARGET: &str = "http://127.0.0.1:9/hooks/orders";
/// The allowed difference in size between the answers of the service and the probe.
const ANSWER_TOLERANCE: f64 = 0.02;

/// Compares the service with an endpoint that stores nothing, in turn.
pub async fn figure(
    program: &Path,
    duration: Duration,
    repeats: usize,
    cores: &mut Cores,
) -> anyhow::Result<Figure> {
    let probe = Child::role("probe").await?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        let bare = send_load(&probe, duration).await?;
        let service = RunningService::start(program, &[]).await?;
        let created = send_load(&service.child, duration).await?;
        service.end().await?;
        let ratio = bare.answer_bytes / created.answer_bytes;
        anyhow::ensure!(
            (ratio - 1.0).abs() < ANSWER_TOLERANCE,
            "the responses of the probe have {ratio:.2} times the bytes of those of the service; change the probe to match the service"
        );
        theirs.push(bare.per_s);
        ours.push(created.per_s);
        cores.add("creates, the probe", bare.cores);
        cores.add("creates", created.cores);
    }
    probe.end().await?;
    Ok(Figure {
        name: format!("durable creates, {CONNECTIONS} connections"),
        unit: "/s",
        ours: Samples::of(ours),
        other: Some(("axum, parses and stores nothing".to_owned(), Samples::of(theirs))),
        bar: Some(Bar::AtLeast(0.3)),
    })
}

/// Creates tasks for `duration`.
pub(super) async fn send_load(child: &Child, duration: Duration) -> anyhow::Result<LoadResult> {
    let make = |number: u64| request::task(TARGET, &format!("order-{number:012}"), When::InAnHour).into();
    load::post(child.address(), "/v1/tasks", duration, child.name_and_pid(), make).await
}
