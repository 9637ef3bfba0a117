//! Starting the programs of servers, as an account that they accept, so that none outlives the tests.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

/// More than anything here needs on a busy machine, and less than a person waits.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The user and group that run servers in place of root, which they refuse; nobody where the tests do not run as root.
pub(super) fn account() -> Option<(u32, u32)> {
    static ACCOUNT: LazyLock<Option<(u32, u32)>> = LazyLock::new(|| {
        (me() == 0).then(|| {
            let users = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd can be read");
            find_user(&users, "postgres").expect("there is no user postgres: run `cargo xtask setup`")
        })
    });
    *ACCOUNT
}

/// The user that runs servers.
pub(super) fn user() -> u32 {
    account().map_or_else(me, |(user, _)| user)
}

fn me() -> u32 {
    std::fs::metadata("/proc/self").expect("servers for tests need Linux: there is no /proc").uid()
}

fn find_user(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut numbers = line.split(':').skip(2).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A program on the path or in a folder that is on root's path alone.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// A program run by the account of servers, with nothing of this environment that would configure it.
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

/// Like [`command`], for a program that gets `signal` when this process ends before it, in whatever way.
pub(super) fn mortal_command(program: &Path, signal: &str) -> Command {
    mortal(program, signal, |program| command(program))
}

/// Like [`mortal_command`], run by this process' own account.
pub(super) fn own_mortal_command(program: &Path, signal: &str) -> Command {
    let mut command = mortal(program, signal, |program| Command::new(program));
    command.current_dir("/").stdin(Stdio::null());
    command
}

fn mortal(program: &Path, signal: &str, command: impl Fn(&Path) -> Command) -> Command {
    match find_program("setpriv") {
        Some(setpriv) => {
            let mut command = command(&setpriv);
            command.args(["--pdeathsig", signal, "--"]).arg(program);
            command
        }
        None => command(program),
    }
}

/// Starts a process from a thread that never ends: the signal of [`mortal_command`] comes at the end of the thread
/// that started it, and the thread of a test ends before a server that several tests share.
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

/// Runs a program to its end.
pub(super) fn output(mut command: Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("{command:?} does not start: {e}"))
}

/// What a program prints; its complaint ends the test.
pub(super) fn printed(command: Command) -> String {
    let shown = format!("{command:?}");
    let output = output(command);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown} failed, {}:\n{complaint}", output.status);
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Sends a signal. The shell does it, since the standard library can only kill.
pub(super) fn signal(process: u32, name: &str) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "kill -s \"$1\" \"$2\"", "sh", name, &process.to_string()]);
    // It fails only when the process has ended before.
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

/// Looks again and again until there is something to see, or patience ends.
pub(super) fn look<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let seen = look();
        if seen.is_some() || began.elapsed() > patience {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A port of loopback where nothing listens now.
///
/// Below those that the system gives to outgoing connections: while a server is down, a client that tries again could
/// otherwise be given its port, and be connected to itself.
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
    fn a_user_is_found_by_the_whole_name() {
        let users =
            "root:x:0:0::/root:/bin/sh\npostgres2:x:7:8:::\npostgres:x:101:104:PostgreSQL,,,:/:/bin/sh\n";
        assert_eq!(find_user(users, "postgres"), Some((101, 104)));
        assert_eq!(find_user(users, "post"), None);
    }
}
