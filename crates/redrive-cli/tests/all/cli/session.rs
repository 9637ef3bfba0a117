//! Runs commands against a service and compares everything that they print with a snapshot file.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use regex::{Captures, Regex};
use serde_json::Value;

use crate::fixtures::{Launch, Reply, Service, TIMEOUT, Target, redrive};

/// The least width of a cell with an age or a duration, including the gap after it.
const TIME_CELL_WIDTH: usize = 12;

/// A service, a target whose answer depends on the path, and the transcript of the commands so far.
pub(crate) struct Session {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) service: Service,
    pub(crate) target: Target,
    transcript: String,
    mask_durations: bool,
}

impl Session {
    pub(crate) async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap()).await
    }

    /// Starts the service in a folder that may already have a store.
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
        Self { folder, service, target, transcript: String::new(), mask_durations: true }
    }

    /// The address of the service.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.service.address)
    }

    /// Keeps durations in the transcript, for commands that do not print measured ones.
    pub(crate) fn with_exact_durations(self) -> Self {
        Self { mask_durations: false, ..self }
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A command that calls the service of this session.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = redrive(self.folder.path());
        command.env("REDRIVE_URL", self.url()).env_remove("NO_COLOR").args(arguments);
        command
    }

    /// Runs a command and adds its output to the transcript. Returns its standard output.
    pub(crate) fn run(&mut self, arguments: &[&str]) -> String {
        let mut command = self.command(arguments);
        self.record(arguments, &mut command, "")
    }

    /// Like [`Self::run`], with text on standard input.
    pub(crate) fn run_with_input(&mut self, arguments: &[&str], input: &str) -> String {
        let mut command = self.command(arguments);
        self.record(arguments, &mut command, input)
    }

    /// Like [`Self::run`], after `change` was applied to the command.
    pub(crate) fn run_with(&mut self, arguments: &[&str], change: impl FnOnce(&mut Command)) -> String {
        let mut command = self.command(arguments);
        change(&mut command);
        self.record(arguments, &mut command, "")
    }

    fn record(&mut self, arguments: &[&str], command: &mut Command, input: &str) -> String {
        let output = output_of(command, input);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let code = output.status.code().unwrap_or_else(|| panic!("{arguments:?} was killed"));
        self.transcript += &format!("$ redrive {}\n{out}", quoted(arguments));
        for line in err.lines() {
            self.transcript += format!("! {line}").trim_end();
            self.transcript.push('\n');
        }
        if code != 0 {
            self.transcript += &format!("= {code}\n");
        }
        self.transcript.push('\n');
        out
    }

    /// Runs a command, which must end with `code`, without adding it to the transcript. Returns its standard output.
    pub(crate) fn run_unrecorded(&self, arguments: &[&str], code: i32) -> String {
        let output = output_of(&mut self.command(arguments), "");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        text(&output.stdout).trim().to_owned()
    }

    /// Like [`Self::run_unrecorded`], but returns the standard error.
    pub(crate) fn stderr_of(&self, arguments: &[&str], code: i32) -> String {
        let output = output_of(&mut self.command(arguments), "");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        text(&output.stderr)
    }

    /// Starts a new transcript.
    pub(crate) fn clear(&mut self) {
        self.transcript.clear();
    }

    /// Compares the transcript with the snapshot of this name.
    pub(crate) fn compare_with(&self, name: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/all/cli/{name}.txt"));
        let actual = self.normalized();
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &actual).unwrap();
            return;
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        if actual != expected {
            let line = actual.lines().zip(expected.lines()).take_while(|(a, b)| a == b).count();
            let around =
                |text: &str| text.lines().skip(line.saturating_sub(2)).take(6).collect::<Vec<_>>().join("\n");
            panic!(
                "{} differs from line {} on:\n--- expected\n{}\n--- printed\n{}\n\
                 if the printed text is right, run the test with UPDATE_SNAPSHOTS=1",
                path.display(),
                line + 1,
                around(&expected),
                around(&actual)
            );
        }
    }

    fn normalized(&self) -> String {
        let mut text = self.transcript.replace(&self.service.address.to_string(), "127.0.0.1:SSSSS");
        text = text.replace(&self.target.address.to_string(), "127.0.0.1:TTTTT");
        text = text.replace(&*self.folder.path().to_string_lossy(), "FOLDER");
        text = text.lines().map(|line| mask_json(line) + "\n").collect();
        text = number_ids(&text, r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "id");
        text = number_ids(&text, r"\b[0-9a-f]{16}\b", "key");
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
        text = mask_times(&text, r"\b(now {2,}|(in \d+ (s|min|h|d)|\d+ (s|min|h|d) ago)(\b|$) *)", "<age>");
        if self.mask_durations {
            text = mask_times(&text, r"\b\d+(\.\d+)? (ms|s)\b *", "<span>");
        }
        text
    }
}

