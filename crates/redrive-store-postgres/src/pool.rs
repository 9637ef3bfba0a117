//! Connections: a bounded number of them, each for one statement at a time, driven by the store's own thread.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_core::StoreError;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::enqueue::Query;
use crate::error::{Sorted, sort};

/// A parameter with its type. Types are sent along, so that a statement needs one round trip and no name, and a pooler may
/// send each to another connection.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Connections to one server.
#[derive(Debug)]
pub(crate) struct Pool {
    connect: Connect,
    permits: Semaphore,
    idle: Mutex<Vec<Client>>,
    /// How long a call may take, the wait for a connection included.
    patience: Duration,
}

/// How connections are made.
#[derive(Clone)]
pub(crate) struct Connect {
    pub(crate) config: Config,
    pub(crate) tls: MakeRustlsConnect,
    /// The store's own thread: it drives connections whatever the program's runtime is busy with.
    pub(crate) runtime: Handle,
}

impl std::fmt::Debug for Connect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connect").finish_non_exhaustive()
    }
}

impl Connect {
    async fn client(&self) -> Result<Client, StoreError> {
        let Self { config, tls, runtime } = self.clone();
        let connecting = self.runtime.spawn(async move {
            let (client, connection) = config.connect(tls).await?;
            // It ends with the client, or breaks, and then the client says so.
            runtime.spawn(async move { drop(connection.await) });
            Ok(client)
        });
        connecting.await.map_err(|error| StoreError::Failed(Box::new(error)))?.map_err(sort)
    }
}

impl Pool {
    pub(crate) fn new(connect: Connect, size: usize, patience: Duration) -> Arc<Self> {
        let idle = Mutex::default();
        Arc::new(Self { connect, permits: Semaphore::new(size), idle, patience })
    }

    /// Runs one statement. When it returns what the statement did is committed; when it fails without a word from the
    /// server, that is unknown.
    pub(crate) async fn query(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.with_patience(self.patience, async |client| client.query_typed(sql, parameters).await.sorted())
            .await
    }

    /// Runs several statements as one transaction: what fails leaves nothing behind. One that is given up on ends with its
    /// connection.
    pub(crate) async fn transaction<T>(
        &self,
        call: impl AsyncFnOnce(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // Each statement sees what was committed before it, whatever the server's default is.
        self.transaction_by("BEGIN ISOLATION LEVEL READ COMMITTED", call).await
    }

    /// Runs several reads on one snapshot.
    pub(crate) async fn snapshot<T>(
        &self,
        call: impl AsyncFnOnce(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.transaction_by("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", call).await
    }

    async fn transaction_by<T>(
        &self,
        begin: &str,
        call: impl AsyncFnOnce(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.with_patience(self.patience, async |client| {
            client.batch_execute(begin).await.sorted()?;
            let called = call(client).await;
            let end = if called.is_ok() { "COMMIT" } else { "ROLLBACK" };
            client.batch_execute(end).await.sorted()?;
            called
        })
        .await
    }

    /// Runs what needs one connection for several statements, with a patience of its own. A transaction that it begins
    /// it must end.
    pub(crate) async fn with_patience<T>(
        &self,
        patience: Duration,
        call: impl AsyncFnOnce(&Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let called = timeout(patience, async {
            let _permit =
                self.permits.acquire().await.map_err(|error| StoreError::Failed(Box::new(error)))?;
            let client = match self.take() {
                Some(client) => client,
                None => self.connect.client().await?,
            };
            let mut borrowed = Borrowed { pool: self, client: Some(client), sound: false };
            let result = match &borrowed.client {
                Some(client) => call(client).await,
                None => Err(StoreError::Failed("a connection was lost".into())),
            };
            borrowed.sound = true;
            result
        });
        called.await.unwrap_or_else(|_| {
            Err(StoreError::Unavailable(format!("the server did not answer within {patience:?}").into()))
        })
    }

    fn take(&self) -> Option<Client> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|client| !client.is_closed())
    }
}

/// A connection on loan. It comes back only after an answer: one that was given up on in the middle is closed, and the
/// server is asked to give up too.
struct Borrowed<'a> {
    pool: &'a Pool,
    client: Option<Client>,
    sound: bool,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        if client.is_closed() {
            return;
        }
        if self.sound {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        } else {
            let (token, tls) = (client.cancel_token(), self.pool.connect.tls.clone());
            self.pool.connect.runtime.spawn(async move {
                let _ = timeout(Duration::from_secs(5), token.cancel_query(tls)).await;
            });
        }
    }
}

impl Query for Pool {
    async fn typed(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, StoreError> {
        self.query(sql, parameters).await
    }
}

impl Query for Client {
    async fn typed(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, StoreError> {
        self.query_typed(sql, parameters).await.sorted()
    }
}
