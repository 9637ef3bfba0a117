//! Starts the programs of servers under an account that they accept. None of them outlives the tests.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

/// The longest time that a start or stop may take on a busy machine.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(60);
/// The longest time that a program that ends by itself may take, for example `psql` or `redis-cli`.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(180);

/// The user and group that run servers if the tests run as root, which the servers reject. `None` if they do not run as
/// root.
pub(super) fn account() -> Option<(u32, u32)> {
    static ACCOUNT: LazyLock<Option<(u32, u32)>> = LazyLock::new(|| {
        (current_user() == 0).then(|| {
            let users = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd can be read");
            find_user(&users, "postgres").expect("there is no user postgres: run `cargo xtask setup`")
        })
    });
    *ACCOUNT
}

/// The user that runs servers.
pub(super) fn user() -> u32 {
    account().map_or_else(current_user, |(user, _)| user)
}

fn current_user() -> u32 {
    std::fs::metadata("/proc/self").expect("servers for tests need Linux: there is no /proc").uid()
}

fn find_user(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut numbers = line.split(':').skip(2).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Finds a program on the path or in /usr/sbin, which may be on root's path only.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// A command under the account of servers, without the environment variables that configure Postgres.
pub(super) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    if let Some((user, group)) = account() {
        command.uid(user).gid(group);
    }
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// Like [`command`], for a program that gets `signal` when this process ends, in whatever way.
pub(super) fn dependent_command(program: &Path, signal: &str) -> Command {
    with_death_signal(program, signal, |program| command(program))
}

/// Like [`dependent_command`], under the account of this process.
pub(super) fn own_dependent_command(program: &Path, signal: &str) -> Command {
    let mut command = with_death_signal(program, signal, |program| Command::new(program));
    command.current_dir("/").stdin(Stdio::null());
    command
}

fn with_death_signal(program: &Path, signal: &str, command: impl Fn(&Path) -> Command) -> Command {
    match find_program("setpriv") {
        Some(setpriv) => {
            let mut command = command(&setpriv);
            command.args(["--pdeathsig", signal, "--"]).arg(program);
            command
        }
        None => command(program),
    }
}

/// Starts a process from a thread that never ends. The kernel sends the signal of [`dependent_command`] when the thread
/// that started the process ends, and the thread of a test ends before a server that several tests share.
pub(super) fn spawn(command: Command) -> Child {
    type Order = (Command, mpsc::Sender<std::io::Result<Child>>);
    static STARTER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let shown = format!("{command:?}");
    let (answer, child) = mpsc::channel();
    STARTER.send((command, answer)).expect("the thread that starts processes never ends");
    let child = child.recv().expect("the thread that starts processes answers");
    child.unwrap_or_else(|e| panic!("{shown} does not start: {e}"))
}

/// Runs a program to its end. Kills a program that hangs, and panics.
pub(super) fn output(command: Command) -> Output {
    output_within(PROGRAM_TIME_MAX, command)
}

fn output_within(limit: Duration, mut command: Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|e| panic!("{command:?} does not start: {e}"));
    let process = child.id();
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match ended.recv_timeout(limit) {
        Ok(output) => output.unwrap_or_else(|e| panic!("{command:?} cannot be waited for: {e}")),
        Err(_) => {
            signal(process, "KILL");
            panic!("{command:?} has not ended after {limit:?}");
        }
    }
}

/// The output of a program. Panics with its error output if it fails.
pub(super) fn stdout_of(command: Command) -> String {
    let shown = format!("{command:?}");
    let output = output(command);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown} failed, {}:\n{stderr}", output.status);
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Sends a signal through the shell, because the standard library can only kill.
pub(super) fn signal(process: u32, name: &str) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "kill -s \"$1\" \"$2\"", "sh", name, &process.to_string()]);
    // The call fails only if the process has ended already.
    let _ = output(shell);
}

/// Processes that have `mark` in their command line or title.
pub(super) fn processes_marked(mark: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc can be read").flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    let marked = |process: &u32| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        line.windows(mark.len()).any(|part| part == mark.as_bytes())
    };
    processes.filter(marked).collect()
}

/// Calls `attempt` until it returns a value or the time is over.
pub(super) fn poll<T>(timeout: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let value = attempt();
        if value.is_some() || began.elapsed() > timeout {
            return value;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A free port of loopback.
///
/// It is below the ports of outgoing connections. Otherwise a client that retries while the server is down could get
/// the server's own port and be connected to itself.
pub(super) fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "has not ended after 200ms")]
    fn a_program_that_hangs_is_killed() {
        let mut sleep = Command::new("sleep");
        sleep.arg("60");
        output_within(Duration::from_millis(200), sleep);
    }

    #[test]
    fn a_user_is_found_by_the_whole_name() {
        let users =
            "root:x:0:0::/root:/bin/sh\npostgres2:x:7:8:::\npostgres:x:101:104:PostgreSQL,,,:/:/bin/sh\n";
        assert_eq!(find_user(users, "postgres"), Some((101, 104)));
        assert_eq!(find_user(users, "post"), None);
    }
}
