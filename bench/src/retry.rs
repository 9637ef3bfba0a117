//! Measures the cost of `retry()` when the first call succeeds, and compares it with `backon`.

use std::hint::black_box;
use std::time::Instant;

use backon::{ExponentialBuilder, Retryable};
use redrive_core::Policy;

use crate::figures::{Bar, Figure, Samples};

/// Nanoseconds per call that succeeds at once.
pub fn figure(calls: u32, repeats: usize) -> anyhow::Result<Figure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        theirs.push(runtime.block_on(backon_ns(calls)));
        ours.push(runtime.block_on(ours_ns(calls)));
    }
    Ok(Figure {
        name: "retry() on success, per call".to_owned(),
        unit: "ns",
        ours: Samples::of(ours),
        other: Some(("backon".to_owned(), Samples::of(theirs))),
        bar: Some(Bar::AtMost(1.0)),
    })
}

async fn ours_ns(calls: u32) -> f64 {
    let policy = Policy::default();
    let started = Instant::now();
    for call in 0..calls {
        let _ = black_box(redrive_worker::retry(&policy, || work(black_box(call))).await);
    }
    per_call(started, calls)
}

async fn backon_ns(calls: u32) -> f64 {
    // Builds once and copies for each call, as in the documentation of backon.
    let builder = ExponentialBuilder::default().with_jitter();
    let started = Instant::now();
    for call in 0..calls {
        let _ = black_box((|| work(black_box(call))).retry(builder).await);
    }
    per_call(started, calls)
}

async fn work(call: u32) -> Result<u32, std::io::Error> {
    Ok(call)
}

fn per_call(started: Instant, calls: u32) -> f64 {
    started.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
}
