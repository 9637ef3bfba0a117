//! Builds the guide as a book.

use std::process::Command;

use crate::run::{cargo, root, run, works};
use crate::setup::tools;

/// The version of mdBook that is installed. Its output was checked.
const MDBOOK: &str = "0.5.4";

/// Builds the book into `target/book`. Uses the mdBook in `PATH`, or installs one in the target folder.
pub(crate) fn book() -> anyhow::Result<()> {
    let home = tools()?.join("mdbook");
    let installed = home.join("bin/mdbook");
    let program = if works("mdbook", &["--version"]) { "mdbook".into() } else { installed };
    if !works(&program.to_string_lossy(), &["--version"]) {
        let mut install = cargo();
        install.args(["install", "mdbook", "--locked", "--version", MDBOOK]);
        // Leaves out the web server of mdBook, which is not needed to build a book.
        install.args(["--no-default-features", "--features", "search", "--root"]).arg(&home);
        run(&mut install)?;
    }
    run(Command::new(&program).arg("build").arg(root()))?;
    println!("the book is in {}", root().join("target/book/index.html").display());
    Ok(())
}
