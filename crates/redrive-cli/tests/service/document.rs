//! The OpenAPI document driven by schemathesis: whatever it sends, no 5xx and no answer that the document lacks.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::Launch;
use crate::startup::make_key;

/// Which checks are made, and where not, each with its reason.
const SETTINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/service/schemathesis.toml");

#[tokio::test(flavor = "multi_thread")]
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
    command.args(["--seed", "7", "--max-examples", "30", "--workers", "2", "--request-timeout", "30"]);
    command.args(["--generation-database", "none", "--continue-on-failure", "--no-color"]);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    if !output.status.success() {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("schemathesis.txt");
        std::fs::write(&kept, &*text).unwrap();
        panic!("{text}\nthis is kept in {}", kept.display());
    }
    println!("{text}");
    assert!(!text.contains("Authentication failed"), "it was shut out: {text}");
}

/// The program that `cargo xtask setup` puts beside the build.
fn schemathesis() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let program = target.join("tools/schemathesis/bin/schemathesis");
    assert!(program.exists(), "{} is missing: run `cargo xtask setup`", program.display());
    program
}
