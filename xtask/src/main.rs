//! `cargo xtask`: the project's own commands.

mod bench;
mod book;
mod programs;
mod run;
mod setup;
mod soak;
mod test;
mod tidy;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Command {
    /// Install what the project needs and the machine lacks
    Setup,
    /// Everything that must pass: formatting, lints, tidy checks, all tests
    Test,
    /// Measure against raw probes and peers, in release
    Bench(bench::Arguments),
    /// Simulate and crash for as long as it is given
    Soak(soak::Arguments),
    /// Check dependencies, licences and layout
    Tidy,
    /// Build the guide as a book, into target/book
    Book,
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Setup => setup::setup(),
        Command::Test => test::test(),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::Soak(arguments) => soak::soak(&arguments),
        Command::Tidy => tidy::tidy(),
        Command::Book => book::book(),
    }
}
