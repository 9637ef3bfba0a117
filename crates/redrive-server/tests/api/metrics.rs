//! Metrics while several scrape them at the same time.

use redrive_core::State;
use redrive_core::store::Stats;
use redrive_server::metrics::{GateNumbers, Metrics};

/// Each scrape has gates of its own, so a gauge that is missing or of another scrape shows.
#[test]
fn concurrent_scrapes_see_all_of_their_own_gauges_and_no_others() {
    const SCRAPERS: usize = 8;
    let (metrics, begin) = (Metrics::new(), std::sync::Barrier::new(SCRAPERS));
    let gates_of = |scraper: usize| -> Vec<GateNumbers> {
        let origins = (0..20).map(|number| format!("http://scraper-{scraper}-gate-{number}:80"));
        origins.map(|origin| GateNumbers { origin, state: 2, limit: 1, in_flight: 0 }).collect()
    };
    let scrape = |scraper: usize| {
        let gates = gates_of(scraper);
        begin.wait();
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
