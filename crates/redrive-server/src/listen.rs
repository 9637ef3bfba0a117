//! Takes connections and serves them, with limits that keep silent, slow or many clients from shutting out the others.

mod activity;
mod admission;
mod answer;
mod host;
mod limits;
mod response;
mod stream;
mod supervise;

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
use self::admission::{Admission, Place, Pool};
use self::answer::Responder;
pub use self::limits::{CONNECTIONS_MAX, ListenLimits};
use self::stream::WatchedStream;
use self::supervise::supervise;
use crate::peer::Peer;
use crate::request_body::BufferBudget;

/// Bytes of a request head, and of what is read or written at once.
const HEAD_BYTES_MAX: u32 = 32 * 1024;
/// Requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 128;
/// Requests at once on one reserved HTTP/2 connection.
const RESERVED_STREAMS_MAX: u32 = 4;
/// Time from one ping of an HTTP/2 client to the next, to notice that it is gone.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How long to wait after a connection could not be accepted: most likely there are too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves connections until `closing` is cancelled, then lets requests in flight end.
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
        let place = admission.admit(peer.group());
        connections.spawn(server.clone().serve(stream, peer, place));
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
    async fn serve(self: Arc<Self>, stream: TcpStream, peer: Peer, place: Place) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection waits to fill its packets");
        }
        let activity = Activity::new(self.deadlines(place.pool));
        let responder = Responder {
            router: self.router.clone(),
            peer,
            pool: place.pool,
            activity: activity.clone(),
            limits: self.limits.clone(),
            budget: self.budget.clone(),
        };
        let service = service_fn(move |request| responder.clone().answer(request));
        let stream = TokioIo::new(WatchedStream::new(stream, activity.clone()));
        let builder = match place.pool {
            Pool::Regular => &self.regular,
            Pool::Reserved => &self.reserved,
        };
        let connection = builder.serve_connection(stream, service);
        supervise(connection, &activity, &place.evicted, &self.closing).await;
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
        // The deadlines of a connection are kept from outside, from its first byte on.
        .header_read_timeout(None)
        .keep_alive(keep_alive)
        .max_buf_size(HEAD_BYTES_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .max_concurrent_streams(streams_max)
        .max_header_list_size(HEAD_BYTES_MAX);
    builder
}

/// The next connection; none once the service closes.
async fn accept(listener: &TcpListener, closing: &CancellationToken) -> Option<(TcpStream, Peer)> {
    let next = async {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => return (stream, Peer(address)),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    };
    tokio::select! {
        () = closing.cancelled() => None,
        next = next => Some(next),
    }
}
