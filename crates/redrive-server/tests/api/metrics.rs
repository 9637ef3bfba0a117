//! Concurrent scrapes of the metrics.

use redrive_core::State;
use redrive_core::store::Stats;
use redrive_server::metrics::{GateNumbers, Metrics};

/// Each scrape passes its own gates, so that the test notices a missing gauge and a gauge of another scrape.
#[test]
fn each_of_several_concurrent_scrapes_sees_exactly_its_own_gauges() {
    const SCRAPERS: usize = 8;
    let (metrics, barrier) = (Metrics::new(), std::sync::Barrier::new(SCRAPERS));
    let gates_of = |scraper: usize| -> Vec<GateNumbers> {
        let origins = (0..20).map(|number| format!("http://scraper-{scraper}-gate-{number}:80"));
        origins.map(|origin| GateNumbers { origin, state: 2, limit: 1, in_flight: 0 }).collect()
    };
    let scrape = |scraper: usize| {
        let gates = gates_of(scraper);
        barrier.wait();
        for _ in 0..50 {
            let text = metrics.render(&Stats::default(), &gates);
            for gate in &gates {
                for name in ["retry_gate_state", "retry_gate_limit", "retry_gate_in_flight"] {
                    let line = format!("{name}{{origin=\"{}\"}} ", gate.origin);
                    assert!(text.contains(&line), "{line} is missing");
                }
            }
            assert_eq!(text.matches("retry_gate_state{").count(), gates.len(), "gates of another scrape");
            assert_eq!(text.matches("retry_tasks{").count(), State::ALL.len());
        }
    };
    std::thread::scope(|threads| {
        (0..SCRAPERS).for_each(|scraper| drop(threads.spawn(move || scrape(scraper))));
    });
}
