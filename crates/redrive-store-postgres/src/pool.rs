//! A bounded number of connections, each for one statement at a time.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use redrive_core::StoreError;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Result};

/// A parameter with its type. A statement whose types are known needs one round trip and no name, so that a pooler may send each
/// one to another connection.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Connections to one server.
#[derive(Debug)]
pub(crate) struct Pool {
    connector: Connector,
    driver: Driver,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
    /// The maximum time that a call may take, including the wait for a connection.
    pub(crate) call_timeout: Duration,
}

/// The runtime that drives the connections of a pool.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Driver {
    /// The runtime of the call that opens the connection: long answers then need not pass from one thread to another.
    Caller,
    /// The store's own thread, which a busy program cannot delay.
    Store,
}

/// Makes connections.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) config: Config,
    pub(crate) tls: MakeRustlsConnect,
    /// The runtime of the store's own thread.
    pub(crate) runtime: Handle,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

impl Connector {
    async fn connect(&self, driver: Driver) -> Result<Connection> {
        let Self { config, tls, runtime } = self.clone();
        let runtime = match driver {
            Driver::Caller => Handle::current(),
            Driver::Store => runtime,
        };
        let connecting = runtime.clone().spawn(async move {
            let (client, connection) = config.connect(tls).await?;
            // The task ends with the client. If the connection breaks, the client reports it.
            runtime.spawn(async move { drop(connection.await) });
            Connection::new(client).await
        });
        connecting.await.map_err(Error::failed)?
    }
}

/// Begins a transaction whose statements see everything that was committed before them, whatever the default of the server is. The server
/// must not compile its statements, because it would do so anew for each call, which takes longer than most of them run.
pub(crate) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL jit = off";

/// A connection to a server.
#[derive(Debug)]
struct Connection {
    client: Client,
    /// Whether statements without BEGIN run at READ COMMITTED. At another level, concurrent claims and settlements would fail.
    is_read_committed: bool,
}

impl Connection {
    async fn new(client: Client) -> Result<Self> {
        let rows = client.query_typed("SHOW default_transaction_isolation", &[]).await?;
        let level: &str = rows.first().ok_or_else(Error::no_row)?.try_get(0)?;
        let is_read_committed = level == "read committed";
        Ok(Self { client, is_read_committed })
    }

    /// Runs one statement as a transaction, in one round trip, and calls `each` with every row as it arrives.
    async fn query(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        each: &mut (dyn FnMut(Row) -> Result<()> + Send),
    ) -> Result<()> {
        let Self { client, is_read_committed } = self;
        if *is_read_committed {
            return read_rows(client, sql, parameters, each).await;
        }
        // The client sends each when it is first polled, and does not wait for an answer before the next. If the statement fails, COMMIT rolls
        // back. Settings of the session would not work, because a pooler may send each transaction to another server process.
        let (begun, rows, ended) = tokio::join!(
            biased;
            client.batch_execute(BEGIN),
            read_rows(client, sql, parameters, each),
            client.batch_execute("COMMIT"),
        );
        begun?;
        rows?;
        Ok(ended?)
    }
}

