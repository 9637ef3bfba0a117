//! A private Redis that can be killed and restarted, and a cluster of them.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use super::folder::Folder;
use super::process::{
    WAIT_MAX, command, dependent_command, find_program, free_port, output, poll, signal, spawn, stdout_of,
};

/// A private Redis in a temporary folder, on a free port of loopback. It ends with this value.
///
/// It has the default settings of Redis, except that it writes an append-only file (`appendonly yes`) and takes no
/// snapshots.
pub struct Redis {
    folder: Folder,
    port: u16,
    settings: Vec<(String, String)>,
    running: Option<Child>,
}

impl Redis {
    /// Starts it and waits until it accepts connections.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it with settings, such as `("appendfsync", "always")`.
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_in(&std::env::temp_dir(), settings)
    }

    /// Starts it with its files in a new folder inside `folder`.
    pub fn start_in(folder: &Path, settings: &[(&str, &str)]) -> Self {
        let own = [("appendonly", "yes"), ("save", "")];
        let settings =
            own.iter().chain(settings).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let folder = Folder::create("redis", folder);
        let mut server = Self { folder, port: 0, settings: settings.collect(), running: None };
        let started = (0..10).any(|_| {
            server.port = free_port();
            server.launch()
        });
        assert!(started, "every port is taken as soon as it is chosen:\n{}", server.log());
        server
    }

    /// Starts it with copies of the files of another server, for example those that a power cut left behind.
    pub fn start_from(files: &Path, settings: &[(&str, &str)]) -> Self {
        let mut server = Self::start_with(settings);
        server.kill();
        let log = server.folder.join("appendonlydir");
        std::fs::remove_dir_all(&log).expect("the folder of the server can be removed");
        let mut copy = command("cp");
        copy.arg("-r").arg(files.join("appendonlydir")).arg(&log);
        stdout_of(copy);
        server.restart();
        server
    }

    /// The folder of its files.
    pub fn files(&self) -> &Path {
        self.folder.path()
    }

    /// Its URL.
    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port on 127.0.0.1, which stays the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs a command and returns what `redis-cli` prints for it.
    pub fn run(&self, words: &[&str]) -> String {
        let mut cli = command(program("redis-cli"));
        cli.args(["-p", &self.port.to_string(), "--raw"]).args(words);
        stdout_of(cli)
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.running.take() {
            process.kill().expect("the server process can be killed");
            process.wait().expect("the server process can be waited for");
        }
    }

    /// Suspends its process until [`Redis::thaw`].
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Continues its process.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Restarts it on the same port with the same files, and waits until it accepts connections. Kills it first if it
    /// still runs.
    pub fn restart(&mut self) {
        self.kill();
        let started = poll(WAIT_MAX, || self.launch().then_some(()));
        assert!(started.is_some(), "another process uses its port:\n{}", self.log());
    }

    /// Its log since the first start.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Changes a setting now and for later restarts.
    fn set(&mut self, name: &str, value: &str) {
        self.run(&["CONFIG", "SET", name, value]);
        self.settings.retain(|(other, _)| other != name);
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    fn signal(&self, name: &str) {
        if let Some(process) = &self.running {
            signal(process.id(), name);
        }
    }

    /// Starts it and waits until it answers; false if its port is in use.
    fn launch(&mut self) -> bool {
        let before = self.log().len();
        let log = OpenOptions::new().create(true).append(true).open(self.folder.join("log"));
        let log = log.expect("the log can be created");
        let mut redis = dependent_command(&program("redis-server"), "KILL");
        redis.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--protected-mode", "no"]);
        redis.arg("--dir").arg(self.folder.path());
        for (name, value) in &self.settings {
            redis.arg(format!("--{name}")).arg(value);
        }
        redis.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        let process = self.running.insert(spawn(redis));
        let ready = poll(WAIT_MAX, || match process.try_wait() {
            Ok(None) => answers(self.port).then_some(true),
            Ok(Some(_)) | Err(_) => Some(false),
        });
        let new_log = self.log().split_off(before);
        if ready != Some(true) {
            self.kill();
            assert!(new_log.contains("Address already in use"), "Redis does not start:\n{new_log}");
        }
        ready == Some(true)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The setting for the time in ms after which the nodes of a cluster give up on one of them.
const NODE_TIMEOUT: &str = "cluster-node-timeout";

/// A private Redis Cluster with primaries, and optionally replicas of each.
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts a cluster and waits until its nodes agree on the hash slots. Each primary gets this number of replicas.
    pub fn start(primaries: usize, replicas: usize, settings: &[(&str, &str)]) -> Self {
        let own = [
            ("cluster-enabled", "yes"),
            // redis-cli introduces the nodes to each other once and then waits for ever. An introduction expires after this time, so
            // on a busy machine a short time would make the cluster incomplete for good.
            (NODE_TIMEOUT, "60000"),
            // If a primary without replicas is down, only its own slots are unavailable.
            ("cluster-require-full-coverage", "no"),
        ];
        let settings: Vec<(&str, &str)> = own.iter().chain(settings).copied().collect();
        let nodes: Vec<Redis> =
            (0..primaries * (1 + replicas)).map(|_| Redis::start_with(&settings)).collect();
        let mut cluster = Self { nodes };
        cluster.cli(|cli| {
            cli.arg("create").args(cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
            cli.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]);
        });
        cluster.await_agreement();
        // Replicas take over soon after their primary has failed.
        cluster.nodes.iter_mut().for_each(|node| node.set(NODE_TIMEOUT, "1500"));
        cluster
    }

    /// Its URL, which lists every node.
    pub fn address(&self) -> String {
        let more: Vec<String> =
            self.nodes[1..].iter().map(|node| format!("node=127.0.0.1:{}", node.port)).collect();
        format!("redis-cluster://127.0.0.1:{}?{}", self.nodes[0].port, more.join("&"))
    }

    /// A node; the primaries come first.
    pub fn node(&mut self, n: usize) -> &mut Redis {
        &mut self.nodes[n]
    }

    /// Moves this number of slots from one primary to another while both serve.
    pub fn move_slots(&self, from: usize, to: usize, slots: usize) {
        self.await_consistency();
        let id = |n: usize| self.nodes[n].run(&["CLUSTER", "MYID"]);
        self.cli(|cli| {
            cli.args(["reshard", &format!("127.0.0.1:{}", self.nodes[0].port)]);
            cli.args(["--cluster-from", &id(from), "--cluster-to", &id(to)]);
            cli.args(["--cluster-slots", &slots.to_string(), "--cluster-yes"]);
        });
        self.await_agreement();
    }

    /// Waits until every running node reports that all slots are served.
    pub fn await_agreement(&self) {
        let agreed = poll(WAIT_MAX, || {
            let running = self.nodes.iter().filter(|node| node.running.is_some());
            let infos: Vec<String> = running.map(|node| node.run(&["CLUSTER", "INFO"])).collect();
            let agrees =
                |info: &String| info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384");
            infos.iter().all(agrees).then_some(())
        });
        assert!(
            agreed.is_some(),
            "the cluster does not agree:\n{}",
            self.nodes[0].run(&["CLUSTER", "NODES"])
        );
    }

    /// Waits until redis-cli finds no problem. All nodes must run. After a restart, they may disagree for a while about who serves a slot,
    /// although each of them reports that all slots are served.
    fn await_consistency(&self) {
        let mut problems = String::new();
        let consistent = poll(WAIT_MAX, || {
            let mut check = command(program("redis-cli"));
            check.args(["--cluster", "check", &format!("127.0.0.1:{}", self.nodes[0].port)]);
            let checked = output(check);
            problems = String::from_utf8_lossy(&checked.stdout).into_owned();
            checked.status.success().then_some(())
        });
        assert!(consistent.is_some(), "the cluster stays inconsistent:\n{problems}");
    }

    fn cli(&self, words: impl FnOnce(&mut std::process::Command)) {
        let mut cli = command(program("redis-cli"));
        cli.arg("--cluster");
        words(&mut cli);
        stdout_of(cli);
    }
}

/// Whether the server on this port has loaded its file and answers.
fn answers(port: u16) -> bool {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let read_timeout = Some(Duration::from_secs(2));
    let mut answer = [0; 5];
    server.set_read_timeout(read_timeout).is_ok()
        && server.write_all(b"PING\r\n").is_ok()
        && server.read_exact(&mut answer).is_ok()
        && answer.starts_with(b"+PONG")
}

fn program(name: &str) -> std::path::PathBuf {
    find_program(name).unwrap_or_else(|| panic!("there is no {name}: run `cargo xtask setup`"))
}
