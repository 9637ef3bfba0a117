//! Each page is performed from top to bottom in a folder of its own, against services and servers of its own.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redrive_testkit::servers::{Postgres, Redis};

use crate::blocks::{Block, blocks};
use crate::compare::{matches, matches_about};
use crate::pages::{Page, pages, root};

/// More than any page needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Ports that pages name: the service's own and that of a target.
const PORTS: [&str; 2] = ["7373", "8099"];

/// What stands in for a program while a page is performed. `serve` goes on in the background once it listens, as in
/// another terminal; one that was there before is ended first. `demo` ends by itself.
const REDRIVE: &str = r#"#!/usr/bin/env bash
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
# Commands that a reader would need no address for, since theirs is the default one.
task | job | dead | operation | policy | queue | schedule | node | top)
    REDRIVE_URL="$GUIDE_URL" exec "$GUIDE_REDRIVE" "$@" ;;
*) exec "$GUIDE_REDRIVE" "$@" ;;
esac
"#;

/// Ends a service in good order, and waits for it.
const STOP: &str = r#"#!/usr/bin/env bash
pid=$(cat "$GUIDE_STATE/serve.pid" 2> /dev/null) || exit 0
kill "$pid" 2> /dev/null
while kill -0 "$pid" 2> /dev/null; do sleep 0.02; done
rm -f "$GUIDE_STATE/serve.pid"
"#;

const REDIS_CLI: &str = "#!/bin/sh\nexec /usr/bin/redis-cli -p \"$GUIDE_REDIS_PORT\" \"$@\"\n";

/// What a page is performed with.
struct Stage {
    folder: tempfile::TempDir,
    ports: Vec<u16>,
    postgres: Option<Postgres>,
    redis: Option<Redis>,
}

