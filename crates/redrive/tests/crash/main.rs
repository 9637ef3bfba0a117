//! Kills real processes at random moments and checks what they leave behind, by name: NOTHING-LOST, ATTEMPTS-BOUNDED,
//! ONE-OUTCOME, STALE-SHUT-OUT, NO-WEDGE.
//!
//! The program is its own victim: without arguments it is the test, with `child` it is a process to be killed.
//! `REDRIVE_SOAK_SECONDS` makes the killing go on for longer, `REDRIVE_SEED` repeats its moments.

mod child;
mod full;
mod rounds;
mod stale;

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("child") {
        child::main(&arguments.collect::<Vec<_>>());
        return;
    }
    // Cargo and its like ask test programs what they contain.
    if std::env::args().any(|argument| argument == "--list") {
        TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    let mut passed = 0;
    for (name, test) in TESTS.into_iter().filter(|(name, _)| chosen(name)) {
        println!("test {name} …");
        test();
        passed += 1;
    }
    println!("{passed} passed, 0 failed");
}

/// A test that fails panics, and the program with it.
const TESTS: [(&str, fn()); 3] = [
    ("processes_killed_at_random_moments_lose_nothing", rounds::killed_at_random_moments),
    ("a_paused_worker_that_wakes_after_reclaim_changes_nothing", stale::paused_worker),
    ("a_full_disk_is_an_error_and_loses_nothing", full::full_disk),
];