async fn read_rows(
    client: &Client,
    sql: &str,
    parameters: &[Parameter<'_>],
    each: &mut (dyn FnMut(Row) -> Result<()> + Send),
) -> Result<()> {
    let parameters = parameters.iter().map(|(value, of_type)| (*value, of_type.clone()));
    let mut rows = pin!(client.query_typed_raw(sql, parameters).await?);
    while let Some(row) = rows.try_next().await? {
        each(row)?;
    }
    Ok(())
}

impl Pool {
    pub(crate) fn new(
        connector: Connector,
        driver: Driver,
        size: usize,
        call_timeout: Duration,
    ) -> Arc<Self> {
        let idle = Mutex::default();
        Arc::new(Self { connector, driver, permits: Semaphore::new(size), idle, call_timeout })
    }

    /// Runs one statement. On success its effects are committed. If the server does not answer, it is unknown whether they are.
    pub(crate) async fn query(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        self.query_each(sql, parameters, &mut |row| {
            rows.push(row);
            Ok(())
        })
        .await?;
        Ok(rows)
    }

    /// Runs one statement like [`Self::query`], and calls `each` with every row as it arrives. So a long answer need not be in memory as a
    /// whole. An error of `each` is returned, but does not undo the statement.
    pub(crate) async fn query_each(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        each: &mut (dyn FnMut(Row) -> Result<()> + Send),
    ) -> Result<()> {
        let call = async |connection: &Connection| connection.query(sql, parameters, each).await;
        self.with_connection(self.call_timeout, call).await
    }

    /// Runs several statements as one transaction, which is rolled back if the call fails. If the caller is dropped, the
    /// connection is closed, and the transaction ends with it.
    pub(crate) async fn transaction<T>(&self, call: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        self.transaction_with(BEGIN, call).await
    }

    /// Runs several reads in one snapshot.
    pub(crate) async fn snapshot<T>(&self, call: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        self.transaction_with("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", call).await
    }

    async fn transaction_with<T>(
        &self,
        begin: &str,
        call: impl AsyncFnOnce(&Client) -> Result<T>,
    ) -> Result<T> {
        self.with_timeout(self.call_timeout, async |client| {
            client.batch_execute(begin).await?;
            let called = call(client).await;
            let end = if called.is_ok() { "COMMIT" } else { "ROLLBACK" };
            client.batch_execute(end).await?;
            called
        })
        .await
    }

    /// Runs several statements on one connection, within `limit`. The call must end a transaction that it begins.
    pub(crate) async fn with_timeout<T>(
        &self,
        limit: Duration,
        call: impl AsyncFnOnce(&Client) -> Result<T>,
    ) -> Result<T> {
        self.with_connection(limit, async |connection| call(&connection.client).await).await
    }

    async fn with_connection<T>(
        &self,
        limit: Duration,
        call: impl AsyncFnOnce(&Connection) -> Result<T>,
    ) -> Result<T> {
        within(limit, async {
            let _permit = self.permits.acquire().await.map_err(Error::failed)?;
            let connection = match self.take() {
                Some(connection) => connection,
                None => self.connector.connect(self.driver).await?,
            };
            let mut borrowed = PooledConnection { pool: self, connection: Some(connection), is_clean: false };
            let result = match &borrowed.connection {
                Some(connection) => call(connection).await,
                None => Err(Error::failed("a connection was lost")),
            };
            borrowed.is_clean = true;
            result
        })
        .await
    }

    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|connection| !connection.client.is_closed())
    }
}

/// Makes a call. Fails if the server does not answer within `limit`.
pub(crate) async fn within<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    time::timeout(limit, call).await.unwrap_or_else(|_| {
        Err(StoreError::Unavailable(format!("the server did not answer within {limit:?}").into()).into())
    })
}

/// A connection in use. It returns to the pool only after an answer. If the caller is dropped in the middle of a statement, the
/// connection is closed, and the server is asked to cancel the statement.
struct PooledConnection<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
    is_clean: bool,
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let client = &connection.client;
        if client.is_closed() {
            return;
        }
        if self.is_clean {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        } else {
            let (token, tls) = (client.cancel_token(), self.pool.connector.tls.clone());
            self.pool.connector.runtime.spawn(async move {
                let _ = time::timeout(Duration::from_secs(5), token.cancel_query(tls)).await;
            });
        }
    }
}

/// Runs statements: a pool, a connection, or a transaction of the caller.
pub(crate) trait Executor {
    fn run(&self, sql: &str, parameters: &[Parameter<'_>]) -> impl Future<Output = Result<Vec<Row>>> + Send;
}

impl Executor for Pool {
    async fn run(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        self.query(sql, parameters).await
    }
}

impl Executor for Client {
    async fn run(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        Ok(self.query_typed(sql, parameters).await?)
    }
}
