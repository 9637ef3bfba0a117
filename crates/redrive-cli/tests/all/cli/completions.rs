//! Scripts that finish words, loaded by the shells that are here.

use std::process::Command;

use crate::session::text;
use crate::stage::redrive;

fn script(shell: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = redrive(folder.path()).args(["completions", shell]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn bash_loads_its_script_and_finishes_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.bash");
    std::fs::write(&path, script("bash")).unwrap();
    let program = "set -e; bash -n \"$0\"; . \"$0\"; complete -p redrive; \
        COMP_WORDS=(redrive task wa); COMP_CWORD=2; _redrive redrive wa task; printf '%s\\n' \"${COMPREPLY[@]}\"; \
        COMP_WORDS=(redrive task list --status ex); COMP_CWORD=4; _redrive redrive ex --status; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", program]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.contains("_redrive"), "{said}");
    assert!(
        said.lines().any(|line| line == "watch") && said.lines().any(|line| line == "exhausted"),
        "{said}"
    );
}

#[test]
fn other_shells_have_theirs() {
    for (shell, sign) in [
        ("zsh", "#compdef redrive"),
        ("fish", "complete -c redrive"),
        ("elvish", "redrive"),
        ("powershell", "redrive"),
    ] {
        let script = script(shell);
        assert!(script.contains(sign) && script.contains("run-now"), "{shell}: {script}");
    }
}
