//! Every option of every command refuses a value that it cannot have: exit code 2, and a message that names the option.

use std::path::Path;
use std::process::{Command, Stdio};

use regex::Regex;

use crate::session::{Session, ended, text};
use crate::stage::redrive;

/// Options that take any text, or name a file to write: no value of theirs is invalid.
const ANY_VALUE: [(&str, &str); 7] = [
    ("text", "is looked for as it stands"),
    ("body", "is sent as it stands"),
    ("subject", "is compared as it stands"),
    ("target", "is compared as it stands"),
    ("svg", "is a file to write"),
    ("csv", "is a file to write"),
    ("output", "is a file to write"),
];

/// What a command needs beside the option, for options that are not refused on sight.
const COMPANIONS: [(&str, &str, &[&str]); 4] = [
    ("move", "from", &["--to", "sqlite:to.db"]),
    ("move", "to", &["--from", "sqlite:from.db"]),
    ("key create", "", &["--name", "x"]),
    ("queue limit", "", &["--key-rate", "5/s"]),
];

/// A command as its help shows it.
struct Part {
    path: Vec<String>,
    help: String,
}

impl Part {
    /// This command and all below it.
    fn walk(folder: &Path, path: Vec<String>) -> Vec<Self> {
        let output = redrive(folder).args(&path).arg("--help").output().unwrap();
        assert!(output.status.success(), "{path:?}: {output:?}");
        let part = Self { path, help: text(&output.stdout) };
        let commands = part.help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
        let name = Regex::new(r"(?m)^  ([a-z][a-z-]*)\b").unwrap();
        let names =
            commands.iter().flat_map(|list| name.captures_iter(list)).map(|found| found[1].to_owned());
        let below: Vec<Self> = names
            .filter(|name| name != "help")
            .flat_map(|name| Self::walk(folder, [part.path.clone(), vec![name]].concat()))
            .collect();
        if below.is_empty() { vec![part] } else { below }
    }

    /// The options that take a value.
    fn options(&self) -> Vec<String> {
        let option = Regex::new(r"(?m)^ +(?:-\w, )?--([a-z][a-z-]*) <").unwrap();
        option.captures_iter(&self.help).map(|found| found[1].to_owned()).collect()
    }

    /// Values for the arguments that must be there.
    fn arguments(&self) -> Vec<String> {
        let usage = self.help.lines().find(|line| line.starts_with("Usage:")).unwrap();
        let argument = Regex::new(r"(?:^| )<([A-Z_]+)>").unwrap();
        let options = Regex::new(r"--[a-z-]+ <[A-Z:/_ ]+>").unwrap().replace_all(usage, "");
        let value = |name: &str| match name {
            "URL" => "http://127.0.0.1:9/",
            "WHAT" => "run-now",
            "SHELL" => "bash",
            "FILE" => "policy.json",
            _ => "default",
        };
        argument.captures_iter(&options).map(|found| value(&found[1]).to_owned()).collect()
    }

    /// Runs the command with an option and a value in a folder of its own; the exit code, and what it says.
    fn run(&self, url: &str, option: &str, value: &str) -> (Option<i32>, String) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("policy.json"), r#"{"maxAttempts": 5}"#).unwrap();
        let mut command = redrive(folder.path());
        command.env("REDRIVE_URL", url).args(&self.path).args(self.arguments());
        command.arg(format!("--{option}={value}")).args(self.companions(option));
        finish(&mut command)
    }

    fn companions(&self, option: &str) -> Vec<&str> {
        let path = self.path.join(" ");
        let fits = |command: &str, of: &str| command == path && (of == option || of.is_empty());
        COMPANIONS
            .iter()
            .filter(|(command, of, _)| fits(command, of))
            .flat_map(|(.., more)| *more)
            .copied()
            .collect()
    }
}

fn finish(command: &mut Command) -> (Option<i32>, String) {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = ended(child);
    (output.status.code(), text(&output.stderr))
}

