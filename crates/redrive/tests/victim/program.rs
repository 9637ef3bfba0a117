//! A test program that is its own victim: without arguments it is the tests, with `child` it is a process to be killed.

/// A test with its name. One that fails panics, and the program with it.
pub(crate) type Test = (&'static str, fn());

/// Runs what the arguments ask for: a child, a list of the tests, or those whose names they contain.
pub(crate) fn run(tests: &[Test], child: fn(&[String])) {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("child") {
        return child(&arguments.collect::<Vec<_>>());
    }
    // Cargo and its like ask test programs what they contain.
    if std::env::args().any(|argument| argument == "--list") {
        return tests.iter().for_each(|(name, _)| println!("{name}: test"));
    }
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    let mut passed = 0;
    for (name, test) in tests.iter().filter(|(name, _)| chosen(name)) {
        println!("test {name} …");
        test();
        passed += 1;
    }
    println!("{passed} passed, 0 failed");
}

/// A runtime with two threads, as a small node has.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime")
}

/// The seed of everything that a test leaves to chance; `REDRIVE_SEED` repeats it.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("REDRIVE_SEED");
    let seed = seed.map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a seed"));
    println!("  seed {seed}");
    seed
}
