//! Postgres: its settings, its crashes, and its files.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use redrive_testkit::servers::Postgres;
use tempfile::TempDir;

use super::client::{Client, WAIT_MAX};

/// The environment variable with the folder for the server of a child process.
const FOLDER_VARIABLE: &str = "SERVER_FOLDER";

#[test]
fn a_committed_row_survives_a_crash() {
    let mut postgres = Postgres::start();
    postgres.run("CREATE TABLE kept (word text); INSERT INTO kept VALUES ('here')");
    for crash in [Postgres::kill, Postgres::stop_immediately] {
        let port = postgres.port();
        crash(&mut postgres);
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the server still listens");
        postgres.restart();
        assert_eq!(postgres.port(), port);
        assert_eq!(postgres.run("SELECT word FROM kept"), "here");
    }
    assert_eq!(postgres.log().matches("automatic recovery in progress").count(), 2, "{}", postgres.log());
}

#[test]
fn the_default_settings_are_durable() {
    let query = "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_user";
    let postgres = Postgres::start();
    assert_eq!(postgres.run(query), "on|on|redrive");
    let fast = Postgres::start_with(&[("fsync", "off"), ("search_path", "it's")]);
    assert_eq!(fast.run(query), "off|on|redrive");
    assert_eq!(fast.run("SHOW search_path"), "it's");
}

#[test]
fn each_database_has_an_address() {
    let postgres = Postgres::start();
    postgres.create_database("Second one");
    let names = "SELECT count(*) FROM pg_database WHERE datname IN ('redrive', 'Second one')";
    assert_eq!(postgres.run(names), "2");
    assert_eq!(postgres.address(), format!("postgres://redrive@127.0.0.1:{}/redrive", postgres.port()));
    assert_eq!(postgres.address_of("x"), format!("postgres://redrive@127.0.0.1:{}/x", postgres.port()));
}

#[test]
#[should_panic(expected = "division by zero")]
fn a_failing_statement_reports_its_error() {
    Postgres::start().run("SELECT 1 / 0");
}

#[test]
fn its_files_are_in_the_given_folder() {
    let wanted = open_folder();
    let postgres = Postgres::start_in(wanted.path(), &[]);
    assert!(postgres.run("SHOW data_directory").starts_with(wanted.path().to_str().unwrap()));
    drop(postgres);
    assert_eq!(std::fs::read_dir(wanted.path()).unwrap().count(), 0, "the server leaves files behind");
}

#[test]
fn a_server_leaves_no_process_and_no_file() {
    let stops: [fn(&mut Postgres); 3] = [|_| (), Postgres::kill, |_| panic!("like a failed test")];
    for stop in stops {
        let mut postgres = Postgres::start();
        let (folder, port) = (folder(&postgres), postgres.port());
        let memory = shared_memory(&folder);
        let mut busy = Client::connect(([127, 0, 0, 1], port).into()).unwrap();
        busy.start("SELECT pg_sleep(1000)").unwrap();
        assert!(processes(&folder) > 5, "its processes cannot be found");
        assert!(has_shared_memory(&memory), "its shared memory cannot be found");
        let test = std::thread::spawn(move || {
            stop(&mut postgres);
            drop(postgres);
        });
        let _ = test.join();
        assert_eq!(processes(&folder), 0);
        assert!(!folder.exists() && !has_shared_memory(&memory));
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}

#[test]
fn a_kill_ends_all_of_its_processes() {
    let mut postgres = Postgres::start();
    let folder = folder(&postgres);
    let mut busy = Client::connect(([127, 0, 0, 1], postgres.port()).into()).unwrap();
    busy.start("DO 'BEGIN LOOP END LOOP; END'").unwrap();
    postgres.kill();
    assert_eq!(processes(&folder), 0);
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let postgres = std::thread::spawn(Postgres::start).join().unwrap();
    // The server would end at once if it ended with its thread.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(postgres.run("SELECT 1"), "1");
}

#[test]
fn a_server_does_not_outlive_a_killed_test() {
    // A folder of its own, because every start of a server cleans up in its parent folder.
    let elsewhere = open_folder();
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.env(FOLDER_VARIABLE, elsewhere.path());
    test.args(["--exact", "servers::postgres::child_that_is_killed", "--ignored", "--nocapture"]);
    let mut test = test.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(test.stdout.take().unwrap()).lines().map_while(Result::ok);
    let folder =
        lines.filter_map(|line| line.split("its folder: ").nth(1).map(PathBuf::from)).next().unwrap();
    assert!(processes(&folder) > 5, "its processes cannot be found");
    test.kill().unwrap();
    test.wait().unwrap();
    let began = Instant::now();
    while processes(&folder) > 0 {
        assert!(began.elapsed() < WAIT_MAX, "the server still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(folder.exists());
    let _next = Postgres::start_in(elsewhere.path(), &[]);
    assert!(!folder.exists(), "the next server does not delete the folder");
}

#[test]
#[ignore = "run by a_server_does_not_outlive_a_killed_test, as a process of its own"]
fn child_that_is_killed() {
    let postgres = Postgres::start_in(Path::new(&std::env::var_os(FOLDER_VARIABLE).unwrap()), &[]);
    println!("\nits folder: {}", folder(&postgres).display());
    std::thread::sleep(WAIT_MAX);
}

/// A folder that other users may enter.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    folder
}

fn folder(postgres: &Postgres) -> PathBuf {
    Path::new(&postgres.run("SHOW data_directory")).parent().unwrap().to_owned()
}

/// How many processes have the folder's name in their command line or title.
fn processes(folder: &Path) -> usize {
    let name = folder.file_name().unwrap().to_str().unwrap();
    let lines = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("cmdline"));
    lines
        .filter(|line| std::fs::read(line).is_ok_and(|line| String::from_utf8_lossy(&line).contains(name)))
        .count()
}

/// The id of the shared memory that marks the folder as in use.
fn shared_memory(folder: &Path) -> String {
    let state = std::fs::read_to_string(folder.join("data/postmaster.pid")).unwrap();
    state.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

fn has_shared_memory(id: &str) -> bool {
    let all = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    all.lines().any(|line| line.split_whitespace().nth(1) == Some(id))
}