fn output_of(command: &mut Command, input: &str) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command may end without reading its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    wait_for_output(child)
}

/// Waits for a command and returns its output. Kills the command and panics if it does not end.
pub(crate) fn wait_for_output(child: Child) -> Output {
    let id = child.id();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    receiver.recv_timeout(TIMEOUT * 2).map(Result::unwrap).unwrap_or_else(|_| {
        let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
        panic!("the command does not end");
    })
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The arguments as they would be typed in a shell.
fn quoted(arguments: &[&str]) -> String {
    let plain = |word: &str| !word.is_empty() && !word.contains([' ', '"', '\'', '*', '$', '{']);
    let quote = |word: &&str| if plain(word) { (*word).to_owned() } else { format!("'{word}'") };
    arguments.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// Replaces the values that differ from run to run, if the line is a JSON document.
fn mask_json(line: &str) -> String {
    match serde_json::from_str::<Value>(line) {
        Ok(mut value) if value.is_object() => {
            mask_values(&mut value);
            value.to_string()
        }
        _ => line.to_owned(),
    }
}

fn mask_values(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(mask_values),
        Value::Object(fields) => {
            // The service reports a success rate only after a few attempts.
            fields.remove("successRate");
            for (name, value) in fields {
                match name.as_str() {
                    name if name.ends_with("At") && value.is_number() => *value = "TIME".into(),
                    "upcoming" => *value = "TIMES".into(),
                    "handledUntil" => *value = "TIME".into(),
                    "attemptsPerSecond" | "startLag" => *value = "VARIES".into(),
                    "now" if value.is_number() => *value = "TIME".into(),
                    "durationMs" | "oldestDueMs" | "latencyMs" if value.is_number() => *value = "SPAN".into(),
                    "worker" | "key" | "node" if value.is_string() => *value = name.to_uppercase().into(),
                    _ => mask_values(value),
                }
            }
        }
        _ => {}
    }
}

/// Replaces each distinct match by a number, in the same width.
fn number_ids(text: &str, pattern: &str, word: &str) -> String {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let replaced = Regex::new(pattern).unwrap().replace_all(text, |found: &Captures| {
        let next = seen.len() + 1;
        let number = *seen.entry(found[0].to_owned()).or_insert(next);
        format!("{:-<width$}", format!("{word}-{number}"), width = found[0].len())
    });
    replaced.into_owned()
}

/// Replaces times by a word. In a cell of a table the word keeps the width of the cell.
fn mask_times(text: &str, pattern: &str, word: &str) -> String {
    let replaced = Regex::new(pattern).unwrap().replace_all(text, |found: &Captures| {
        let whole = &found[0];
        let blanks = whole.len() - whole.trim_end().len();
        match blanks {
            0 | 1 => format!("{word}{}", " ".repeat(blanks)),
            _ => format!("{word:<width$}", width = whole.len().max(TIME_CELL_WIDTH)),
        }
    });
    replaced.into_owned()
}
