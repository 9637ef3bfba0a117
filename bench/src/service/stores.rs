//! Compares the service on Postgres with the service on SQLite, in turn.

use std::path::Path;

use super::cpu::Cores;
use super::load::CONNECTIONS;
use super::running_service::RunningService;
use super::sink::Sink;
use super::{Part, Size, accept_and_deliver, creates, deliveries};
use crate::figures::{Figure, Samples};
use crate::postgres::PrivateServer;

/// Measures one part on both stores. There is no bar.
pub async fn figure(
    part: Part,
    program: &Path,
    size: Size,
    server: &PrivateServer,
    cores: &mut Cores,
) -> anyhow::Result<Figure> {
    let mut sink = Sink::start().await?;
    let (mut on_postgres, mut on_sqlite) = (Vec::new(), Vec::new());
    for _ in 0..size.repeats {
        let database = server.database();
        for (store, flags, rates) in [
            ("SQLite", vec![], &mut on_sqlite),
            ("Postgres", vec!["--store", &database.address()], &mut on_postgres),
        ] {
            let mut service = RunningService::start(program, &flags).await?;
            let name = format!("{} on {store}", part.name());
            rates.push(rate(part, &mut service, &name, &mut sink, size, cores).await?);
            service.end().await?;
        }
    }
    sink.end().await?;
    Ok(Figure {
        name: format!("{} on Postgres", title(part)),
        unit: "/s",
        ours: Samples::of(on_postgres),
        other: Some(("on SQLite".to_owned(), Samples::of(on_sqlite))),
        bar: None,
    })
}

fn title(part: Part) -> String {
    match part {
        Part::Creates => format!("durable creates, {CONNECTIONS} connections,"),
        Part::Deliveries => "deliveries of due tasks".to_owned(),
        Part::AcceptAndDeliver => format!("creates and deliveries at once, {CONNECTIONS} connections,"),
        Part::Lateness => part.name().to_owned(),
    }
}

async fn rate(
    part: Part,
    service: &mut RunningService,
    name: &str,
    sink: &mut Sink,
    size: Size,
    cores: &mut Cores,
) -> anyhow::Result<f64> {
    match part {
        Part::Creates => {
            let created = creates::send_load(&service.child, size.create_duration).await?;
            cores.add(name, created.cores);
            Ok(created.per_s)
        }
        Part::Deliveries => deliveries::rate(service, name, sink, size.tasks, cores).await,
        Part::AcceptAndDeliver => {
            accept_and_deliver::rate(service, name, sink, size.create_duration, cores).await
        }
        Part::Lateness => anyhow::bail!("lateness is measured on SQLite only"),
    }
}
