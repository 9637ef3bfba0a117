//! Runs the tests one after the other, with the options of the usual test programs.

use libtest_mimic::{Arguments, Trial};

/// A test with its name. It fails by panicking.
pub(crate) type Test = (&'static str, fn());

/// Runs the tests that the arguments of this program select.
pub(crate) fn run(tests: &[Test]) {
    // Each test loads the machine and measures times, so they must not run at once.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trials = tests.iter().map(|(name, test)| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

/// A runtime with two threads, as a small node has.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime")
}

/// The seed of the random choices of a test. `REDRIVE_SEED` repeats it.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("REDRIVE_SEED");
    let seed = seed.map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a seed"));
    println!("  seed {seed}");
    seed
}
