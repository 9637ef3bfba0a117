//! The OpenAPI document driven by schemathesis: whatever it sends, no 5xx and no answer that the document lacks.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::{Launch, PATIENCE, Running};
use crate::startup::make_key;

/// Which checks are made, and where not, each with its reason.
const SETTINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/service/schemathesis.toml");

#[tokio::test]
async fn schemathesis_finds_no_server_error_and_no_undocumented_answer() {
    let folder = tempfile::tempdir().unwrap();
    // Without one it would shut itself out with the first key that it makes.
    let key = make_key(folder.path());
    // Generated tasks must not go anywhere.
    let service = Launch::new(folder.path()).flags(&["--deny-target", "0.0.0.0/0,::/0"]).start();
    let mut command = Command::new(schemathesis());
    command.current_dir(folder.path()).args(["--config-file", SETTINGS, "run"]);
    command.arg(format!("http://{}/openapi.json", service.address));
    command.args(["--header", &format!("Authorization: Bearer {key}")]);
    command.args(["--seed", "7", "--max-examples", "100", "--workers", "2", "--request-timeout", "30"]);
    command.args(["--generation-database", "none", "--continue-on-failure", "--no-color"]);
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("schemathesis.txt");
    let output = File::create(&kept).unwrap();
    command.stdout(output.try_clone().unwrap()).stderr(output);
    let status = Running::start(&mut command).end(PATIENCE * 4).await;
    let text = std::fs::read_to_string(&kept).unwrap();
    println!("{text}\nthis is kept in {}", kept.display());
    assert!(status.success(), "it found something");
    assert!(!text.contains("Authentication failed"), "it was shut out");
}

/// The program that `cargo xtask setup` puts beside the build.
fn schemathesis() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let program = target.join("tools/schemathesis/bin/schemathesis");
    assert!(program.exists(), "{} is missing: run `cargo xtask setup`", program.display());
    program
}