impl Stage {
    fn new(page: &Page) -> Self {
        let free: Vec<TcpListener> =
            PORTS.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = free.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir_all(state.join("bin")).unwrap();
        for (name, text) in [("bin/redrive", REDRIVE), ("stop", STOP), ("bin/redis-cli", REDIS_CLI)] {
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

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The text of a page with what is here in place of what a reader has.
    fn here(&self, text: &str) -> String {
        let mut text = text.replace("cargo run --release -- ", "redrive ").replace("0.0.0.0:", "127.0.0.1:");
        text = text.replace("https://example.com", "http://127.0.0.1:7373");
        // By way of marks, since a port may have the digits of another one's name in it.
        let mark = |place: usize| format!("\u{1}{place}\u{1}");
        for (place, named) in PORTS.iter().enumerate() {
            text = text.replace(named, &mark(place));
        }
        for (place, port) in self.ports.iter().enumerate() {
            text = text.replace(&mark(place), &port.to_string());
        }
        if let Some(postgres) = &self.postgres {
            for login in ["me:secret@", "me@"] {
                text = text.replace(&format!("postgres://{login}db.example/jobs"), &postgres.address());
            }
        }
        if let Some(redis) = &self.redis {
            for place in ["cache.example:6379", "cache.example"] {
                text = text.replace(&format!("redis://me:secret@{place}"), &redis.address());
            }
        }
        text
    }

    /// What was said here with what a reader would see.
    fn there(&self, told: &str) -> String {
        let ports = PORTS.iter().zip(&self.ports);
        ports.fold(told.to_owned(), |told, (named, port)| told.replace(&port.to_string(), named))
    }

    fn command(&self, script: &Path) -> Command {
        // Where `cargo xtask setup` puts the drivers of other languages.
        let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("tools");
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("bash");
        command.arg(script).current_dir(self.folder.path()).process_group(0).stdin(Stdio::null());
        command.env("PATH", format!("{}:{path}", self.state().join("bin").display()));
        command.env("GUIDE_STATE", self.state()).env("GUIDE_REDRIVE", env!("CARGO_BIN_EXE_redrive"));
        command.env("REDRIVE_LISTEN", format!("127.0.0.1:{}", self.ports[0]));
        command.env_remove("REDRIVE_URL").env("GUIDE_URL", format!("http://127.0.0.1:{}", self.ports[0]));
        command.env("GUIDE_PYTHON", tools.join("psycopg/bin/python"));
        command.env("NODE_PATH", tools.join("pg/node_modules")).env("HOME", self.folder.path());
        command.env("COLUMNS", "100").env_remove("REDRIVE_STORE").env_remove("REDRIVE_API_KEY");
        if let Some(postgres) = &self.postgres {
            command.env("GUIDE_POSTGRES", postgres.address());
        }
        if let Some(redis) = &self.redis {
            command.env("GUIDE_REDIS_PORT", redis.port().to_string());
        }
        command
    }
}

/// What programs of a page print that shows no output of its own.
const PRINTED: [(&str, &str, &str); 2] =
    [("docs/service.md", "python", "SUCCEEDED 200\n"), ("docs/service.md", "js", "SUCCEEDED [ 200 ]\n")];

/// One shell for the whole page, so that a variable of one block is there in the next.
fn script(stage: &Stage, performed: &[&Block]) -> String {
    let mut script = String::from("set -euo pipefail\nmkdir -p page-0 && cd page-0\n");
    let mut serves = false;
    for (number, block) in performed.iter().enumerate() {
        let text = stage.here(&block.text);
        let file = stage.state().join(format!("block-{number}"));
        fs::write(&file, text.as_bytes()).unwrap();
        if block.word("fresh").is_some() {
            let _ = writeln!(script, "\"$GUIDE_STATE/stop\"; mkdir ../page-{number}; cd ../page-{number}");
            serves = false;
        }
        let serves_itself = text.contains("redrive serve");
        if calls_a_service(block) && !serves && !serves_itself {
            script.push_str("redrive serve > /dev/null\n");
            serves = true;
        }
        serves |= serves_itself;
        let _ = writeln!(script, "echo {number} > \"$GUIDE_STATE/at\"");
        let file = file.display();
        let run = match (block.word("write"), block.language.as_str()) {
            (Some(name), _) => format!("cp {file} {name}"),
            (None, "sh") => format!(". {file}"),
            (None, "python") if block.text.contains("psycopg") => format!("\"$GUIDE_PYTHON\" {file}"),
            (None, "python") => format!("python3 {file}"),
            (None, "js") if block.text.contains("require(") => format!("node {file}"),
            (None, "js") => format!("node --input-type=module - < {file}"),
            (None, "sql") => format!("psql -q -v ON_ERROR_STOP=1 -f {file} \"$GUIDE_POSTGRES\""),
            (None, other) => panic!("{}: {other} cannot be run", block.place),
        };
        let _ = writeln!(script, "{run} > {file}.out 2> {file}.err");
    }
    script
}

/// Whether a reader would have started a service before.
fn calls_a_service(block: &Block) -> bool {
    let nouns = ["task", "job", "dead", "operation", "queue", "schedule", "node", "top"];
    let commands = nouns.map(|noun| format!("redrive {noun} "));
    let called = block.text.contains("7373") || commands.iter().any(|noun| block.text.contains(noun));
    called && block.word("write").is_none()
}

/// The shell with everything that it started; nothing of it is left when this value is gone.
struct Performance(Child);

impl Performance {
    /// Whether it ended well, in time.
    fn ends_well(&mut self) -> bool {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            if began.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Performance {
    fn drop(&mut self) {
        // The whole group: what a block left in the background is in it.
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

fn perform(page: &Page) -> Result<usize, String> {
    let all = blocks(page);
    let performed: Vec<&Block> = all.iter().filter(|block| block.is_performed()).collect();
    if performed.is_empty() {
        return Ok(0);
    }
    let stage = Stage::new(page);
    let path = stage.state().join("page.sh");
    fs::write(&path, script(&stage, &performed)).unwrap();
    let mut shell = Performance(stage.command(&path).spawn().unwrap());
    let read = |name: String| fs::read_to_string(stage.state().join(name)).unwrap_or_default();
    if !shell.ends_well() {
        let at: usize = read("at".to_owned()).trim().parse().unwrap_or(0);
        let (out, err) = (read(format!("block-{at}.out")), read(format!("block-{at}.err")));
        let block = performed[at];
        let serve = read("serve.err".to_owned());
        return Err(format!("{}:\n{}\n-- said\n{out}\n-- and\n{err}\n{serve}", block.place, block.text));
    }
    check_pictures(page, &stage.folder.path().join("page-0"))?;
    let mut said = String::new();
    let mut number = 0;
    for block in &all {
        if block.is_performed() {
            said = stage.there(&read(format!("block-{number}.out")));
            number += 1;
            let printed =
                PRINTED.iter().find(|(path, language, _)| *path == page.path && *language == block.language);
            if printed.is_some_and(|(_, _, printed)| *printed != said) {
                return Err(format!("{} said {said}", block.place));
            }
        } else if block.word("output").is_some() && !shows(block, &said) {
            return Err(format!("{}: shown is\n{}\n-- but it said\n{said}", block.place, block.text));
        }
    }
    Ok(number)
}

fn shows(block: &Block, said: &str) -> bool {
    let about = block.word("about").is_some();
    if about { matches_about(&block.text, said) } else { matches(&block.text, said) }
}

/// Pictures that a page shows and whose making it tells are what its commands have drawn; `UPDATE_DOCS=1` takes new ones.
fn check_pictures(page: &Page, folder: &Path) -> Result<(), String> {
    let shown = fs::read_dir(root().join("docs/pictures")).unwrap().map(|entry| entry.unwrap().path());
    for kept in shown {
        let name = kept.file_name().unwrap().to_str().unwrap();
        if !page.text.contains(&format!("pictures/{name}")) {
            continue;
        }
        let drawn = fs::read_to_string(folder.join(name))
            .map_err(|_| format!("{}: no command of the page draws {name}", page.path))?;
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&kept, &drawn).unwrap();
        }
        if fs::read_to_string(&kept).unwrap() != drawn {
            return Err(format!("docs/pictures/{name} is old: run this test with UPDATE_DOCS=1"));
        }
    }
    Ok(())
}

#[test]
fn every_page_can_be_followed_to_its_end() {
    // `REDRIVE_GUIDE_PAGE=tour` performs the pages with that in their path alone.
    let only = std::env::var("REDRIVE_GUIDE_PAGE").unwrap_or_default();
    let mut problems = Vec::new();
    let mut run = 0;
    for page in pages().iter().filter(|page| page.path.contains(&only)) {
        let began = Instant::now();
        match perform(page) {
            Ok(0) => {}
            Ok(blocks) => {
                run += blocks;
                println!("{}: {blocks} blocks in {:?}", page.path, began.elapsed());
            }
            Err(problem) => problems.push(problem),
        }
    }
    println!("{run} blocks were run");
    assert!(problems.is_empty(), "{} pages fail\n\n{}", problems.len(), problems.join("\n\n"));
    assert!(run > 0, "no page has blocks that are run");
}
