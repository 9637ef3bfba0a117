//! `cargo xtask`: commands for the development of this project.

mod bench;
mod book;
mod program_run;
mod programs;
mod prose;
mod run;
mod setup;
mod soak;
mod test;
mod tidy;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Command {
    /// Install the programs that the tests need and the machine lacks
    Setup(setup::Arguments),
    /// Run everything that must pass: formatting, lints, tidy checks, all tests
    Test(setup::Arguments),
    /// Measure redrive, raw probes and peers, in release mode
    Bench(bench::Arguments),
    /// Run simulations and crash tests with new seeds for a given time
    Soak(soak::Arguments),
    /// Check dependencies, licences, layout and wording
    Tidy,
    /// Build the guide as a book, into target/book
    Book,
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Setup(arguments) => setup::setup(arguments),
        Command::Test(arguments) => test::test(arguments),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::Soak(arguments) => soak::soak(&arguments),
        Command::Tidy => tidy::tidy(),
        Command::Book => book::book(),
    }
}
