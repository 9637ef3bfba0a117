//! The guide as a book.

use std::process::Command;

use crate::run::{cargo, root, run, works};
use crate::setup::tools;

/// The version whose output was looked at.
const MDBOOK: &str = "0.5.4";

/// Builds the book into `target/book`, with an mdBook that is on the path or that is installed beside the build.
pub(crate) fn book() -> anyhow::Result<()> {
    let home = tools()?.join("mdbook");
    let own = home.join("bin/mdbook");
    let program = if works("mdbook", &["--version"]) { "mdbook".into() } else { own };
    if !works(&program.to_string_lossy(), &["--version"]) {
        let mut install = cargo();
        install.args(["install", "mdbook", "--locked", "--version", MDBOOK]);
        // Without what serves a book while it is written.
        install.args(["--no-default-features", "--features", "search", "--root"]).arg(&home);
        run(&mut install)?;
    }
    run(Command::new(&program).arg("build").arg(root()))?;
    println!("the book is in {}", root().join("target/book/index.html").display());
    Ok(())
}
