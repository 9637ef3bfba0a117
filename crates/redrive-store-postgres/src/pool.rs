//! A bounded number of connections, each for one statement at a time, driven by the store's own thread.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    permits: Semaphore,
    idle: Mutex<Vec<Client>>,
    /// The maximum time that a call may take, including the wait for a connection.
    pub(crate) call_timeout: Duration,
}

/// Makes connections.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) config: Config,
    pub(crate) tls: MakeRustlsConnect,
    /// The runtime of the store's own thread, which a busy program cannot delay.
    pub(crate) runtime: Handle,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

impl Connector {
    async fn connect(&self) -> Result<Client> {
        let Self { config, tls, runtime } = self.clone();
        let connecting = self.runtime.spawn(async move {
            let (client, connection) = config.connect(tls).await?;
            // The task ends with the client. If the connection breaks, the client reports it.
            runtime.spawn(async move { drop(connection.await) });
            Ok(client)
        });
        connecting.await.map_err(Error::failed)?
    }
}

impl Pool {
    pub(crate) fn new(connector: Connector, size: usize, call_timeout: Duration) -> Arc<Self> {
        let idle = Mutex::default();
        Arc::new(Self { connector, permits: Semaphore::new(size), idle, call_timeout })
    }

    /// Runs one statement. On success its effects are committed. If the server does not answer, it is unknown whether they are.
    pub(crate) async fn query(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        self.with_timeout(self.call_timeout, async |client| Ok(client.query_typed(sql, parameters).await?))
            .await
    }

    /// Runs several statements as one transaction, which is rolled back if the call fails. If the caller is dropped, the
    /// connection is closed, and the transaction ends with it.
    pub(crate) async fn transaction<T>(&self, call: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        // Each statement sees everything that was committed before it, whatever the default of the server is.
        self.transaction_with("BEGIN ISOLATION LEVEL READ COMMITTED", call).await
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
        within(limit, async {
            let _permit = self.permits.acquire().await.map_err(Error::failed)?;
            let client = match self.take() {
                Some(client) => client,
                None => self.connector.connect().await?,
            };
            let mut borrowed = PooledConnection { pool: self, client: Some(client), is_clean: false };
            let result = match &borrowed.client {
                Some(client) => call(client).await,
                None => Err(Error::failed("a connection was lost")),
            };
            borrowed.is_clean = true;
            result
        })
        .await
    }

    fn take(&self) -> Option<Client> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|client| !client.is_closed())
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
    client: Option<Client>,
    is_clean: bool,
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        if client.is_closed() {
            return;
        }
        if self.is_clean {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
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
