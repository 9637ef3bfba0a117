//! Runs schemathesis on the OpenAPI document: no request may cause a 5xx or an answer that the document does not have, and the
//! document states every rule by which a request is rejected.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixtures::{ChildProcess, Launch, TIMEOUT};
use crate::service::startup::create_admin_key;

/// Our own checks: no valid request may be rejected.
const OWN_CHECKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/service/schemathesis_checks.py");
/// The checks that are switched off, each with its reason.
const SETTINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/service/schemathesis.toml");

#[tokio::test]
async fn schemathesis_finds_no_server_error_and_no_undocumented_answer() {
    let folder = tempfile::tempdir().unwrap();
    // Without a key, schemathesis would create the first one and lock itself out.
    let key = create_admin_key(folder.path());
    // Generated tasks must not call anything.
    let service = Launch::new(folder.path()).flags(&["--deny-target", "0.0.0.0/0,::/0"]).start();
    let mut command = Command::new(schemathesis());
    command.current_dir(folder.path()).env("SCHEMATHESIS_HOOKS", OWN_CHECKS);
    command.args(["--config-file", SETTINGS, "run"]);
    command.arg(format!("http://{}/openapi.json", service.address));
    command.args(["--header", &format!("Authorization: Bearer {key}")]);
    // Two workers would meet a defect of CPython 3.11: "AST constructor recursion depth mismatch".
    command.args(["--seed", "7", "--max-examples", "100", "--workers", "1", "--request-timeout", "30"]);
    command.args(["--generation-database", "none", "--continue-on-failure", "--no-color"]);
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("schemathesis.txt");
    let output = File::create(&kept).unwrap();
    command.stdout(output.try_clone().unwrap()).stderr(output);
    let status = ChildProcess::start(&mut command).wait_for_end(TIMEOUT * 12).await;
    let text = std::fs::read_to_string(&kept).unwrap();
    println!("{text}\nthis output is kept in {}", kept.display());
    assert!(status.success(), "schemathesis found a failure");
    assert!(!text.contains("Authentication failed"), "the API key was rejected");
}

/// The program that `cargo xtask setup` installs in the target folder.
fn schemathesis() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let program = target.join("tools/schemathesis/bin/schemathesis");
    assert!(program.exists(), "{} is missing: run `cargo xtask setup`", program.display());
    program
}
