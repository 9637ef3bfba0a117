//! Runs the blocks of each page from top to bottom, in a new folder with its own services and database servers.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redrive_testkit::servers::{Postgres, Redis};

use super::blocks::{Block, parse_blocks};
use super::compare::{matches, matches_approximately};
use super::pages::{Page, read_pages, repository_root};

/// More time than any page needs on a busy machine.
const PAGE_TIMEOUT: Duration = Duration::from_secs(180);

/// The ports that pages use: of the service and of a target. Each run replaces them by free ports.
const PORTS: [&str; 2] = ["7373", "8099"];

/// Replaces the program `redrive` while a page runs. `serve` stops the previous service, starts a new one in the background and
/// returns when it listens, like a second terminal. `demo` ends after a second. Commands that call a service get its address,
/// because they use another port than the default.
const REDRIVE_WRAPPER: &str = r#"#!/usr/bin/env bash
set -u
case "${1:-}" in
serve)
    "$GUIDE_STATE/stop"
    : > "$GUIDE_STATE/serve.out"
    "$GUIDE_REDRIVE" "$@" > "$GUIDE_STATE/serve.out" 2> "$GUIDE_STATE/serve.err" < /dev/null &
    echo $! > "$GUIDE_STATE/serve.pid"
    until grep -q 'listens on' "$GUIDE_STATE/serve.out"; do
        kill -0 "$(cat "$GUIDE_STATE/serve.pid")" 2> /dev/null || { cat "$GUIDE_STATE/serve.err" >&2; exit 1; }
        sleep 0.02
    done
    cat "$GUIDE_STATE/serve.out" ;;
demo) exec "$GUIDE_REDRIVE" "$@" --listen 127.0.0.1:0 --seconds 1 ;;
task | job | dead | operation | policy | queue | schedule | node | top)
    REDRIVE_URL="$GUIDE_URL" exec "$GUIDE_REDRIVE" "$@" ;;
*) exec "$GUIDE_REDRIVE" "$@" ;;
esac
"#;

/// Shuts the service down and waits until it has ended.
const STOP_SCRIPT: &str = r#"#!/usr/bin/env bash
pid=$(cat "$GUIDE_STATE/serve.pid" 2> /dev/null) || exit 0
kill "$pid" 2> /dev/null
while kill -0 "$pid" 2> /dev/null; do sleep 0.02; done
rm -f "$GUIDE_STATE/serve.pid"
"#;

const REDIS_CLI_WRAPPER: &str = "#!/bin/sh\nexec /usr/bin/redis-cli -p \"$GUIDE_REDIS_PORT\" \"$@\"\n";

/// The folder, ports and servers with which a page runs.
struct PageEnvironment {
    folder: tempfile::TempDir,
    /// A free port for each of [`PORTS`].
    ports: Vec<u16>,
    postgres: Option<Postgres>,
    redis: Option<Redis>,
}

