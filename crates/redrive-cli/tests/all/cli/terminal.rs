//! Commands on a terminal, which the program `script` provides: colours, widths, and restoring the screen.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use crate::cli::session::Session;

const RED: &str = "\x1b[38;5;1m";
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Runs a shell command on a new terminal.
fn on_terminal(session: &Session, program: &str) -> Child {
    let redrive = env!("CARGO_BIN_EXE_redrive");
    let mut command = Command::new("script");
    command.args(["-qec", &program.replace("redrive", redrive), "/dev/null"]);
    command
        .env("REDRIVE_URL", session.url())
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh")
        .env_remove("NO_COLOR");
    command.current_dir(session.folder.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap_or_else(|error| panic!("script is missing ({error}): install util-linux"))
}

fn output_of(mut child: Child) -> String {
    // Standard input stays open until the end, because its end would close the terminal.
    let stdin = child.stdin.take();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    drop(stdin);
    child.wait().unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn states_are_coloured_on_a_terminal_unless_colours_are_switched_off() {
    let session = Session::start().await;
    session.run_unrecorded(&["task", "create", &session.target.url("/missing"), "--wait"], 6);
    let coloured = output_of(on_terminal(&session, "stty cols 200 rows 24; redrive task list"));
    assert!(coloured.contains(&format!("{RED}dead\x1b[")), "{coloured:?}");
    for plain in ["NO_COLOR=1 redrive task list", "TERM=dumb redrive task list", "redrive task list | cat"] {
        let output = output_of(on_terminal(&session, plain));
        assert!(output.contains("dead") && !output.contains('\x1b'), "{plain}: {output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_fits_the_terminal() {
    let session = Session::start().await;
    let id = session.run_unrecorded(&["task", "create", &session.target.url("/missing"), "--wait"], 6);
    let id = id.lines().next().unwrap();
    for width in [80, 100, 140] {
        let output = output_of(on_terminal(
            &session,
            &format!("stty cols {width} rows 24; NO_COLOR=1 redrive task list"),
        ));
        let widest = output.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
        assert!(widest <= width, "{widest} columns on {width}:\n{output}");
        assert!(output.contains(id), "the id is cut: {output}");
    }
}

/// Runs `redrive top` until a key is pressed. Returns the terminal settings before, everything printed, and the settings after.
fn top(session: &Session, arguments: &str, press: &[u8]) -> (String, String, String) {
    let mut child = on_terminal(
        session,
        &format!(
            "trap : INT; stty cols 120 rows 40; stty -g; redrive top {arguments}; echo ended $?; stty -g"
        ),
    );
    let mut text = String::new();
    let mut stdout = child.stdout.take().unwrap();
    let mut buffer = [0; 4096];
    // The command reads keys only after it has opened the screen.
    while !text.contains("NEWEST FAILURES") {
        let read = stdout.read(&mut buffer).unwrap();
        assert!(read > 0, "the command ended early: {text:?}");
        text += &String::from_utf8_lossy(&buffer[..read]);
    }
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(press).unwrap();
    stdin.flush().unwrap();
    stdout.read_to_string(&mut text).unwrap();
    drop(stdin);
    child.wait().unwrap();
    let before = text.lines().next().unwrap().to_owned();
    let after = text.lines().last().unwrap().to_owned();
    (before, text, after)
}

#[tokio::test(flavor = "multi_thread")]
async fn top_restores_the_terminal() {
    let session = Session::start().await;
    for press in [&b"xq"[..], &b"\x03"[..]] {
        let (before, text, after) = top(&session, "--every 200ms", press);
        assert!(before.contains(':') && before == after, "the settings were {before} and are {after}");
        let (entered, left) = (text.find(ENTER).unwrap(), text.find(LEAVE).unwrap());
        assert!(entered < left, "{text:?}");
        assert!(text.contains("ended 0"), "{press:?}: {text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn discard_asks_on_a_terminal() {
    let session = Session::start().await;
    session.run_unrecorded(&["task", "create", &session.target.url("/missing"), "--wait"], 6);
    for (answer, code, remaining) in [("n\n", 4, 1), ("y\n", 0, 0)] {
        let mut child = on_terminal(&session, "redrive dead discard; echo ended $?");
        child.stdin.as_mut().unwrap().write_all(answer.as_bytes()).unwrap();
        let output = output_of(child);
        assert!(output.contains("discard 1 dead letter? This cannot be undone. [y/N]"), "{output}");
        assert!(output.contains(&format!("ended {code}")), "{output}");
        assert_eq!(session.run_unrecorded(&["dead", "list", "--json"], 0).lines().count(), remaining);
    }
}
