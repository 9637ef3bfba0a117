//! Every option of every command rejects an invalid value: with exit code 2, and a message that names the option.

use std::path::Path;
use std::process::{Command, Stdio};

use regex::Regex;

use crate::cli::session::{Session, text, wait_for_output};
use crate::fixtures::redrive;

/// Options without invalid values: they take any text, or the path of a file to write.
const ANY_VALUE: [&str; 6] = ["text", "body", "target", "svg", "csv", "output"];

/// Further arguments that a command needs so that it examines the option: the command, the option (empty for all), the
/// arguments.
const COMPANIONS: [(&str, &str, &[&str]); 4] = [
    ("move", "from", &["--to", "sqlite:to.db"]),
    ("move", "to", &["--from", "sqlite:from.db"]),
    ("key create", "", &["--name", "x"]),
    ("queue limit", "", &["--key-rate", "5/s"]),
];

/// A command without subcommands, and its help text.
pub(crate) struct LeafCommand {
    pub(crate) path: Vec<String>,
    pub(crate) help: String,
}

impl LeafCommand {
    /// All commands at or below `path` that have no subcommands.
    pub(crate) fn find_all(folder: &Path, path: Vec<String>) -> Vec<Self> {
        let output = redrive(folder).args(&path).arg("--help").output().unwrap();
        assert!(output.status.success(), "{path:?}: {output:?}");
        let command = Self { path, help: text(&output.stdout) };
        let commands = command.help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
        let name = Regex::new(r"(?m)^  ([a-z][a-z-]*)\b").unwrap();
        let names =
            commands.iter().flat_map(|list| name.captures_iter(list)).map(|found| found[1].to_owned());
        let subcommands: Vec<Self> = names
            .filter(|name| name != "help")
            .flat_map(|name| Self::find_all(folder, [command.path.clone(), vec![name]].concat()))
            .collect();
        if subcommands.is_empty() { vec![command] } else { subcommands }
    }

    /// The options that take a value.
    fn options(&self) -> Vec<String> {
        let option = Regex::new(r"(?m)^ +(?:-\w, )?--([a-z][a-z-]*) <").unwrap();
        option.captures_iter(&self.help).map(|found| found[1].to_owned()).collect()
    }

    /// Values for the required arguments.
    fn arguments(&self) -> Vec<String> {
        let usage = self.help.lines().find(|line| line.starts_with("Usage:")).unwrap();
        let argument = Regex::new(r"(?:^| )<([A-Z_]+)>").unwrap();
        let options = Regex::new(r"--[a-z-]+ <[A-Z:/_ ]+>").unwrap().replace_all(usage, "");
        let value = |name: &str| match name {
            "URL" => "http://127.0.0.1:9/",
            "ACTION" => "run-now",
            "SHELL" => "bash",
            "FILE" => "policy.json",
            _ => "default",
        };
        argument.captures_iter(&options).map(|found| value(&found[1]).to_owned()).collect()
    }

    /// Runs the command with an option in a new folder. Returns the exit code and the standard error.
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
        let applies = |command: &str, of: &str| command == path && (of == option || of.is_empty());
        COMPANIONS
            .iter()
            .filter(|(command, of, _)| applies(command, of))
            .flat_map(|(.., more)| *more)
            .copied()
            .collect()
    }
}

fn finish(command: &mut Command) -> (Option<i32>, String) {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = wait_for_output(child);
    (output.status.code(), text(&output.stderr))
}

/// Keeps only letters and digits, so that `--max-attempts` and `maxAttempts` are equal.
fn normalize(name: &str) -> String {
    name.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_option_of_every_command_rejects_an_invalid_value_with_2() {
    let session = Session::start().await;
    // It is too long for a name and contains a control character, and it is neither a file nor an address.
    let invalid = format!("\u{1}{}", "no-value".repeat(1_000));
    let mut wrong = Vec::new();
    let mut checked = 0;
    for command in LeafCommand::find_all(session.folder.path(), Vec::new()) {
        for option in command.options() {
            if ANY_VALUE.contains(&option.as_str()) {
                continue;
            }
            checked += 1;
            let (code, stderr) = command.run(&session.url(), &option, &invalid);
            let first: String = stderr.replace("no-value", "").lines().take(2).collect::<Vec<_>>().join(" ");
            if code != Some(2) || !normalize(&first).contains(&normalize(&option)) {
                wrong.push(format!("{} --{option}: {code:?} {first}", command.path.join(" ")));
            }
        }
    }
    assert!(checked > 100, "only {checked} options were found");
    assert!(
        wrong.is_empty(),
        "{} of {checked} options accept an invalid value or have an unclear error:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// The arguments with an invalid value, the option that the error names, and another text that the error contains.
type InvalidCase = (&'static [&'static str], &'static str, &'static str);

const INVALID_VALUES: &[InvalidCase] = &[
    (&["task", "create", "http://x", "--delay", "5"], "--delay", "add a unit, for example 5s, 2m, 1h"),
    (&["task", "create", "http://x", "--timeout", "soon"], "--timeout", "5s, 2m, 1h"),
    (&["task", "create", "http://x", "--priority", "10"], "--priority", "from 0 to 9, for example 5"),
    (&["task", "create", "http://x", "--at", "yesterday"], "--at", "2026-05-01T08:00:00Z"),
    (&["task", "create", "http://x", "--policy-file", "/dev/null"], "policy", "\"maxAttempts\": 5"),
    (&["task", "create", "http://x", "--policy-file", "none"], "none", "No such file"),
    (&["task", "create", "http://x", "--body", "@none"], "--body", "No such file"),
    (&["task", "create", "http://x", "-X", "NO METHOD"], "method", ""),
    (&["task", "list", "--limit", "0"], "--limit", "for example 50"),
    (&["task", "list", "--state", "lost"], "--state", "pending"),
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
    (&["serve", "--lease", "1ms"], "--lease", "for example 30s"),
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
    (&["demo", "--rate", "0"], "--rate", "from 1 to 1000"),
    (&["--url", "here", "task", "list"], "--url", "http://127.0.0.1:7373"),
    (&["task", "list", "--url", "http://me:secret@host"], "REDRIVE_API_KEY", ""),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_an_invalid_value_names_the_option_and_has_an_example() {
    let session = Session::start().await;
    for (arguments, option, example) in INVALID_VALUES.iter().copied() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = redrive(folder.path());
        let (code, stderr) = finish(command.env("REDRIVE_URL", session.url()).args(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(
            stderr.starts_with("error: ") && stderr.contains(option) && stderr.contains(example),
            "{arguments:?}: {stderr}"
        );
    }
    // Environment variables and the configuration file are checked like options.
    let folder = tempfile::tempdir().unwrap();
    let mut command = redrive(folder.path());
    let (code, stderr) = finish(command.arg("serve").env("REDRIVE_LEASE", "soon"));
    assert!(code == Some(2) && stderr.contains("for example 5s"), "{stderr}");
    std::fs::write(folder.path().join("bad.toml"), "lease = '1ms'\n").unwrap();
    let mut command = redrive(folder.path());
    let (code, stderr) = finish(command.args(["serve", "--config", "bad.toml"]));
    assert!(code == Some(2) && stderr.contains("lease"), "{stderr}");
}
