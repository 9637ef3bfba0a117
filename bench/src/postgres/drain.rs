//! Measures how fast a worker drains jobs with payloads of several sizes, and compares it with raw statements and with peers.

use std::cell::RefCell;

use super::{MAIN_PEER, Payload, Run, probe};
use crate::comparison::figure;
use crate::drain::drain;
use crate::figures::{Bar, Figure, Samples};
use crate::setup;

pub(super) fn figures(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for payload in run.size.payloads() {
        figures.extend(figures_of_payload(run, payload)?);
    }
    Ok(figures)
}

fn figures_of_payload(run: &Run<'_>, payload: Payload) -> anyhow::Result<Vec<Figure>> {
    let name = format!("drain no-op jobs of {payload}, history kept");
    let raw = RefCell::new(Vec::new());
    let ours = || {
        raw.borrow_mut().push(raw_rate(run, payload)?);
        rate(run, payload)
    };
    let rows = run.with_peers("drain", payload, ours, |peer| peer.drain_per_s)?;
    let raw = ("raw claim and complete".to_owned(), Samples::of(raw.into_inner()));
    let mut figures = vec![figure(&name, "/s", &rows.ours, Some(raw), Some(Bar::AtLeast(0.8)))];
    figures.extend(rows.against(&name, "/s", |peer| (peer == MAIN_PEER).then_some(Bar::AtLeast(1.1))));
    Ok(figures)
}

fn rate(run: &Run<'_>, payload: Payload) -> anyhow::Result<f64> {
    let database = run.server.database();
    setup::block_on(async {
        let (store, policy) = database.open().await?;
        let bytes = payload.content();
        setup::fill_with(&store, payload.jobs, |_| setup::job_with(&policy, &bytes)).await?;
        drain(&store, payload.jobs, 0).await
    })
}

fn raw_rate(run: &Run<'_>, payload: Payload) -> anyhow::Result<f64> {
    let database = run.server.database();
    setup::block_on(probe::drain(&database.address(), payload.jobs, &payload.content()))
}
