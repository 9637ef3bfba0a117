//! The processes of a measurement: the service, the probe, the sink. They end with the measurement.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines};
use tokio::process::{ChildStdout, Command};
use tokio::time::timeout;

/// The time in which a process must print its address.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// The time in which a process must end after a signal.
const END_TIMEOUT: Duration = Duration::from_secs(40);
/// The prefixes of environment variables that would change the service. A process does not inherit them.
const REMOVED_VARIABLES: [&str; 3] = ["REDRIVE_", "OTEL_", "RUST_LOG"];

/// A process that listens. Dropping this kills it.
pub struct Child {
    name: &'static str,
    process: tokio::process::Child,
    /// Kept open, so that later output does not fail.
    _output: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
}

impl Child {
    /// Starts `redrive serve` with the defaults and `flags`, in `folder`.
    pub async fn serve(program: &Path, folder: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(flags).current_dir(folder);
        command.stdin(Stdio::null()).env("RUST_LOG", "warn");
        Self::start("service", command).await
    }

    /// Starts `apps/paste` with its defaults, in `folder`.
    pub async fn paste(program: &Path, folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["--listen", "127.0.0.1:0"]).current_dir(folder);
        command.stdin(Stdio::null()).env("RUST_LOG", "warn");
        Self::start("paste", command).await
    }

    /// Starts this program with the subcommand `role`. The process ends when its standard input closes.
    pub async fn role(role: &'static str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(role).stdin(Stdio::piped());
        Self::start(role, command).await
    }

    async fn start(name: &'static str, mut command: Command) -> anyhow::Result<Self> {
        let set = command.as_std().get_envs().map(|(key, _)| key.to_owned()).collect::<Vec<_>>();
        for (key, _) in std::env::vars_os().filter(|(key, _)| !set.contains(key)) {
            if REMOVED_VARIABLES.iter().any(|prefix| key.to_string_lossy().starts_with(prefix)) {
                command.env_remove(key);
            }
        }
        let mut process = command
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the {name}"))?;
        let stdout = process.stdout.take().with_context(|| format!("the {name} has no output"))?;
        let mut output = BufReader::new(stdout).lines();
        let line = timeout(START_TIMEOUT, output.next_line())
            .await
            .with_context(|| format!("the {name} did not print its address"))??
            .with_context(|| format!("the {name} ended at once; its messages are above"))?;
        let address =
            parse_address(&line).with_context(|| format!("the {name} printed no address, but {line:?}"))?;
        Ok(Self { name, process, _output: output, address })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The name and the id of the process, to measure its CPU time.
    pub fn name_and_pid(&self) -> (&'static str, u32) {
        (self.name, self.process.id().unwrap_or_default())
    }

    /// Stops the process with a signal, and fails unless it ends with success.
    pub async fn end(mut self) -> anyhow::Result<()> {
        let (name, pid) = self.name_and_pid();
        if self.process.stdin.take().is_none() {
            let sent = Command::new("kill").args(["-TERM", &pid.to_string()]).status().await;
            anyhow::ensure!(
                sent.context("cannot run `kill`")?.success(),
                "the {name} ended before the measurement"
            );
        }
        let status = timeout(END_TIMEOUT, self.process.wait())
            .await
            .with_context(|| format!("the {name} did not end within {END_TIMEOUT:?}"))??;
        anyhow::ensure!(status.success(), "the {name} ended with {status}");
        Ok(())
    }
}

/// Prints the address of a role, in the form that [`Child`] expects.
pub fn print_address(address: SocketAddr) {
    println!("listens on http://{address}");
}

/// Returns when standard input closes, because the parent process closed it or ended.
pub async fn stdin_closed() {
    let mut input = tokio::io::stdin();
    let mut ignored = [0; 64];
    while input.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
}

fn parse_address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("http://")?;
    rest.split([' ', ';', '/']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_parsed_from_the_output_of_a_process() {
        for (line, address) in [
            ("redrive listens on http://127.0.0.1:7373 with sqlite:x; docs at http://y/docs", Some(7373)),
            ("listens on http://127.0.0.1:1", Some(1)),
            ("redrive works on sqlite:x, without an API", None),
            ("listens on http://nowhere", None),
        ] {
            assert_eq!(parse_address(line).map(|address| address.port()), address, "{line}");
        }
    }
}