impl PageEnvironment {
    fn new(page: &Page) -> Self {
        let free: Vec<TcpListener> =
            PORTS.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = free.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir_all(state.join("bin")).unwrap();
        let scripts =
            [("bin/redrive", REDRIVE_WRAPPER), ("stop", STOP_SCRIPT), ("bin/redis-cli", REDIS_CLI_WRAPPER)];
        for (name, text) in scripts {
            fs::write(state.join(name), text).unwrap();
            fs::set_permissions(state.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self {
            folder,
            ports,
            postgres: page.text.contains("db.example").then(Postgres::start),
            redis: page.text.contains("cache.example").then(Redis::start),
        }
    }

    fn state_folder(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn read_state(&self, name: &str) -> String {
        fs::read_to_string(self.state_folder().join(name)).unwrap_or_default()
    }

    /// Replaces the addresses and ports in the text of a page by those of this environment.
    fn localize(&self, text: &str) -> String {
        let mut text = text.replace("cargo run --release -- ", "redrive ").replace("0.0.0.0:", "127.0.0.1:");
        text = text.replace("https://example.com", "http://127.0.0.1:7373");
        // In two passes, because a free port can contain the digits of another name.
        let marker = |index: usize| format!("\u{1}{index}\u{1}");
        for (index, port) in PORTS.iter().enumerate() {
            text = text.replace(port, &marker(index));
        }
        for (index, port) in self.ports.iter().enumerate() {
            text = text.replace(&marker(index), &port.to_string());
        }
        if let Some(postgres) = &self.postgres {
            for login in ["me:secret@", "me@"] {
                text = text.replace(&format!("postgres://{login}db.example/jobs"), &postgres.address());
            }
        }
        if let Some(redis) = &self.redis {
            for host in ["cache.example:6379", "cache.example"] {
                text = text.replace(&format!("redis://me:secret@{host}"), &redis.address());
            }
        }
        text
    }

    /// Replaces the ports in an output by those that the page shows.
    fn with_documented_ports(&self, output: &str) -> String {
        let ports = PORTS.iter().zip(&self.ports);
        ports.fold(output.to_owned(), |output, (shown, port)| output.replace(&port.to_string(), shown))
    }

    fn shell(&self, script: &Path) -> Command {
        // `cargo xtask setup` installs the drivers of other languages here.
        let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("tools");
        let path = std::env::var("PATH").unwrap();
        let service = format!("127.0.0.1:{}", self.ports[0]);
        let mut shell = Command::new("bash");
        shell.arg(script).current_dir(self.folder.path()).process_group(0).stdin(Stdio::null());
        shell.env("PATH", format!("{}:{path}", self.state_folder().join("bin").display()));
        shell.env("GUIDE_STATE", self.state_folder()).env("GUIDE_REDRIVE", env!("CARGO_BIN_EXE_redrive"));
        shell.env_remove("REDRIVE_URL").env("GUIDE_URL", format!("http://{service}"));
        shell.env("REDRIVE_LISTEN", service).env("GUIDE_PYTHON", tools.join("psycopg/bin/python"));
        shell.env("NODE_PATH", tools.join("pg/node_modules")).env("HOME", self.folder.path());
        shell.env("COLUMNS", "100").env_remove("REDRIVE_STORE").env_remove("REDRIVE_API_KEY");
        if let Some(postgres) = &self.postgres {
            shell.env("GUIDE_POSTGRES", postgres.address());
        }
        if let Some(redis) = &self.redis {
            shell.env("GUIDE_REDIS_PORT", redis.port().to_string());
        }
        shell
    }
}

/// One shell script for the whole page, so that a block can use the variables of earlier blocks.
fn write_script(environment: &PageEnvironment, blocks: &[&Block]) -> String {
    let mut script = String::from("set -euo pipefail\nmkdir -p page-0 && cd page-0\n");
    let mut service_runs = false;
    for (number, block) in blocks.iter().enumerate() {
        let text = environment.localize(&block.text);
        let file = environment.state_folder().join(format!("block-{number}"));
        fs::write(&file, text.as_bytes()).unwrap();
        if block.attribute("fresh").is_some() {
            let _ = writeln!(script, "\"$GUIDE_STATE/stop\"; mkdir ../page-{number}; cd ../page-{number}");
            service_runs = false;
        }
        let starts_service = text.contains("redrive serve");
        if calls_service(block) && !service_runs && !starts_service {
            script.push_str("redrive serve > /dev/null\n");
            service_runs = true;
        }
        service_runs |= starts_service;
        let _ = writeln!(script, "echo {number} > \"$GUIDE_STATE/at\"");
        let (command, file) = (command(block, &file), file.display());
        let _ = writeln!(script, "{command} > {file}.out 2> {file}.err");
    }
    script
}

/// The command that runs a block, which is stored in `file`.
fn command(block: &Block, file: &Path) -> String {
    let file = file.display();
    match (block.attribute("write"), block.language.as_str()) {
        (Some(name), _) => format!("cp {file} {name}"),
        (None, "sh") => format!(". {file}"),
        (None, "python") if block.text.contains("psycopg") => format!("\"$GUIDE_PYTHON\" {file}"),
        (None, "python") => format!("python3 {file}"),
        (None, "js") if block.text.contains("require(") => format!("node {file}"),
        (None, "js") => format!("node --input-type=module - < {file}"),
        (None, "sql") => format!("psql -q -v ON_ERROR_STOP=1 -f {file} \"$GUIDE_POSTGRES\""),
        (None, other) => panic!("{}: cannot run {other}", block.location),
    }
}

/// Whether a reader needs a running service for this block.
fn calls_service(block: &Block) -> bool {
    let nouns = ["task", "job", "dead", "operation", "queue", "schedule", "node", "top"];
    let commands = nouns.map(|noun| format!("redrive {noun} "));
    let calls = block.text.contains("7373") || commands.iter().any(|command| block.text.contains(command));
    calls && block.attribute("write").is_none()
}

/// A shell and every process that it started. Dropping the value kills all of them.
struct ProcessGroup(Child);

impl ProcessGroup {
    /// Waits until the shell has ended. False if it failed or ran out of time.
    fn succeeds(&mut self) -> bool {
        let started = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            if started.elapsed() > PAGE_TIMEOUT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The group includes processes that a block started in the background.
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// Runs a page and returns the number of its blocks that were run.
fn run_page(page: &Page) -> Result<usize, String> {
    let blocks = parse_blocks(page);
    let run: Vec<&Block> = blocks.iter().filter(|block| block.is_run()).collect();
    if run.is_empty() {
        return Ok(0);
    }
    let environment = PageEnvironment::new(page);
    let script = environment.state_folder().join("page.sh");
    fs::write(&script, write_script(&environment, &run)).unwrap();
    let mut shell = ProcessGroup(environment.shell(&script).spawn().unwrap());
    if !shell.succeeds() {
        return Err(describe_failure(&environment, &run));
    }
    check_pictures(page, &environment.folder.path().join("page-0"))?;
    check_outputs(page, &environment, &blocks)?;
    Ok(run.len())
}

fn describe_failure(environment: &PageEnvironment, run: &[&Block]) -> String {
    let number: usize = environment.read_state("at").trim().parse().unwrap_or(0);
    let stdout = environment.read_state(&format!("block-{number}.out"));
    let stderr = environment.read_state(&format!("block-{number}.err"));
    let service = environment.read_state("serve.err");
    let Block { location, text, .. } = run[number];
    format!("{location}:\n{text}\n-- stdout\n{stdout}\n-- stderr\n{stderr}\n-- service\n{service}")
}

/// The output of programs whose page does not show it.
const UNSHOWN_OUTPUT: [(&str, &str, &str); 2] =
    [("docs/service.md", "python", "succeeded 200\n"), ("docs/service.md", "js", "succeeded [ 200 ]\n")];

/// Compares each output that the page shows with the output of the block before it.
fn check_outputs(page: &Page, environment: &PageEnvironment, blocks: &[Block]) -> Result<(), String> {
    let mut actual = String::new();
    let mut number = 0;
    for block in blocks {
        if block.is_run() {
            actual =
                environment.with_documented_ports(&environment.read_state(&format!("block-{number}.out")));
            number += 1;
            let is_of =
                |(path, language, _): &&(&str, &str, &str)| *path == page.path && *language == block.language;
            let expected = UNSHOWN_OUTPUT.iter().find(is_of);
            if expected.is_some_and(|(_, _, expected)| *expected != actual) {
                return Err(format!("{} printed {actual}", block.location));
            }
        } else if block.attribute("output").is_some() && !shows(block, &actual) {
            let Block { location, text, .. } = block;
            return Err(format!("{location}: the page shows\n{text}\n-- but the output is\n{actual}"));
        }
    }
    Ok(())
}

fn shows(block: &Block, actual: &str) -> bool {
    let is_approximate = block.attribute("approximate").is_some();
    if is_approximate { matches_approximately(&block.text, actual) } else { matches(&block.text, actual) }
}

/// Checks that the commands of a page draw the pictures that it shows. `UPDATE_DOCS=1` replaces the pictures.
fn check_pictures(page: &Page, folder: &Path) -> Result<(), String> {
    let pictures = fs::read_dir(repository_root().join("docs/pictures")).unwrap();
    for picture in pictures.map(|entry| entry.unwrap().path()) {
        let name = picture.file_name().unwrap().to_str().unwrap();
        if !page.text.contains(&format!("pictures/{name}")) {
            continue;
        }
        let drawn = fs::read_to_string(folder.join(name))
            .map_err(|_| format!("{}: no command of the page draws {name}", page.path))?;
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&picture, &drawn).unwrap();
        }
        if fs::read_to_string(&picture).unwrap() != drawn {
            return Err(format!("docs/pictures/{name} is out of date: run this test with UPDATE_DOCS=1"));
        }
    }
    Ok(())
}

#[test]
fn every_page_runs_to_its_end() {
    // `REDRIVE_GUIDE_PAGE=tour` runs only the pages with this text in their path.
    let filter = std::env::var("REDRIVE_GUIDE_PAGE").unwrap_or_default();
    let mut problems = Vec::new();
    let mut total = 0;
    for page in read_pages().iter().filter(|page| page.path.contains(&filter)) {
        let started = Instant::now();
        match run_page(page) {
            Ok(0) => {}
            Ok(blocks) => {
                total += blocks;
                println!("{}: {blocks} blocks in {:?}", page.path, started.elapsed());
            }
            Err(problem) => problems.push(problem),
        }
    }
    println!("{total} blocks ran");
    assert!(problems.is_empty(), "{} pages fail\n\n{}", problems.len(), problems.join("\n\n"));
    assert!(total > 0, "no page has blocks to run");
}
