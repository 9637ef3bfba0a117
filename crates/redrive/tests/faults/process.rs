//! Child processes of this program, which the tests kill.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The first argument of a child process.
pub(crate) const CHILD: &str = "child";

/// The longest time that a child process may take to end.
const TIME_MAX: Duration = Duration::from_secs(300);

/// This program as a child of a test suite, in one of the suite's modes.
pub(crate) fn command(suite: &str, mode: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([CHILD, suite, mode]);
    command
}

/// A child process. It is killed when this value is dropped.
pub(crate) struct ChildProcess(Child);

impl ChildProcess {
    /// Starts a process.
    pub(crate) fn start(mut command: Command) -> Self {
        Self(command.spawn().expect("a child starts"))
    }

    /// Sends a signal, for example `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.args(["-s", name, &self.0.id().to_string()]).stderr(Stdio::null());
        kill.status().expect("kill runs");
    }

    /// Kills the process. Returns its exit code if it had ended before.
    pub(crate) fn kill(&mut self) -> Option<i32> {
        let _ = self.0.kill();
        self.wait()
    }

    /// Waits until the process has ended. Returns its exit code, or none if a signal ended it. Kills a process that hangs.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + TIME_MAX;
        loop {
            if let Some(status) = self.0.try_wait().expect("the process can be waited for") {
                return status.code();
            }
            if Instant::now() > deadline {
                self.0.kill().expect("the process can be killed");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