/// Letters and digits alone: `--max-attempts` and `maxAttempts` are the same name.
fn plain(words: &str) -> String {
    words.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_option_of_every_command_refuses_an_impossible_value_with_2() {
    let session = Session::start().await;
    // Too long for a name and with a letter that none has; for a file or an address it is neither.
    let impossible = format!("\u{1}{}", "no-value".repeat(1_000));
    let mut wrong = Vec::new();
    let mut checked = 0;
    for part in Part::walk(session.folder.path(), Vec::new()) {
        for option in part.options() {
            if ANY_VALUE.iter().any(|(any, _)| *any == option) {
                continue;
            }
            checked += 1;
            let (code, said) = part.run(&session.url(), &option, &impossible);
            let first: String = said.replace("no-value", "").lines().take(2).collect::<Vec<_>>().join(" ");
            if code != Some(2) || !plain(&first).contains(&plain(&option)) {
                wrong.push(format!("{} --{option}: {code:?} {first}", part.path.join(" ")));
            }
        }
    }
    assert!(checked > 100, "only {checked} options were found");
    assert!(
        wrong.is_empty(),
        "{} of {checked} are not refused as they should:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// A command with an invalid value, what its error names, and what else the error has.
type Wrong = (&'static [&'static str], &'static str, &'static str);

const WRONG: &[Wrong] = &[
    (&["task", "create", "http://x", "--delay", "5"], "--delay", "add a unit, for example 5s, 2m, 1h"),
    (&["task", "create", "http://x", "--timeout", "soon"], "--timeout", "5s, 2m, 1h"),
    (&["task", "create", "http://x", "--priority", "10"], "--priority", "from 0 to 9, for example 5"),
    (&["task", "create", "http://x", "--at", "yesterday"], "--at", "2026-05-01T08:00:00Z"),
    (&["task", "create", "http://x", "--policy-file", "/dev/null"], "policy", "\"maxAttempts\": 5"),
    (&["task", "create", "http://x", "--policy-file", "none"], "none", "No such file"),
    (&["task", "create", "http://x", "--body", "@none"], "--body", "No such file"),
    (&["task", "create", "http://x", "-X", "NO METHOD"], "method", ""),
    (&["task", "list", "--limit", "0"], "--limit", "for example 50"),
    (&["task", "list", "--status", "lost"], "--status", "pending"),
    (&["task", "list", "--cursor", "x"], "cursor", ""),
    (&["queue", "limit", "default", "--concurrency", "0"], "--concurrency", "for example 50"),
    (&["queue", "limit", "default", "--rate", "5"], "--rate", "100/1m"),
    (&["queue", "limit", "default", "--rate", "0/1m"], "rate", ""),
    (&["dead", "redrive", "--canary", "0"], "--canary", "for example 3"),
    (&["dead", "redrive", "--rate", "0"], "rate", ""),
    (&["policy", "preview", "nosuch"], "preset", "upload"),
    (&["policy", "preview", "--max-attempts", "0"], "--max-attempts", "for example 5"),
    (&["policy", "preview", "--multiplier", "0"], "multiplier", "positive"),
    (
        &["policy", "preview", "--jitter", "proportional", "--jitter-fraction", "2"],
        "jitterFraction",
        "0 to 1",
    ),
    (&["simulate", "outage", "--policy", "nosuch"], "--policy", "decorrelated"),
    (&["simulate", "outage", "--file", "none.json"], "none.json", "No such file"),
    (&["serve", "--lease-ms", "1"], "--lease-ms", "for example 30000"),
    (&["serve", "--concurrency", "0"], "--concurrency", "for example 256"),
    (&["serve", "--listen", "7373"], "--listen", "127.0.0.1:7373"),
    (&["serve", "--allow-target", "ten"], "--allow-target", "10.0.0.0/8"),
    (&["serve", "--roles", "boss"], "--roles", "worker"),
    (&["serve", "--store", "mongodb://x"], "--store", "sqlite:redrive.db"),
    (&["serve", "--store", "postgres://x/y?connections=0"], "store", "connections"),
    (&["serve", "--bodies", "ftp:x"], "--bodies", "file:FOLDER"),
    (&["serve", "--secret-key", "short"], "--secret-key", "openssl rand -base64 32"),
    (&["serve", "--config", "none.toml"], "--config", "none.toml"),
    (&["migrate", "--store", "redrive.db"], "--store", "sqlite:redrive.db"),
    (&["doctor", "--store", "redrive.db"], "--store", "sqlite:redrive.db"),
    (&["key", "list", "--store", "redrive.db"], "--store", "sqlite:redrive.db"),
    (&["move", "--from", "a", "--to", "sqlite:b.db"], "--from", "sqlite:redrive.db"),
    (&["move", "--from", "sqlite:a.db", "--to", "b"], "--to", "sqlite:redrive.db"),
    (&["move", "--lift", "a"], "--lift", "sqlite:redrive.db"),
    (&["top", "--every", "1"], "--every", "add a unit"),
    (&["bench", "--jobs", "1"], "--jobs", "from 1000"),
    (&["--url", "here", "task", "list"], "--url", "http://127.0.0.1:7373"),
    (&["task", "list", "--url", "http://me:secret@host"], "REDRIVE_API_KEY", ""),
];

#[tokio::test(flavor = "multi_thread")]
async fn values_that_look_right_but_are_not_end_with_2_and_have_an_example() {
    let session = Session::start().await;
    for (arguments, option, example) in WRONG.iter().copied() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = redrive(folder.path());
        let (code, said) = finish(command.env("REDRIVE_URL", session.url()).args(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
        assert!(
            said.starts_with("error: ") && said.contains(option) && said.contains(example),
            "{arguments:?}: {said}"
        );
    }
    // A variable has the same value parser as its option.
    let folder = tempfile::tempdir().unwrap();
    let mut command = redrive(folder.path());
    let (code, said) = finish(command.arg("serve").env("REDRIVE_LEASE_MS", "soon"));
    assert!(code == Some(2) && said.contains("for example 30000"), "{said}");
    std::fs::write(folder.path().join("bad.toml"), "lease-ms = 1\n").unwrap();
    let mut command = redrive(folder.path());
    let (code, said) = finish(command.args(["serve", "--config", "bad.toml"]));
    assert!(code == Some(2) && said.contains("lease"), "{said}");
}
