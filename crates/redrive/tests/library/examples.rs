//! Runs each example as a user would, and checks what it prints. Also checks that the README opens with one of them.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use redrive_testkit::servers::Postgres;

/// An example that runs in a folder of its own. Nothing is left running when an assertion fails.
struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    _folder: tempfile::TempDir,
}

impl Example {
    fn start(name: &str, variables: &[(&str, &str)]) -> Self {
        // Cargo builds the examples of a package together with its tests, in a folder beside them.
        let here = std::env::current_exe().unwrap();
        let program = here.ancestors().nth(2).unwrap().join("examples").join(name);
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(&program);
        command.current_dir(folder.path()).envs(variables.iter().copied()).stdout(Stdio::piped());
        let spawned = command.spawn();
        let mut child =
            spawned.unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, _folder: folder }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("another line").unwrap()
    }

    /// Asks the example to end, and returns the last lines of its output.
    fn interrupt(mut self) -> Vec<String> {
        let signalled = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
        assert!(signalled.success());
        self.end()
    }

    fn end(&mut self) -> Vec<String> {
        let last = self.lines.by_ref().map(Result::unwrap).collect();
        assert!(self.child.wait().unwrap().success(), "the example ends without an error");
        last
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_readme_opens_with_the_example_hello() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let example = std::fs::read_to_string(root.join("crates/redrive/examples/hello.rs")).unwrap();
    let (_, code) = example.split_once("\n\n").expect("a comment, then code");
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    assert!(
        readme.contains(&format!("```rust file=crates/redrive/examples/hello.rs\n{code}```")),
        "README.md does not show examples/hello.rs"
    );
}

#[test]
fn hello_runs_and_ends_on_a_signal() {
    let mut example = Example::start("hello", &[]);
    assert_eq!(example.line(), "receipt for order 7");
    example.interrupt();
}

#[test]
fn select_returns_the_first_signal() {
    let mut example = Example::start("select", &[]);
    assert_eq!(example.end(), ["Ok(\"order 7 was paid: 4200 cents\")"]);
}

#[test]
fn schedule_runs_each_second() {
    let mut example = Example::start("schedule", &[]);
    for _ in 0..3 {
        assert!(example.line().starts_with("nightly at "));
    }
    let began = Instant::now();
    let reports = [example.line(), example.line()];
    assert!(
        reports.iter().all(|line| line.starts_with("report about the last second, due at")),
        "{reports:?}"
    );
    assert_ne!(reports[0], reports[1], "each report is for another occurrence");
    assert!(began.elapsed() < Duration::from_secs(10));
    example.interrupt();
}

#[test]
fn transaction_enqueues_only_with_a_commit() {
    let postgres = Postgres::start();
    let mut example = Example::start("transaction", &[("DATABASE_URL", &postgres.address())]);
    assert_eq!(example.end(), ["order 7 is on its way", "order 8 has a job: false"]);
    assert_eq!(postgres.run("SELECT id FROM orders").trim(), "7");
}

#[test]
fn axum_app_answers_at_once_and_has_the_receipt_later() {
    let mut example = Example::start("axum_app", &[("LISTEN", "127.0.0.1:0")]);
    let line = example.line();
    let address = line.strip_prefix("listening on ").unwrap().to_owned();
    let (status, id) = ask(&address, "POST /orders/7/receipt");
    assert_eq!(status, 202);
    assert_eq!(ask(&address, "POST /orders/7/receipt"), (202, id.clone()), "the same order, the same job");
    let path = format!("GET /receipts/{}", id.trim_matches('"'));
    let began = Instant::now();
    let receipt = loop {
        let (status, text) = ask(&address, &path);
        if status == 200 {
            break text;
        }
        assert_eq!((status, text.as_str()), (202, "not yet"));
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(receipt, "shop@example.org has sent the receipt for order 7");
    assert_eq!(ask(&address, "GET /receipts/00000000-0000-0000-0000-000000000000").0, 404);
    assert_eq!(example.interrupt(), ["1 receipts were sent"]);
}

/// One request over a connection of its own, as its status and body.
fn ask(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn steps_charges_once_although_the_handler_runs_again() {
    let mut example = Example::start("steps", &[]);
    let expected = [
        "attempt 1",
        "charged order 7",
        "attempt 1",
        "attempt 2",
        "shipped order 7",
        "done: Ok(\"receipt-7\")",
    ];
    assert_eq!(example.end(), expected);
}

#[test]
fn fan_out_returns_its_results_in_order() {
    let mut example = Example::start("fan_out", &[]);
    assert_eq!(example.end(), ["sunset-320.jpg", "sunset-640.jpg", "sunset-1280.jpg"]);
}

#[test]
fn signal_continues_once_it_is_approved() {
    let mut example = Example::start("signal", &[]);
    assert_eq!(example.end(), ["the expense is waiting", "42 euros are paid"]);
}

#[test]
fn tour_delivers_retries_and_redrives() {
    let mut example = Example::start("tour", &[]);
    let expected = [
        "the town: delivered with attempt 1",
        "the farm: delivered with attempt 3",
        "the lodge: the job is dead: not_retryable, no such address",
        "the lodge: Ok(Done)",
        "the lodge: delivered with attempt 1",
    ];
    assert_eq!(example.end(), expected);
}

#[test]
fn workflow_charges_packs_and_ships() {
    let mut example = Example::start("workflow", &[]);
    let lines_printed = example.end();
    assert_eq!((lines_printed[0].as_str(), lines_printed.len()), ("charged order 7", 5), "{lines_printed:?}");
    for packed in ["packed a kettle", "packed tea"] {
        assert!(lines_printed[1..3].contains(&packed.to_owned()), "{lines_printed:?}");
    }
    assert_eq!(lines_printed[3..], ["shipped order 7", "receipt-7"]);
}

#[test]
fn retry_repeats_only_retryable_errors() {
    let mut example = Example::start("retry", &[]);
    let again = "Busy: again within 10 ms";
    assert_eq!(example.end(), [again, again, "Ok(\"/news after 3 calls\")", "Err(Gone)"]);
}

#[test]
fn limits_runs_the_jobs_of_a_partition_in_order() {
    let mut example = Example::start("limits", &[]);
    assert_eq!(example.end(), ["change 1", "change 2", "change 3", "mail to ada@example.org"]);
}

#[test]
fn on_end_writes_the_row_with_the_job() {
    let mut example = Example::start("on_end", &[]);
    assert_eq!(example.end(), ["order 7 is shipped: true"]);
}
