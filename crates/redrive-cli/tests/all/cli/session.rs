//! A service with a target, commands that are run against it, and what they print compared with a file.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use regex::{Captures, Regex};
use serde_json::Value;

use crate::stage::{Launch, PATIENCE, Reply, Service, Target, redrive};

/// Columns of a cell that says when or how long, with the gap after it.
const TIME_CELL: usize = 12;

/// A service, a target that answers by its path, and all that was said so far.
pub(crate) struct Session {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) service: Service,
    pub(crate) target: Target,
    said: String,
    spans_vary: bool,
}

impl Session {
    pub(crate) async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap()).await
    }

    /// The same in a folder that may have a store already.
    pub(crate) async fn start_in(folder: tempfile::TempDir) -> Self {
        let service = Launch::new(folder.path()).start();
        let target = Target::start(|call| match call.path.as_str() {
            "/missing" => Reply::status(404),
            "/busy" => Reply::status(503),
            "/flaky" if call.attempt() == 1 => Reply::status(503),
            "/escape" => Reply::Answer(400, "", "\x1b[2J\x1b[31mgone".to_owned()),
            _ => Reply::Answer(200, "", "thanks".to_owned()),
        })
        .await;
        Self { folder, service, target, said: String::new(), spans_vary: true }
    }

    /// Where the service listens.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.service.address)
    }

    /// Spans of this session come from what was asked for, not from what was measured.
    pub(crate) fn with_exact_spans(self) -> Self {
        Self { spans_vary: false, ..self }
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// The command with this session's service.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = redrive(self.folder.path());
        command.env("REDRIVE_URL", self.url()).env_remove("NO_COLOR").args(arguments);
        command
    }

    /// Runs a command and notes what it said.
    pub(crate) fn run(&mut self, arguments: &[&str]) -> String {
        let mut command = self.command(arguments);
        self.note(arguments, &mut command, "")
    }

    /// The same, with something on standard input.
    pub(crate) fn feed(&mut self, arguments: &[&str], input: &str) -> String {
        let mut command = self.command(arguments);
        self.note(arguments, &mut command, input)
    }

    /// The same, with the command changed by whoever asks.
    pub(crate) fn run_as(&mut self, arguments: &[&str], change: impl FnOnce(&mut Command)) -> String {
        let mut command = self.command(arguments);
        change(&mut command);
        self.note(arguments, &mut command, "")
    }

    fn note(&mut self, arguments: &[&str], command: &mut Command, input: &str) -> String {
        let output = outcome(command, input);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let code = output.status.code().unwrap_or_else(|| panic!("{arguments:?} was killed"));
        self.said += &format!("$ redrive {}\n{out}", shown(arguments));
        for line in err.lines() {
            self.said += format!("! {line}").trim_end();
            self.said.push('\n');
        }
        if code != 0 {
            self.said += &format!("= {code}\n");
        }
        self.said.push('\n');
        out
    }

    /// Runs a command that matters only for what it leaves behind; it must end with `code`.
    pub(crate) fn quietly(&self, arguments: &[&str], code: i32) -> String {
        let output = outcome(&mut self.command(arguments), "");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        text(&output.stdout).trim().to_owned()
    }

    /// What a command that must end with `code` says on standard error.
    pub(crate) fn quietly_failing(&self, arguments: &[&str], code: i32) -> String {
        let output = outcome(&mut self.command(arguments), "");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        text(&output.stderr)
    }

    /// Begins anew with what is said.
    pub(crate) fn forget(&mut self) {
        self.said.clear();
    }

    /// Compares all that was said with the file.
    pub(crate) fn check(&self, name: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/cli/{name}.txt"));
        let said = self.normal();
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &said).unwrap();
            return;
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        if said != expected {
            let line = said.lines().zip(expected.lines()).take_while(|(a, b)| a == b).count();
            let at =
                |text: &str| text.lines().skip(line.saturating_sub(2)).take(6).collect::<Vec<_>>().join("\n");
            panic!(
                "{} differs from line {} on:\n--- expected\n{}\n--- printed\n{}\n\
                 if that is right, UPDATE_SNAPSHOTS=1 writes it anew",
                path.display(),
                line + 1,
                at(&expected),
                at(&said)
            );
        }
    }

    fn normal(&self) -> String {
        let mut text = self.said.replace(&self.service.address.to_string(), "127.0.0.1:SSSSS");
        text = text.replace(&self.target.address.to_string(), "127.0.0.1:TTTTT");
        text = text.replace(&*self.folder.path().to_string_lossy(), "FOLDER");
        text = text.lines().map(|line| document(line) + "\n").collect();
        text = numbered(&text, r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "id");
        text = numbered(&text, r"\b[0-9a-f]{16}\b", "key");
        let replaced = [
            (r"rdk_\S+?_[\w-]{20,}", "rdk_KEY"),
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "YYYY-MM-DDTHH:MM:SS.mmmZ"),
            (r"(?m)^\d\d:\d\d:\d\d\.\d{3} ", "HH:MM:SS.mmm "),
            (r"--cursor \S+", "--cursor CURSOR"),
            (r"\(now\)", "(<age>)"),
            (r"due in [\d.]+s", "due in <span>"),
            (r"(?m)^(worker +).*", "${1}WORKER"),
            (r"(?m)^NODE {2,}", "NODE  "),
            (r"worker-\d+-[0-9a-f]+", "NODE"),
            (r"(?m)^(attempts/s|start lag ) .*", "$1 VARIES"),
        ];
        for (pattern, word) in replaced {
            text = Regex::new(pattern).unwrap().replace_all(&text, word).into_owned();
        }
        text = times(&text, r"\b(now {2,}|(in \d+ (s|min|h|d)|\d+ (s|min|h|d) ago)(\b|$) *)", "<age>");
        if self.spans_vary {
            text = times(&text, r"\b\d+(\.\d+)? (ms|s)\b *", "<span>");
        }
        text
    }
}

