//! Measures how soon an idle worker starts a job, and compares it with peers.

use std::time::Duration;

use super::{MAIN_PEER, Run};
use crate::comparison::figure;
use crate::figures::{Bar, Figure};
use crate::pickup::delays;
use crate::setup;

pub(super) fn figures(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let name = "idle pick-up, enqueue to handler start, p99";
    let [smallest, ..] = run.size.payloads();
    let rows = run.with_peers("pickup", smallest, || p99_ms(run), |peer| peer.pickup_p99_ms)?;
    let mut figures = vec![figure(name, "ms", &rows.ours, None, Some(Bar::AtMost(4.0)))];
    figures.extend(rows.against(name, "ms", |peer| (peer == MAIN_PEER).then_some(Bar::AtMost(1.0))));
    Ok(figures)
}

fn p99_ms(run: &Run<'_>) -> anyhow::Result<f64> {
    let database = run.server.database();
    setup::block_on(async {
        let (store, policy) = database.open().await?;
        let pause = || Duration::from_millis(fastrand::u64(20..120));
        Ok(delays(&store, &policy, run.size.picks, pause).await?.quantile(0.99))
    })
}
