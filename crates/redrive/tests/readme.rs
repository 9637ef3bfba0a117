//! The README's opening is the example, and the example runs as a user would run it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_readme_opens_with_the_example() {
    let example =
        std::fs::read_to_string(root().join("crates/redrive/examples/hello.rs")).expect("the example");
    let (_, code) = example.split_once("\n\n").expect("a comment, then code");
    let readme = std::fs::read_to_string(root().join("README.md")).expect("the README");
    assert!(
        readme.contains(&format!("```rust file=crates/redrive/examples/hello.rs\n{code}```")),
        "README.md does not show examples/hello.rs"
    );
}

#[test]
fn the_example_runs_and_ends_on_a_signal() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = Killed(start(folder.path()));
    let stdout = child.0.stdout.take().expect("a pipe");
    let first = BufReader::new(stdout).lines().next().expect("a line").expect("text");
    assert_eq!(first, "receipt for order 7");
    let signalled =
        Command::new("kill").args(["-INT", &child.0.id().to_string()]).status().expect("kill runs");
    assert!(signalled.success());
    assert!(child.0.wait().expect("it ends").success(), "Ctrl-C is an orderly end");
}

fn start(folder: &Path) -> Child {
    // Cargo builds a package's examples with its tests and puts them beside them.
    let here = std::env::current_exe().expect("this test");
    let program = here.ancestors().nth(2).expect("the profile's folder").join("examples/hello");
    Command::new(&program)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()))
}

/// Leaves nothing running when an assertion fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
