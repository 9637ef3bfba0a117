//! The guide's programs run as they are printed, against a service as a newcomer would start it.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

/// A service in a folder of its own; it ends with this value.
struct Service {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Service {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut greeting = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut greeting).unwrap();
        let address = greeting.split_whitespace().find_map(|word| word.strip_prefix("http://")).unwrap();
        Self { address: address.to_owned(), child, _folder: folder }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The blocks of the guide that are marked to be run: their language and their text.
fn programs() -> Vec<(String, String)> {
    let guide = include_str!("../../../docs/service.md");
    let marked = guide.split("<!-- run -->\n```").skip(1);
    let block = |text: &str| {
        let (language, rest) = text.split_once('\n').unwrap();
        (language.to_owned(), rest.split_once("\n```").unwrap().0.to_owned())
    };
    marked.map(block).collect()
}

fn run(language: &str, program: &str) -> String {
    let (interpreter, arguments): (&str, &[&str]) = match language {
        "sh" => ("sh", &["-s"]),
        "python" => ("python3", &["-"]),
        "js" => ("node", &["--input-type=module", "-"]),
        other => panic!("{other} is no language of the guide"),
    };
    let mut child = Command::new(interpreter)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{interpreter} is missing ({error}): run `cargo xtask setup`"));
    child.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program}\n{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_programs_of_the_guide_work() {
    let service = Service::start();
    let said: Vec<(String, String)> = programs()
        .into_iter()
        .map(|(language, program)| {
            let program = program.replace("127.0.0.1:7373", &service.address);
            (language.clone(), run(&language, &program))
        })
        .collect();
    let languages: Vec<&str> = said.iter().map(|(language, _)| language.as_str()).collect();
    assert_eq!(languages, ["sh", "python", "js"]);
    assert!(said[0].1.contains(r#""status":"PENDING""#), "{}", said[0].1);
    assert_eq!(said[1].1, "SUCCEEDED 200\n");
    assert_eq!(said[2].1, "SUCCEEDED [ 200 ]\n");
}
