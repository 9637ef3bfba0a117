//! Commands on a terminal, which `script` provides: colours, widths, and a screen that is given back.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use crate::session::Session;

const RED: &str = "\x1b[31m";
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// A shell's program on a terminal of its own.
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

fn said(mut child: Child) -> String {
    // Left open until now: the end of its input would end the terminal.
    let stdin = child.stdin.take();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    drop(stdin);
    child.wait().unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn states_are_coloured_on_a_terminal_unless_no_colour_is_wanted() {
    let session = Session::start().await;
    session.quietly(&["task", "create", &session.target.url("/missing"), "--wait"], 6);
    let coloured = said(on_terminal(&session, "stty cols 200 rows 24; redrive task list"));
    assert!(coloured.contains(&format!("{RED}EXHAUSTED\x1b[0m")), "{coloured:?}");
    for plain in ["NO_COLOR=1 redrive task list", "TERM=dumb redrive task list", "redrive task list | cat"] {
        let said = said(on_terminal(&session, plain));
        assert!(said.contains("EXHAUSTED") && !said.contains('\x1b'), "{plain}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_fits_the_terminal() {
    let session = Session::start().await;
    let id = session.quietly(&["task", "create", &session.target.url("/missing"), "--wait"], 6);
    let id = id.lines().next().unwrap();
    for width in [80, 100, 140] {
        let said =
            said(on_terminal(&session, &format!("stty cols {width} rows 24; NO_COLOR=1 redrive task list")));
        let widest = said.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
        assert!(widest <= width, "{widest} columns on {width}:\n{said}");
        assert!(said.contains(id), "ids are whole: {said}");
    }
}

/// The keyboard's settings before and after, and what was drawn between.
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
    // A key counts once the screen was taken over.
    while !text.contains("NEWEST FAILURES") {
        let read = stdout.read(&mut buffer).unwrap();
        assert!(read > 0, "it ended: {text:?}");
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
async fn top_gives_the_terminal_back() {
    let session = Session::start().await;
    for press in [&b"xq"[..], &b"\x03"[..]] {
        let (before, text, after) = top(&session, "--every 200ms", press);
        assert!(before.contains(':') && before == after, "{before} is now {after}");
        let (entered, left) = (text.find(ENTER).unwrap(), text.find(LEAVE).unwrap());
        assert!(entered < left, "{text:?}");
        assert!(text.contains("ended 0"), "{press:?}: {text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn discard_asks_on_a_terminal() {
    let session = Session::start().await;
    session.quietly(&["task", "create", &session.target.url("/missing"), "--wait"], 6);
    for (answer, code, left) in [("n\n", 4, 1), ("y\n", 0, 0)] {
        let mut child = on_terminal(&session, "redrive dead discard; echo ended $?");
        child.stdin.as_mut().unwrap().write_all(answer.as_bytes()).unwrap();
        let said = said(child);
        assert!(said.contains("remove 1 dead letter for good? [y/N]"), "{said}");
        assert!(said.contains(&format!("ended {code}")), "{said}");
        assert_eq!(session.quietly(&["dead", "list", "--json"], 0).lines().count(), left);
    }
}
