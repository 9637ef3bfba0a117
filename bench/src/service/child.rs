//! Processes that a measurement starts: the service, the probe, the sink. None of them outlives it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines};
use tokio::process::{ChildStdout, Command};
use tokio::time::timeout;

/// How long a process may take to say where it listens.
const STARTS_WITHIN: Duration = Duration::from_secs(20);
/// How long a process may take to end once it is told to.
const ENDS_WITHIN: Duration = Duration::from_secs(40);
/// What would change how the service runs, if the caller has it in the environment.
const FOREIGN_SETTINGS: [&str; 3] = ["REDRIVE_", "OTEL_", "RUST_LOG"];

/// A process that listens; it is killed when this is dropped.
pub struct Child {
    name: &'static str,
    process: tokio::process::Child,
    /// Held open, so that what it says later does not break it.
    _said: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
}

impl Child {
    /// `redrive serve` with `flags` beside the defaults, in a folder where its files go.
    pub async fn serve(program: &Path, folder: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(flags).current_dir(folder);
        // Its greetings are no news here; its warnings are.
        command.stdin(Stdio::null()).env("RUST_LOG", "warn");
        Self::start("service", command).await
    }

    /// `apps/paste` with its defaults, in a folder where its files go.
    pub async fn paste(program: &Path, folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["--listen", "127.0.0.1:0"]).current_dir(folder);
        command.stdin(Stdio::null()).env("RUST_LOG", "warn");
        Self::start("paste", command).await
    }

    /// This program again, as the part that `role` names; it ends when its input does.
    pub async fn role(role: &'static str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(role).stdin(Stdio::piped());
        Self::start(role, command).await
    }

    async fn start(name: &'static str, mut command: Command) -> anyhow::Result<Self> {
        let set = command.as_std().get_envs().map(|(key, _)| key.to_owned()).collect::<Vec<_>>();
        for (key, _) in std::env::vars_os().filter(|(key, _)| !set.contains(key)) {
            if FOREIGN_SETTINGS.iter().any(|foreign| key.to_string_lossy().starts_with(foreign)) {
                command.env_remove(key);
            }
        }
        let mut process = command
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("the {name} cannot be started"))?;
        let stdout = process.stdout.take().with_context(|| format!("the {name} has no output"))?;
        let mut said = BufReader::new(stdout).lines();
        let line = timeout(STARTS_WITHIN, said.next_line())
            .await
            .with_context(|| format!("the {name} did not say where it listens"))??
            .with_context(|| format!("the {name} ended at once; see above"))?;
        let address = address_in(&line).with_context(|| format!("the {name} said only {line:?}"))?;
        Ok(Self { name, process, _said: said, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its name and id, to count what it uses.
    pub fn watched(&self) -> (&'static str, u32) {
        (self.name, self.process.id().unwrap_or_default())
    }

    /// Ends it in good order; that it cannot is an error.
    pub async fn end(mut self) -> anyhow::Result<()> {
        let (name, pid) = self.watched();
        if self.process.stdin.take().is_none() {
            let told = Command::new("kill").args(["-TERM", &pid.to_string()]).status().await;
            anyhow::ensure!(
                told.context("there is no `kill`")?.success(),
                "the {name} ended before its time"
            );
        }
        let status = timeout(ENDS_WITHIN, self.process.wait())
            .await
            .with_context(|| format!("the {name} did not end within {ENDS_WITHIN:?}"))??;
        anyhow::ensure!(status.success(), "the {name} ended with {status}");
        Ok(())
    }
}

/// Says where a role listens, in the words that [`Child`] looks for.
pub fn say(address: SocketAddr) {
    println!("listens on http://{address}");
}

/// Returns when the process that started this one has closed its input, or is gone.
pub async fn input_ended() {
    let mut input = tokio::io::stdin();
    let mut ignored = [0; 64];
    while input.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
}

fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("http://")?;
    rest.split([' ', ';', '/']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_what_a_process_says() {
        for (line, address) in [
            ("redrive listens on http://127.0.0.1:7373 with sqlite:x; docs at http://y/docs", Some(7373)),
            ("listens on http://127.0.0.1:1", Some(1)),
            ("redrive works on sqlite:x, without an API", None),
            ("listens on http://nowhere", None),
        ] {
            assert_eq!(address_in(line).map(|address| address.port()), address, "{line}");
        }
    }
}
