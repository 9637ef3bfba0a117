//! Accepts connections and serves them. Limits keep idle, slow or numerous clients from blocking the others.

mod activity;
mod admission;
mod connection;
mod limits;
mod responder;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::activity::{Activity, Deadlines};
use self::admission::{Admission, ConnectionPermit, Pool};
use self::connection::{WatchedStream, run_connection};
pub use self::limits::{CONNECTIONS_MAX, ListenLimits};
use self::responder::Responder;
use crate::peer::PeerGroup;
use crate::request_body::BufferBudget;
use redrive_wire::Peer;

/// The maximum size of a request head, and of one read or write.
const HEAD_BYTES_MAX: u32 = 32 * 1024;
/// Concurrent requests on one HTTP/2 connection.
const STREAMS_MAX: u32 = 128;
/// Concurrent requests on one reserved HTTP/2 connection.
const RESERVED_STREAMS_MAX: u32 = 4;
/// Interval between pings of an HTTP/2 client, to notice that it is gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// The wait after a failed accept. Most likely the process has too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Serves connections until `closing` is cancelled, and then waits for the current requests.
pub(crate) async fn listen(
    listener: TcpListener,
    router: Router,
    limits: ListenLimits,
    closing: CancellationToken,
) {
    let server = Arc::new(Server {
        router,
        regular: builder(Pool::Regular),
        reserved: builder(Pool::Reserved),
        budget: BufferBudget::new(limits.buffered_bytes_max),
        limits: Arc::new(limits),
        closing,
    });
    let (admission, connections) = (Admission::new(&server.limits), TaskTracker::new());
    while let Some((stream, peer)) = accept(&listener, &server.closing).await {
        let permit = admission.admit(PeerGroup::of(peer));
        connections.spawn(server.clone().serve(stream, peer, permit));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

struct Server {
    router: Router,
    regular: Builder<TokioExecutor>,
    reserved: Builder<TokioExecutor>,
    budget: Arc<BufferBudget>,
    limits: Arc<ListenLimits>,
    closing: CancellationToken,
}

impl Server {
    async fn serve(self: Arc<Self>, stream: TcpStream, peer: Peer, permit: ConnectionPermit) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let activity = Activity::new(self.deadlines(permit.pool));
        let responder = Responder {
            router: self.router.clone(),
            peer,
            pool: permit.pool,
            activity: activity.clone(),
            limits: self.limits.clone(),
            budget: self.budget.clone(),
        };
        let service = service_fn(move |request| responder.clone().answer(request));
        let stream = TokioIo::new(WatchedStream::new(stream, activity.clone()));
        let builder = match permit.pool {
            Pool::Regular => &self.regular,
            Pool::Reserved => &self.reserved,
        };
        let connection = builder.serve_connection(stream, service);
        run_connection(connection, &activity, &permit.evicted, &self.closing).await;
    }

    fn deadlines(&self, pool: Pool) -> Deadlines {
        let limits = &self.limits;
        let (head, idle) = match pool {
            Pool::Regular => (limits.head_timeout, limits.idle_timeout),
            Pool::Reserved => (limits.reserved_head_timeout, limits.reserved_head_timeout),
        };
        Deadlines { head, idle, write: limits.write_timeout }
    }
}

fn builder(pool: Pool) -> Builder<TokioExecutor> {
    let (keep_alive, streams_max) = match pool {
        Pool::Regular => (true, STREAMS_MAX),
        Pool::Reserved => (false, RESERVED_STREAMS_MAX),
    };
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        // `run_connection` enforces the deadlines, from the first byte on.
        .header_read_timeout(None)
        .keep_alive(keep_alive)
        .max_buf_size(HEAD_BYTES_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .max_concurrent_streams(streams_max)
        .max_header_list_size(HEAD_BYTES_MAX);
    builder
}

/// The next connection; `None` once the service shuts down.
async fn accept(listener: &TcpListener, closing: &CancellationToken) -> Option<(TcpStream, Peer)> {
    let next = async {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => return (stream, Peer(address)),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    };
    tokio::select! {
        () = closing.cancelled() => None,
        next = next => Some(next),
    }
}
