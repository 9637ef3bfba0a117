//! What the tests share: one S3 server and one Postgres, and sites as processes in front of them.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use object_store::RetryConfig;
use object_store::aws::AmazonS3Builder;
use paste::objects::Objects;
use redrive::rusqlite::Connection;
use redrive::tokio_postgres::{self, NoTls};
use redrive_testkit::servers::{Postgres, Proxy, S3};
use tempfile::TempDir;

use crate::client::Client;

/// Longer than anything takes that works.
pub(crate) const SOON: Duration = Duration::from_secs(40);

/// How many blobs there are that no paste has.
pub(crate) const UNUSED_BLOBS: &str =
    "SELECT count(*) FROM blobs b WHERE NOT EXISTS (SELECT 1 FROM pastes p WHERE p.blob = b.id)";

static S3_SERVER: LazyLock<S3> = LazyLock::new(S3::start);
static POSTGRES: LazyLock<Postgres> = LazyLock::new(|| Postgres::start_with(&[("max_connections", "200")]));

/// A world of its own: a database, a bucket, and a way to that which can fail.
pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) database: String,
    pub(crate) bucket: String,
    pub(crate) proxy: Proxy,
}

impl World {
    pub(crate) fn on_sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = format!("sqlite:{}", folder.path().join("paste.db").display());
        Self::new(folder, database)
    }

    pub(crate) fn on_postgres() -> Self {
        let name = format!("paste_{:016x}", fastrand::u64(..));
        POSTGRES.create_database(&name);
        Self::new(tempfile::tempdir().unwrap(), POSTGRES.address_of(&name))
    }

    fn new(folder: TempDir, database: String) -> Self {
        let bucket = format!("b{:016x}", fastrand::u64(..));
        S3_SERVER.create_bucket(&bucket);
        Self { folder, database, bucket, proxy: Proxy::start(S3_SERVER.address()) }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.database.starts_with("postgres")
    }

    /// A process on it.
    pub(crate) fn start(&self, flags: &[&str]) -> Process {
        Process::start(self.command(flags))
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paste"));
        command.args(["--listen", "127.0.0.1:0", "--database", &self.database]);
        command.args(["--objects", &format!("s3://{}", self.bucket)]).args(flags);
        command.current_dir(self.folder.path());
        command.env("AWS_ENDPOINT_URL", format!("http://{}", self.proxy.address()));
        command.env("AWS_REGION", "us-east-1").env("RUST_LOG", "warn");
        command.env("AWS_ACCESS_KEY_ID", "any").env("AWS_SECRET_ACCESS_KEY", "any");
        command
    }

    /// The same way to the same bucket, for a site inside this process.
    pub(crate) fn objects_in_process(&self) -> Objects {
        // The first one counts, whichever test it is in.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = AmazonS3Builder::new()
            .with_endpoint(format!("http://{}", self.proxy.address()))
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_access_key_id("any")
            .with_secret_access_key("any")
            .with_bucket_name(&self.bucket)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .build();
        Objects::on(Arc::new(store.unwrap()), &format!("s3://{}", self.bucket), Duration::from_secs(8))
    }

    /// Runs a statement of the test's own, in the words of either database; a number of rows or the number it reads.
    pub(crate) async fn sql(&self, sql: &str) -> i64 {
        if let Some(file) = self.database.strip_prefix("sqlite:") {
            return sqlite(Path::new(file), sql);
        }
        let (client, connection) = tokio_postgres::connect(&self.database, NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("SET search_path = paste").await.unwrap();
        if sql.starts_with("SELECT") {
            return client.query_one(sql, &[]).await.unwrap().get(0);
        }
        client.execute(sql, &[]).await.unwrap() as i64
    }

    /// Waits until a statement reads a number.
    pub(crate) async fn until(&self, sql: &str, expected: i64) {
        let waited = tokio::time::timeout(SOON, async {
            while self.sql(sql).await != expected {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let read = self.sql(sql).await;
        waited.await.unwrap_or_else(|_| panic!("{sql} reads {read}, not {expected}"));
    }

    /// How many objects are in the bucket.
    pub(crate) async fn objects(&self) -> usize {
        let s3 = Client::new(&format!("http://{}", S3_SERVER.address()));
        let list = s3.get(&format!("/{}?list-type=2&max-keys=1000", self.bucket)).await;
        String::from_utf8_lossy(&list.body).matches("<Key>").count()
    }

    /// Waits until so many objects are in the bucket.
    pub(crate) async fn until_objects(&self, expected: usize) {
        let waited = tokio::time::timeout(SOON, async {
            while self.objects().await != expected {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let count = self.objects().await;
        waited.await.unwrap_or_else(|_| panic!("{count} objects are there, not {expected}"));
    }
}

fn sqlite(file: &Path, sql: &str) -> i64 {
    let connection = Connection::open(file).unwrap();
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    if sql.starts_with("SELECT") {
        return connection.query_row(sql, (), |row| row.get(0)).unwrap();
    }
    connection.execute(sql, ()).unwrap() as i64
}

/// A process of the site; it is killed with this value.
pub(crate) struct Process {
    child: Child,
    pub(crate) url: String,
}

impl Process {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("it says where it listens").unwrap();
        let url = line.split(' ').find(|word| word.starts_with("http://")).unwrap_or_default().to_owned();
        Self { child, url }
    }

    pub(crate) fn client(&self) -> Client {
        assert!(!self.url.is_empty(), "this process has no app in it");
        Client::new(&self.url)
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Text that no other test pastes.
pub(crate) fn text(about: &str) -> String {
    format!("{about} {:032x} \u{1F980}\n", fastrand::u128(..))
}

/// Each test for both databases.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() { super::$name(crate::stage::World::on_sqlite()).await; })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() { super::$name(crate::stage::World::on_postgres()).await; })*
        }
    };
}
pub(crate) use on_both;
