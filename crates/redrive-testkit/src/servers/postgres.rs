//! A private Postgres, which can be killed and started again.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use super::folder::Folder;
use super::process::{
    PATIENCE, account, command, free_port, look, mortal_command, output, printed, processes_marked, signal,
    spawn,
};
use super::template::{copy_template, programs};

/// How long a server may take to end that was told to.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// How long what it started may take to notice that it is gone.
const NOTICE_PATIENCE: Duration = Duration::from_secs(3);

/// A Postgres of its own in a temporary folder, on a free port of loopback; it ends with this value.
///
/// Its settings are those that Postgres comes with, durable ones too, except for a small memory. The superuser `redrive`
/// needs no password, and the database `redrive` exists.
pub struct Postgres {
    folder: Folder,
    port: u16,
    running: Option<Child>,
}

impl Postgres {
    /// Starts one and waits until it takes connections.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with more settings, such as `("fsync", "off")`.
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_in(&std::env::temp_dir(), settings)
    }

    /// Starts one with its files in a new folder inside `folder`, such as a small file system that it is to fill. Where
    /// the tests run as root, the user `postgres` has to be able to enter `folder`.
    pub fn start_in(folder: &Path, settings: &[(&str, &str)]) -> Self {
        let folder = Folder::create("postgres", folder);
        check_entry(&folder);
        copy_template(&folder.join("data"));
        let mut server = Self { folder, port: 0, running: None };
        server.configure(settings);
        let begun = (0..10).any(|_| {
            server.port = free_port();
            server.launch()
        });
        assert!(begun, "every port is taken as soon as it is chosen:\n{}", server.log());
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

    /// The port of 127.0.0.1 where it listens, the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Creates an empty database.
    pub fn create_database(&self, name: &str) {
        self.run(&format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\"")));
    }

    /// Runs statements in the database `redrive` and returns what they print: a line for each row, `|` between columns.
    /// Several statements are one transaction.
    pub fn run(&self, sql: &str) -> String {
        let mut psql = command(programs().join("psql"));
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql, &self.address()]);
        printed(psql)
    }

    /// Kills it as a crash would, and waits until every process of it is gone.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.running.take() {
            process.kill().expect("a process of ours can be killed");
            process.wait().expect("a process of ours can be waited for");
        }
        self.await_end();
    }

    /// Stops it at once, without a checkpoint, so that the next start recovers.
    pub fn stop_immediately(&mut self) {
        if let Some(process) = &mut self.running {
            signal(process.id(), "QUIT");
            // What has not ended by then is killed.
            let _ = look(END_PATIENCE, || process.try_wait().ok().flatten());
        }
        self.kill();
    }

    /// Starts it again on the same port with the same files, after it was stopped if it still runs, and waits until it
    /// takes connections.
    pub fn restart(&mut self) {
        self.stop_immediately();
        let begun = look(PATIENCE, || self.launch().then_some(()));
        assert!(begun.is_some(), "its port is taken by another:\n{}", self.log());
    }

    /// What it has logged since its first start.
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
            // In the folder, so that nothing is left in memory after a kill.
            ("dynamic_shared_memory_type", "mmap"),
            // In the title of each of its processes: this is how they are found.
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

    /// Starts it and waits until it takes connections; false if its port is taken.
    fn launch(&mut self) -> bool {
        let before = self.log().len();
        let log = OpenOptions::new().create(true).append(true).open(self.folder.join("log"));
        let log: File = log.expect("a folder of our own takes a file");
        let mut postgres = mortal_command(&programs().join("postgres"), "QUIT");
        postgres.arg("-D").arg(self.folder.join("data")).args(["-p", &self.port.to_string()]);
        postgres.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        let process = self.running.insert(spawn(postgres));
        let state = self.folder.join("data/postmaster.pid");
        let seen = look(PATIENCE, || match process.try_wait() {
            Ok(None) => is_ready(&state, process.id()).then_some(true),
            Ok(Some(_)) | Err(_) => Some(false),
        });
        let news = self.log().split_off(before);
        if seen != Some(true) {
            self.kill();
            assert!(news.contains("Address already in use"), "Postgres does not start:\n{news}");
        }
        seen == Some(true)
    }

    /// Waits until what it started is gone too: this ends by itself soon after, unless it is busy.
    fn await_end(&self) {
        let mark = self.folder.name();
        let gone = || processes_marked(&mark).is_empty().then_some(());
        if look(NOTICE_PATIENCE, gone).is_none() {
            processes_marked(&mark).into_iter().for_each(|process| signal(process, "KILL"));
            let left = look(END_PATIENCE, gone);
            assert!(
                left.is_some(),
                "processes of a killed Postgres do not end: {:?}",
                processes_marked(&mark)
            );
        }
    }

    /// Removes the piece of shared memory that marks a folder as in use: a kill leaves it behind.
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

/// Whether the file in which a server writes its state says that this process takes connections.
fn is_ready(state: &Path, process: u32) -> bool {
    let state = std::fs::read_to_string(state).unwrap_or_default();
    let mut lines = state.lines().map(str::trim);
    lines.next() == Some(&process.to_string()) && lines.nth(6) == Some("ready")
}

fn check_entry(folder: &Folder) {
    if account().is_some() {
        let mut test = command("test");
        test.arg("-w").arg(folder.path());
        let shown = folder.path().display();
        assert!(
            output(test).status.success(),
            "the user postgres cannot enter {shown}: see chmod a+x on the way"
        );
    }
}
