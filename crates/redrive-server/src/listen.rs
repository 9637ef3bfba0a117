//! Takes connections and serves them, with limits that keep slow or many clients from shutting out the others.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Connections at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 10_000;
/// How long a client may take to send the head of a request, and how long a connection may be idle before the next one.
const HEAD_WITHIN: Duration = Duration::from_secs(75);
/// How long requests under way may take to end at a shutdown.
const REQUESTS_END: Duration = Duration::from_secs(10);
/// How long to wait after a connection could not be accepted: most likely there are too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves connections until `closing` is cancelled, then lets requests under way end.
pub(crate) async fn listen(listener: TcpListener, router: Router, closing: CancellationToken) {
    let (room, graceful) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), GracefulShutdown::new());
    let builder = builder();
    while let Some((stream, place)) = accept(&listener, &room, &closing).await {
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke");
            }
            drop(place);
        });
    }
    drop(listener);
    if timeout(REQUESTS_END, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in time and are dropped");
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(20));
    builder
}

/// The next connection with its place; none once the service closes.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
    closing: &CancellationToken,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let next = async {
        let place = room.clone().acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some((stream, place)),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    };
    let (stream, place) = tokio::select! {
        () = closing.cancelled() => return None,
        next = next => next?,
    };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection waits to fill its packets");
    }
    Some((stream, place))
}
