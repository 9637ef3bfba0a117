//! The setup of the tests: one S3 server, one Postgres server, and sites as processes.

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

/// The timeout of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);

/// Counts the blobs that no paste has.
pub(crate) const UNUSED_BLOBS: &str =
    "SELECT count(*) FROM blobs b WHERE NOT EXISTS (SELECT 1 FROM pastes p WHERE p.blob = b.id)";

static S3_SERVER: LazyLock<S3> = LazyLock::new(S3::start);
static POSTGRES: LazyLock<Postgres> = LazyLock::new(|| Postgres::start_with(&[("max_connections", "200")]));

/// A database, a bucket, and a proxy to the bucket that can fail.
pub(crate) struct TestSite {
    pub(crate) folder: TempDir,
    pub(crate) database: String,
    pub(crate) bucket: String,
    pub(crate) proxy: Proxy,
}

impl TestSite {
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

    /// Starts a process of the site.
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

    /// The same bucket through the same proxy, for a site in this process.
    pub(crate) fn objects_in_process(&self) -> Objects {
        // The process installs the provider once. A later call fails and changes nothing.
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
        Objects::new(Arc::new(store.unwrap()), &format!("s3://{}", self.bucket), Duration::from_secs(8))
    }

    /// Runs a statement on either database. Returns the number of rows, or the number that it reads.
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

    /// Waits until a statement returns this number.
    pub(crate) async fn wait_for_count(&self, sql: &str, expected: i64) {
        let waited = tokio::time::timeout(TIMEOUT, async {
            while self.sql(sql).await != expected {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let read = self.sql(sql).await;
        waited.await.unwrap_or_else(|_| panic!("{sql} returned {read}, not {expected}"));
    }

    /// The number of objects in the bucket.
    pub(crate) async fn objects(&self) -> usize {
        let s3 = Client::new(&format!("http://{}", S3_SERVER.address()));
        let list = s3.get(&format!("/{}?list-type=2&max-keys=1000", self.bucket)).await;
        String::from_utf8_lossy(&list.body).matches("<Key>").count()
    }

    /// Waits until the bucket has this many objects.
    pub(crate) async fn wait_for_objects(&self, expected: usize) {
        let waited = tokio::time::timeout(TIMEOUT, async {
            while self.objects().await != expected {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let count = self.objects().await;
        waited.await.unwrap_or_else(|_| panic!("the bucket has {count} objects, not {expected}"));
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

/// A process of the site. Dropping this kills it.
pub(crate) struct Process {
    child: Child,
    pub(crate) url: String,
}

impl Process {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("the process prints its address").unwrap();
        let url = line.split(' ').find(|word| word.starts_with("http://")).unwrap_or_default().to_owned();
        Self { child, url }
    }

    pub(crate) fn client(&self) -> Client {
        assert!(!self.url.is_empty(), "this process does not have the role app");
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

/// A unique text.
pub(crate) fn text(label: &str) -> String {
    format!("{label} {:032x} \u{1F980}\n", fastrand::u128(..))
}

/// Defines each test for both databases.
macro_rules! on_both_databases {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() { super::$name(crate::setup::TestSite::on_sqlite()).await; })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() { super::$name(crate::setup::TestSite::on_postgres()).await; })*
        }
    };
}
pub(crate) use on_both_databases;
