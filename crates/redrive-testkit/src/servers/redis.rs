//! A private Redis, which can be killed and started again, and a cluster of them.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use super::folder::Folder;
use super::process::{
    PATIENCE, command, find_program, free_port, look, mortal_command, printed, signal, spawn,
};

/// A Redis of its own in a temporary folder, on a free port of loopback; it ends with this value.
///
/// Its settings are those that Redis comes with, except that it keeps a log of its writes (`appendonly yes`) and takes no
/// snapshots.
pub struct Redis {
    folder: Folder,
    port: u16,
    settings: Vec<(String, String)>,
    running: Option<Child>,
}

impl Redis {
    /// Starts one and waits until it takes connections.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with more settings, such as `("appendfsync", "always")`.
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_in(&std::env::temp_dir(), settings)
    }

    /// Starts one with its files in a new folder inside `folder`.
    pub fn start_in(folder: &Path, settings: &[(&str, &str)]) -> Self {
        let own = [("appendonly", "yes"), ("save", "")];
        let settings =
            own.iter().chain(settings).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let folder = Folder::create("redis", folder);
        let mut server = Self { folder, port: 0, settings: settings.collect(), running: None };
        let begun = (0..10).any(|_| {
            server.port = free_port();
            server.launch()
        });
        assert!(begun, "every port is taken as soon as it is chosen:\n{}", server.log());
        server
    }

    /// Starts one with copies of the files of another, such as what a power cut has left of them.
    pub fn start_from(files: &Path, settings: &[(&str, &str)]) -> Self {
        let mut server = Self::start_with(settings);
        server.kill();
        let log = server.folder.join("appendonlydir");
        std::fs::remove_dir_all(&log).expect("a folder of our own can be removed");
        let mut copy = command("cp");
        copy.arg("-r").arg(files.join("appendonlydir")).arg(&log);
        printed(copy);
        server.restart();
        server
    }

    /// Where its files are.
    pub fn files(&self) -> &Path {
        self.folder.path()
    }

    /// Its URL.
    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port of 127.0.0.1 where it listens, the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs a command and returns what `redis-cli` prints for it.
    pub fn run(&self, words: &[&str]) -> String {
        let mut cli = command(program("redis-cli"));
        cli.args(["-p", &self.port.to_string(), "--raw"]).args(words);
        printed(cli)
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.running.take() {
            process.kill().expect("a process of ours can be killed");
            process.wait().expect("a process of ours can be waited for");
        }
    }

    /// Stops it from doing anything until [`Redis::thaw`].
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Starts it again on the same port with the same files, after it was killed if it still runs, and waits until it takes
    /// connections.
    pub fn restart(&mut self) {
        self.kill();
        let begun = look(PATIENCE, || self.launch().then_some(()));
        assert!(begun.is_some(), "its port is taken by another:\n{}", self.log());
    }

    /// What it has logged since its first start.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn signal(&self, name: &str) {
        if let Some(process) = &self.running {
            signal(process.id(), name);
        }
    }

    /// Starts it and waits until it answers; false if its port is taken.
    fn launch(&mut self) -> bool {
        let before = self.log().len();
        let log = OpenOptions::new().create(true).append(true).open(self.folder.join("log"));
        let log = log.expect("a folder of our own takes a file");
        let mut redis = mortal_command(&program("redis-server"), "KILL");
        redis.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--protected-mode", "no"]);
        redis.arg("--dir").arg(self.folder.path());
        for (name, value) in &self.settings {
            redis.arg(format!("--{name}")).arg(value);
        }
        redis.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        let process = self.running.insert(spawn(redis));
        let seen = look(PATIENCE, || match process.try_wait() {
            Ok(None) => answers(self.port).then_some(true),
            Ok(Some(_)) | Err(_) => Some(false),
        });
        let news = self.log().split_off(before);
        if seen != Some(true) {
            self.kill();
            assert!(news.contains("Address already in use"), "Redis does not start:\n{news}");
        }
        seen == Some(true)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A Redis Cluster of its own: primaries, and replicas of each if it has any.
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts a cluster of so many primaries, with so many replicas for each, and waits until it has agreed on its slots.
    pub fn start(primaries: usize, replicas: usize, settings: &[(&str, &str)]) -> Self {
        let own = [
            ("cluster-enabled", "yes"),
            ("cluster-node-timeout", "1500"),
            // A primary without replicas takes its slots down with it, and only those.
            ("cluster-require-full-coverage", "no"),
        ];
        let settings: Vec<(&str, &str)> = own.iter().chain(settings).copied().collect();
        let nodes: Vec<Redis> =
            (0..primaries * (1 + replicas)).map(|_| Redis::start_with(&settings)).collect();
        let cluster = Self { nodes };
        cluster.cli(|cli| {
            cli.arg("create").args(cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
            cli.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]);
        });
        cluster.await_agreement();
        cluster
    }

    /// Its URL, which names every node.
    pub fn address(&self) -> String {
        let more: Vec<String> =
            self.nodes[1..].iter().map(|node| format!("node=127.0.0.1:{}", node.port)).collect();
        format!("redis-cluster://127.0.0.1:{}?{}", self.nodes[0].port, more.join("&"))
    }

    /// A node; the primaries come first.
    pub fn node(&mut self, n: usize) -> &mut Redis {
        &mut self.nodes[n]
    }

    /// Moves so many slots from one primary to another while both serve.
    pub fn move_slots(&self, from: usize, to: usize, slots: usize) {
        let id = |n: usize| self.nodes[n].run(&["CLUSTER", "MYID"]);
        self.cli(|cli| {
            cli.args(["reshard", &format!("127.0.0.1:{}", self.nodes[0].port)]);
            cli.args(["--cluster-from", &id(from), "--cluster-to", &id(to)]);
            cli.args(["--cluster-slots", &slots.to_string(), "--cluster-yes"]);
        });
        self.await_agreement();
    }

    /// Waits until every node that runs sees every slot served.
    pub fn await_agreement(&self) {
        let agreed = look(PATIENCE, || {
            let running = self.nodes.iter().filter(|node| node.running.is_some());
            let infos: Vec<String> = running.map(|node| node.run(&["CLUSTER", "INFO"])).collect();
            let fine =
                |info: &String| info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384");
            infos.iter().all(fine).then_some(())
        });
        assert!(
            agreed.is_some(),
            "the cluster does not agree:\n{}",
            self.nodes[0].run(&["CLUSTER", "NODES"])
        );
    }

    fn cli(&self, words: impl FnOnce(&mut std::process::Command)) {
        let mut cli = command(program("redis-cli"));
        cli.arg("--cluster");
        words(&mut cli);
        printed(cli);
    }
}

/// Whether it has loaded its log and answers.
fn answers(port: u16) -> bool {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let patience = Some(Duration::from_secs(2));
    let mut answer = [0; 5];
    server.set_read_timeout(patience).is_ok()
        && server.write_all(b"PING\r\n").is_ok()
        && server.read_exact(&mut answer).is_ok()
        && answer.starts_with(b"+PONG")
}

fn program(name: &str) -> std::path::PathBuf {
    find_program(name).unwrap_or_else(|| panic!("there is no {name}: run `cargo xtask setup`"))
}
