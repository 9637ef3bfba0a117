//! Runs the examples of `docs/cli.md`.

use std::process::{Command, Stdio};

use crate::cli::session::{Session, text};

/// The blocks that are marked with `<!-- run -->`, in their order.
fn examples() -> Vec<&'static str> {
    let guide = include_str!("../../../../../docs/cli.md");
    let marked = guide.split("<!-- run -->\n```sh\n").skip(1);
    marked.map(|text| text.split_once("\n```").unwrap().0).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_guide_work() {
    let session = Session::start().await;
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_redrive")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    assert!(examples().len() > 5);
    for example in examples() {
        let program = example.replace("127.0.0.1:7373", &session.service.address.to_string());
        let mut shell = Command::new("sh");
        shell.args(["-euc", &program]).env("PATH", &path).env("REDRIVE_URL", session.url());
        let output = shell.current_dir(session.folder.path()).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{example}\n{}{}", text(&output.stdout), text(&output.stderr));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_has_an_example() {
    let session = Session::start().await;
    let guide = include_str!("../../../../../docs/cli.md");
    for noun in ["task", "job", "dead", "operation", "policy", "queue", "schedule", "key", "node"] {
        let help = session.run_unrecorded(&[noun, "--help"], 0);
        let verbs = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
        let verbs = verbs.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        for verb in verbs.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help") {
            let shown = [format!("redrive {noun} {verb}"), format!("{noun} {verb}"), format!("`{verb}`")];
            assert!(shown.iter().any(|words| guide.contains(words)), "{noun} {verb} is not in docs/cli.md");
        }
    }
}
