//! The service as a process of its own, which does not outlive its test.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, within};

/// The command, in a folder, with nothing of this environment that would configure it.
pub(crate) fn redrive(folder: &Path) -> Command {
    isolated(Command::new(PROGRAM), folder)
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_redrive");

fn isolated(mut command: Command, folder: &Path) -> Command {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if ["REDRIVE_", "OTEL_", "RUST_LOG"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&*name);
        }
    }
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// How a service is started; again and again, if need be.
#[derive(Clone)]
pub(crate) struct Launch {
    folder: PathBuf,
    flags: Vec<String>,
    variables: Vec<(String, String)>,
    /// Shell commands that run before the service, in its process.
    shell_setup: Vec<String>,
}

impl Launch {
    /// `serve` on a free port of loopback, with its files in `folder`.
    pub(crate) fn new(folder: &Path) -> Self {
        let (flags, variables, shell_setup) = (Vec::new(), Vec::new(), Vec::new());
        Self { folder: folder.to_owned(), flags, variables, shell_setup }.flags(&["--listen", "127.0.0.1:0"])
    }

    /// `serve` without a flag.
    pub(crate) fn bare(folder: &Path) -> Self {
        Self { flags: Vec::new(), ..Self::new(folder) }
    }

    pub(crate) fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Makes a write over the limit of [`Service::limit_files`] fail instead of killing the process.
    pub(crate) fn bearing_file_limit(self) -> Self {
        self.after_shell("trap '' XFSZ".to_owned())
    }

    /// Lowers the soft limit of open files, as a shell does.
    pub(crate) fn soft_files(self, limit: u32) -> Self {
        self.after_shell(format!("ulimit -S -n {limit}"))
    }

    fn after_shell(mut self, command: String) -> Self {
        self.shell_setup.push(command);
        self
    }

    /// Starts it and waits until it says where it listens.
    pub(crate) fn start(&self) -> Service {
        let log = self.folder.join("log");
        let lines: File = OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let mut process = Running::start(self.command().stdout(Stdio::piped()).stderr(lines));
        let (heard, greeting) = mpsc::channel();
        let stdout = process.0.stdout.take().unwrap();
        // Read to its end, so that the service never writes into a closed pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = heard.send(line);
            }
        });
        let (address, lines) = (([127, 0, 0, 1], 0).into(), Mutex::new(greeting));
        let mut service = Service { process, address, log, lines };
        let line = service.next_line();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        service.address = address.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        service
    }

    /// Runs it although it cannot start.
    pub(crate) fn refused(&self) -> Output {
        let mut child = self.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let began = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if began.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!("it started: {:?}", self.flags);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.wait_with_output().unwrap()
    }

    fn command(&self) -> Command {
        let mut command = if self.shell_setup.is_empty() {
            redrive(&self.folder)
        } else {
            let script = format!("{} && exec \"$0\" \"$@\"", self.shell_setup.join(" && "));
            let mut shell = Command::new("sh");
            shell.args(["-c", script.as_str(), PROGRAM]);
            isolated(shell, &self.folder)
        };
        command.arg("serve").args(&self.flags);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// A process that does not outlive its test, not even one that panics.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }

    /// How it ended.
    pub(crate) async fn end(&mut self, patience: Duration) -> ExitStatus {
        within(patience, "the process ends", async || self.0.try_wait().unwrap()).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has ended before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running service.
pub(crate) struct Service {
    process: Running,
    /// Where it says it listens.
    pub(crate) address: SocketAddr,
    log: PathBuf,
    lines: Mutex<mpsc::Receiver<String>>,
}

impl Service {
    pub(crate) fn client(&self) -> Client {
        Client::new(SocketAddr::from(([127, 0, 0, 1], self.address.port())))
    }

    /// The next line on its standard output.
    pub(crate) fn next_line(&self) -> String {
        let line = self.lines.lock().unwrap().recv_timeout(PATIENCE);
        line.unwrap_or_else(|_| panic!("it prints no line, or does not start"))
    }

    /// The process's id.
    pub(crate) fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// What services in its folder have logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The soft limit of its open files, and the hard one.
    pub(crate) fn open_files(&self) -> (String, String) {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", self.process.0.id())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let mut words = line.split_whitespace().skip(3).map(str::to_owned);
        (words.next().unwrap(), words.next().unwrap())
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
    }

    /// Lets the process open no file whose number is not below `limit`, while it runs.
    #[cfg(target_os = "linux")]
    pub(crate) fn limit_open_files(&self, limit: u32) {
        let pid = self.process.0.id().to_string();
        let nofile = format!("--nofile={limit}:");
        let set = Command::new("prlimit").args(["--pid", &pid, &nofile]).status();
        assert!(set.expect("prlimit is part of util-linux").success());
    }

    /// SIGTERM, by the shell: Rust has no call for it that is safe.
    pub(crate) fn terminate(&self) {
        let kill = Command::new("sh").arg("-c").arg(format!("kill -TERM {}", self.id())).status();
        assert!(kill.unwrap().success());
    }

    /// Sets how many bytes its files may have from now on, as a full disk would.
    pub(crate) fn limit_files(&self, bytes: &str) {
        let limit = format!("--fsize={bytes}:unlimited");
        let set = Command::new("prlimit").arg(limit).arg(format!("--pid={}", self.process.0.id())).status();
        assert!(set.unwrap().success());
    }

    /// How it ended, and after how long.
    pub(crate) async fn end(mut self, patience: Duration) -> (ExitStatus, Duration) {
        let began = Instant::now();
        (self.process.end(patience).await, began.elapsed())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("the service's last lines:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
        }
    }
}