fn outcome(command: &mut Command, input: &str) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    ended(child)
}

/// What a command came to; one that does not end is killed, and has failed.
pub(crate) fn ended(child: Child) -> Output {
    let id = child.id();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    told.recv_timeout(PATIENCE * 2).map(Result::unwrap).unwrap_or_else(|_| {
        let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
        panic!("a command does not end");
    })
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn shown(arguments: &[&str]) -> String {
    let plain = |word: &str| !word.is_empty() && !word.contains([' ', '"', '\'', '*', '$', '{']);
    let quoted = |word: &&str| if plain(word) { (*word).to_owned() } else { format!("'{word}'") };
    arguments.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// A line that is a document, with what differs from run to run replaced.
fn document(line: &str) -> String {
    match serde_json::from_str::<Value>(line) {
        Ok(mut value) if value.is_object() => {
            settle(&mut value);
            value.to_string()
        }
        _ => line.to_owned(),
    }
}

fn settle(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(settle),
        Value::Object(fields) => {
            // Known only after a while.
            fields.remove("successRate");
            for (name, value) in fields {
                match name.as_str() {
                    name if name.ends_with("At") && value.is_number() => *value = "TIME".into(),
                    "upcoming" => *value = "TIMES".into(),
                    "settledUntil" => *value = "TIME".into(),
                    "attemptsPerSecond" | "startLag" => *value = "VARIES".into(),
                    "now" if value.is_number() => *value = "TIME".into(),
                    "durationMs" | "oldestDueMs" | "latencyMs" if value.is_number() => *value = "SPAN".into(),
                    "worker" | "key" | "node" if value.is_string() => *value = name.to_uppercase().into(),
                    _ => settle(value),
                }
            }
        }
        _ => {}
    }
}

/// Each different match by its number, as wide as before.
fn numbered(text: &str, pattern: &str, word: &str) -> String {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let replaced = Regex::new(pattern).unwrap().replace_all(text, |found: &Captures| {
        let next = seen.len() + 1;
        let number = *seen.entry(found[0].to_owned()).or_insert(next);
        format!("{:-<width$}", format!("{word}-{number}"), width = found[0].len())
    });
    replaced.into_owned()
}

/// Times in cells keep the width of the cell; others have none.
fn times(text: &str, pattern: &str, word: &str) -> String {
    let replaced = Regex::new(pattern).unwrap().replace_all(text, |found: &Captures| {
        let whole = &found[0];
        let blanks = whole.len() - whole.trim_end().len();
        match blanks {
            0 | 1 => format!("{word}{}", " ".repeat(blanks)),
            _ => format!("{word:<width$}", width = whole.len().max(TIME_CELL)),
        }
    });
    replaced.into_owned()
}
