//! Completion scripts. The script for bash is loaded and used.

use std::process::Command;

use crate::cli::session::text;
use crate::fixtures::redrive;

fn script(shell: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = redrive(folder.path()).args(["completions", shell]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn bash_loads_its_script_and_completes_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.bash");
    std::fs::write(&path, script("bash")).unwrap();
    let program = "set -e; bash -n \"$0\"; . \"$0\"; complete -p redrive; \
        COMP_WORDS=(redrive task wa); COMP_CWORD=2; _redrive redrive wa task; printf '%s\\n' \"${COMPREPLY[@]}\"; \
        COMP_WORDS=(redrive task list --state de); COMP_CWORD=4; _redrive redrive de --state; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", program]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = text(&output.stdout);
    assert!(printed.contains("_redrive"), "{printed}");
    for word in ["watch", "dead"] {
        assert!(printed.lines().any(|line| line == word), "{word} is missing: {printed}");
    }
}

#[test]
fn other_shells_have_a_script() {
    for (shell, expected) in [
        ("zsh", "#compdef redrive"),
        ("fish", "complete -c redrive"),
        ("elvish", "redrive"),
        ("powershell", "redrive"),
    ] {
        let script = script(shell);
        assert!(script.contains(expected) && script.contains("run-now"), "{shell}: {script}");
    }
}
