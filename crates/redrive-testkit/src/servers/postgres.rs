//! A private Postgres that can be killed and restarted.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use super::folder::Folder;
use super::process::{
    WAIT_MAX, account, command, dependent_command, free_port, output, poll, processes_marked, signal, spawn,
    stdout_of,
};
use super::template::{copy_template, programs};

/// How long a server may take to stop.
const STOP_MAX: Duration = Duration::from_secs(10);

/// How long the child processes of a killed server may take to end.
const CHILDREN_STOP_MAX: Duration = Duration::from_secs(3);

/// A private Postgres in a temporary folder, on a free port of loopback. It ends with this value.
///
/// It has the default settings of Postgres, including durability, but little memory. The superuser `redrive` needs no
/// password, and the database `redrive` exists.
pub struct Postgres {
    folder: Folder,
    port: u16,
    running: Option<Child>,
}

impl Postgres {
    /// Starts it and waits until it accepts connections.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it with settings, such as `("fsync", "off")`.
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_in(&std::env::temp_dir(), settings)
    }

    /// Starts it with its files in a new folder inside `folder`, for example in a small file system that a test fills.
    /// If the tests run as root, the user `postgres` must be able to enter `folder`.
    pub fn start_in(folder: &Path, settings: &[(&str, &str)]) -> Self {
        let folder = Folder::create("postgres", folder);
        check_folder_access(&folder);
        copy_template(&folder.join("data"));
        let mut server = Self { folder, port: 0, running: None };
        server.configure(settings);
        let started = (0..10).any(|_| {
            server.port = free_port();
            server.launch()
        });
        assert!(started, "every port is taken as soon as it is chosen:\n{}", server.log());
        server
    }

    /// The URL of the database `redrive`.
    pub fn address(&self) -> String {
        self.address_of("redrive")
    }

    /// The URL of a database.
    pub fn address_of(&self, database: &str) -> String {
        format!("postgres://redrive@127.0.0.1:{}/{database}", self.port)
    }

    /// Its port on 127.0.0.1, which stays the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Creates an empty database.
    pub fn create_database(&self, name: &str) {
        self.run(&format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\"")));
    }

    /// Runs statements in the database `redrive` in one transaction. Returns a line for each row, with `|` between the
    /// columns.
    pub fn run(&self, sql: &str) -> String {
        let mut psql = command(programs().join("psql"));
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql, &self.address()]);
        stdout_of(psql)
    }

    /// Kills it, as a crash would, and waits until all its processes have ended.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.running.take() {
            process.kill().expect("the server process can be killed");
            process.wait().expect("the server process can be waited for");
        }
        self.wait_for_end();
    }

    /// Stops it at once, without a checkpoint, so that the next start must recover.
    pub fn stop_immediately(&mut self) {
        if let Some(process) = &mut self.running {
            signal(process.id(), "QUIT");
            // Processes that have not ended by then are killed.
            let _ = poll(STOP_MAX, || process.try_wait().ok().flatten());
        }
        self.kill();
    }

    /// Restarts it on the same port with the same files, and waits until it accepts connections. Stops it first if it
    /// still runs.
    pub fn restart(&mut self) {
        self.stop_immediately();
        let started = poll(WAIT_MAX, || self.launch().then_some(()));
        assert!(started.is_some(), "another process uses its port:\n{}", self.log());
    }

    /// Its log since the first start.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn configure(&self, settings: &[(&str, &str)]) {
        let (sockets, name) = (self.folder.path().to_string_lossy(), self.folder.name());
        let own = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", &sockets),
            ("shared_buffers", "16MB"),
            // Shared memory is a file in the folder, so that a kill leaves nothing behind in memory.
            ("dynamic_shared_memory_type", "mmap"),
            // The title of each server process contains the cluster name, by which `kill` finds the processes.
            ("cluster_name", &name),
        ];
        let lines = own.iter().chain(settings).map(|(name, value)| {
            let value = value.replace('\'', "''");
            format!("{name} = '{value}'\n")
        });
        let file = OpenOptions::new().append(true).open(self.folder.join("data/postgresql.conf"));
        let mut file = file.expect("the template has a configuration");
        file.write_all(lines.collect::<String>().as_bytes()).expect("the configuration can be written");
    }

    /// Starts it and waits until it accepts connections; false if its port is in use.
    fn launch(&mut self) -> bool {
        let before = self.log().len();
        let log = OpenOptions::new().create(true).append(true).open(self.folder.join("log"));
        let log: File = log.expect("the log can be created");
        let mut postgres = dependent_command(&programs().join("postgres"), "QUIT");
        postgres.arg("-D").arg(self.folder.join("data")).args(["-p", &self.port.to_string()]);
        postgres.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        let process = self.running.insert(spawn(postgres));
        let state = self.folder.join("data/postmaster.pid");
        let ready = poll(WAIT_MAX, || match process.try_wait() {
            Ok(None) => is_ready(&state, process.id()).then_some(true),
            Ok(Some(_)) | Err(_) => Some(false),
        });
        let new_log = self.log().split_off(before);
        if ready != Some(true) {
            self.kill();
            assert!(new_log.contains("Address already in use"), "Postgres does not start:\n{new_log}");
        }
        ready == Some(true)
    }

    /// Waits until its child processes have ended, which they do by themselves soon after the server.
    fn wait_for_end(&self) {
        let mark = self.folder.name();
        let gone = || processes_marked(&mark).is_empty().then_some(());
        if poll(CHILDREN_STOP_MAX, gone).is_none() {
            processes_marked(&mark).into_iter().for_each(|process| signal(process, "KILL"));
            let left = poll(STOP_MAX, gone);
            assert!(
                left.is_some(),
                "processes of a killed Postgres do not end: {:?}",
                processes_marked(&mark)
            );
        }
    }

    /// Removes the shared memory that marks a folder as in use: a kill leaves it behind.
    fn remove_shared_memory(&self) {
        let state = std::fs::read_to_string(self.folder.join("data/postmaster.pid")).unwrap_or_default();
        if let Some(id) = state.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            let mut remove = command("ipcrm");
            remove.args(["-m", id]);
            let _ = remove.output();
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop_immediately();
        self.remove_shared_memory();
    }
}

/// Whether the status file of a server says that this process accepts connections.
fn is_ready(state: &Path, process: u32) -> bool {
    let state = std::fs::read_to_string(state).unwrap_or_default();
    let mut lines = state.lines().map(str::trim);
    lines.next() == Some(&process.to_string()) && lines.nth(6) == Some("ready")
}

fn check_folder_access(folder: &Folder) {
    if account().is_some() {
        let mut test = command("test");
        test.arg("-w").arg(folder.path());
        let shown = folder.path().display();
        assert!(
            output(test).status.success(),
            "the user postgres cannot enter {shown}: run chmod a+x on the folders of this path"
        );
    }
}
