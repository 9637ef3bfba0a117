//! Processes of this very program.

use std::process::{Child, Command, Stdio};

/// This program as a child that works in `mode`.
pub(crate) fn command(mode: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["child", mode]);
    command
}

/// A process that ends with this value at the latest.
pub(crate) struct Victim(Child);

impl Victim {
    /// Starts one.
    pub(crate) fn start(mut command: Command) -> Self {
        Self(command.spawn().expect("a child starts"))
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.args(["-s", name, &self.0.id().to_string()]).stderr(Stdio::null());
        kill.status().expect("kill runs");
    }

    /// Kills it; says with which code it had ended by itself before.
    pub(crate) fn kill(&mut self) -> Option<i32> {
        let _ = self.0.kill();
        self.wait()
    }

    /// Waits for its end; none when a signal was it.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.0.wait().expect("it has ended").code()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}
