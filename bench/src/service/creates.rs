//! How many tasks a second become durable, one request for each over 64 connections.

use std::path::Path;
use std::time::Duration;

use super::child::Child;
use super::cpu::Cores;
use super::load::{self, Burst, CONNECTIONS};
use super::request::{self, When};
use super::running::Running;
use crate::figures::{Bar, Figure, Samples};

/// Nobody listens there, and nobody is called there within the hour.
const TARGET: &str = "http://127.0.0.1:9/hooks/orders";
/// By how much the probe's answers may differ in size.
const ANSWER_TOLERANCE: f64 = 0.02;

/// The service against an endpoint that stores nothing, in turn.
pub async fn figure(
    program: &Path,
    lasting: Duration,
    repeats: usize,
    cores: &mut Cores,
) -> anyhow::Result<Figure> {
    let probe = Child::role("probe").await?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        let bare = burst(&probe, lasting).await?;
        let service = Running::start(program, &[]).await?;
        let created = burst(&service.child, lasting).await?;
        service.end().await?;
        let ratio = bare.answer_bytes / created.answer_bytes;
        anyhow::ensure!(
            (ratio - 1.0).abs() < ANSWER_TOLERANCE,
            "the probe answers {ratio:.2} times the bytes; make its answer like the service's"
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

async fn burst(child: &Child, lasting: Duration) -> anyhow::Result<Burst> {
    let make = |number: u64| request::task(TARGET, &format!("order-{number:012}"), When::InAnHour).into();
    load::post(child.address(), "/retry-tasks", lasting, child.watched(), make).await
}
