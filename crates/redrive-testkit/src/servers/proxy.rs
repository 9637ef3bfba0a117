//! A TCP proxy that injects faults on demand.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a cut after a request waits for the answer of the server.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The largest chunk that is forwarded at once.
const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// A TCP proxy on loopback. It forwards everything until a method changes that, and ends with this value.
///
/// It runs on a thread and runtime of its own, so that tests may block or pause their time. A chunk is what it reads at
/// once: usually what the other side wrote at once.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    end: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts it in front of a server. The server need not run yet: the proxy resets connections that it cannot
    /// forward.
    pub fn start(to: SocketAddr) -> Self {
        let listener =
            std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        listener.set_nonblocking(true).expect("a listener can be non-blocking");
        let (state, end) = (Arc::new(State::new()), CancellationToken::new());
        let (thread_state, thread_end) = (Arc::clone(&state), end.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("the runtime starts");
            runtime.block_on(thread_end.run_until_cancelled(serve(listener, to, thread_state)));
        });
        Self { address, state, end, thread: Some(thread) }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resets every open connection before it returns. New connections work.
    pub fn cut(&self) {
        self.state.cut(None);
    }

    /// Resets open connections, and new ones as soon as they are accepted, until it is called with `false`.
    pub fn set_refusing(&self, refusing: bool) {
        if refusing {
            self.state.cut(Some(true));
        } else {
            lock(&self.state.accept).refuses = false;
        }
    }

    /// Forwards nothing in either direction until it is called with `false`. Connections stay open and hang.
    pub fn set_frozen(&self, frozen: bool) {
        self.state.conditions.send_modify(|conditions| conditions.frozen = frozen);
    }

    /// Delays each chunk in both directions.
    pub fn set_delay(&self, delay: Duration) {
        self.state.conditions.send_modify(|conditions| conditions.delay = delay);
    }

    /// Cuts a connection once, at the next chunk from a client that contains `needle`. The server gets the chunk and
    /// answers it, but both sides are reset before the client gets the answer, so the client cannot know the result. A
    /// later call replaces a planned cut.
    pub fn cut_after_request(&self, needle: &[u8]) {
        self.state.plan(needle, CutPoint::AfterRequest);
    }

    /// Like [`cut_after_request`](Self::cut_after_request), but the server does not get the chunk.
    pub fn cut_before_request(&self, needle: &[u8]) {
        self.state.plan(needle, CutPoint::BeforeRequest);
    }

    /// How many connections were accepted, including those that were reset at once.
    pub fn accepted_connections(&self) -> u64 {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// Answers every chunk from a client with these bytes instead of the server's, and closes its connection, until it
    /// is called with `None`.
    pub fn answer_instead(&self, answer: Option<&[u8]>) {
        *lock(&self.state.answer) = answer.map(<[u8]>::to_vec);
    }

    /// How many connections were cut at a request.
    pub fn requests_cut(&self) -> u64 {
        self.state.requests_cut.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The settings of the proxy, and its counters.
struct State {
    accept: Mutex<AcceptState>,
    conditions: watch::Sender<LinkConditions>,
    planned: Mutex<Option<(Vec<u8>, CutPoint)>>,
    answer: Mutex<Option<Vec<u8>>>,
    requests_cut: AtomicU64,
    accepted: AtomicU64,
}

struct AcceptState {
    refuses: bool,
    connections: ConnectionGroup,
}

#[derive(Clone, Copy)]
struct LinkConditions {
    frozen: bool,
    delay: Duration,
}

#[derive(Clone, Copy)]
enum CutPoint {
    BeforeRequest,
    AfterRequest,
}

impl State {
    fn new() -> Self {
        Self {
            accept: Mutex::new(AcceptState { refuses: false, connections: ConnectionGroup::new() }),
            conditions: watch::Sender::new(LinkConditions { frozen: false, delay: Duration::ZERO }),
            planned: Mutex::new(None),
            answer: Mutex::new(None),
            requests_cut: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
        }
    }

    fn plan(&self, needle: &[u8], cut: CutPoint) {
        assert!(!needle.is_empty(), "every chunk contains an empty needle");
        *lock(&self.planned) = Some((needle.to_owned(), cut));
    }

    /// Takes the cut that is planned for this chunk, if any.
    fn take_planned(&self, chunk: &[u8]) -> Option<CutPoint> {
        let mut planned = lock(&self.planned);
        let matches = |(needle, _): &mut (Vec<u8>, CutPoint)| {
            chunk.windows(needle.len()).any(|part| part == needle.as_slice())
        };
        planned.take_if(matches).map(|(_, cut)| cut)
    }

    fn cut(&self, refuses: Option<bool>) {
        let mut accept = lock(&self.accept);
        accept.refuses = refuses.unwrap_or(accept.refuses);
        let open = std::mem::replace(&mut accept.connections, ConnectionGroup::new());
        // The lock is released, because new connections need it meanwhile.
        drop(accept);
        open.end();
    }

    fn admit(&self) -> Option<OpenConnection> {
        let accept = lock(&self.accept);
        (!accept.refuses).then(|| accept.connections.join())
    }

    /// Waits for the delay of a chunk, and then until the proxy is not frozen.
    async fn delay_chunk(&self) {
        let mut conditions = self.conditions.subscribe();
        let delay = conditions.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        // The sender lives in `self`.
        let _ = conditions.wait_for(|conditions| !conditions.frozen).await;
    }
}

/// The connections that the next cut resets.
struct ConnectionGroup {
    cut: CancellationToken,
    open: mpsc::Sender<()>,
    closed: mpsc::Receiver<()>,
}

/// What a connection holds while it is open.
struct OpenConnection {
    cut: CancellationToken,
    _open: mpsc::Sender<()>,
}

impl ConnectionGroup {
    fn new() -> Self {
        let (open, closed) = mpsc::channel();
        Self { cut: CancellationToken::new(), open, closed }
    }

    fn join(&self) -> OpenConnection {
        OpenConnection { cut: self.cut.clone(), _open: self.open.clone() }
    }

    /// Cuts every connection and waits until each is closed.
    fn end(self) {
        self.cut.cancel();
        drop(self.open);
        // No message is ever sent: this returns when the last sender is dropped.
        let _ = self.closed.recv();
    }
}

async fn serve(listener: std::net::TcpListener, to: SocketAddr, state: Arc<State>) {
    let listener = TcpListener::from_std(listener).expect("the listener can be registered with the runtime");
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        state.accepted.fetch_add(1, Ordering::SeqCst);
        match state.admit() {
            Some(open) => drop(tokio::spawn(connect(client, to, Arc::clone(&state), open))),
            None => reset(client),
        }
    }
}

async fn connect(mut client: TcpStream, to: SocketAddr, state: Arc<State>, open: OpenConnection) {
    let server = open.cut.run_until_cancelled(TcpStream::connect(to)).await;
    let Some(Ok(mut server)) = server else { return reset(client) };
    // Small chunks must not wait for each other.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let end = open.cut.run_until_cancelled(forward(&mut client, &mut server, &state)).await;
    if end != Some(Ending::Closed) {
        reset(client);
        reset(server);
    }
}

/// How a connection ends.
#[derive(PartialEq)]
enum Ending {
    /// The server has closed it, and the client has received everything.
    Closed,
    /// One side has failed, or the connection was cut.
    Broken,
    /// Cut at a request, which the server must still receive.
    Requested(Vec<u8>),
    /// The client gets an answer that is not from the server.
    Answered(Vec<u8>),
}

async fn forward(client: &mut TcpStream, server: &mut TcpStream, state: &State) -> Ending {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let end = tokio::select! {
        end = forward_requests(from_client, to_server, state) => end,
        end = forward_answers(from_server, to_client, state) => end,
    };
    let chunk = match end {
        Ending::Requested(chunk) => chunk,
        Ending::Answered(answer) => return reply(client, &answer).await,
        Ending::Closed | Ending::Broken => return end,
    };
    // From here on, answers are not forwarded.
    if server.write_all(&chunk).await.is_ok() {
        let _ = tokio::time::timeout(ANSWER_MAX, server.read(&mut [0])).await;
    }
    state.requests_cut.fetch_add(1, Ordering::SeqCst);
    Ending::Broken
}

/// Answers and closes. Reads what the client still sends, because the client would otherwise see a reset instead of the
/// answer.
async fn reply(client: &mut TcpStream, answer: &[u8]) -> Ending {
    if client.write_all(answer).await.is_err() || client.shutdown().await.is_err() {
        return Ending::Broken;
    }
    let mut rest = vec![0; CHUNK_BYTES_MAX];
    let drain = async { while client.read(&mut rest).await.is_ok_and(|length| length > 0) {} };
    let _ = tokio::time::timeout(ANSWER_MAX, drain).await;
    Ending::Closed
}

async fn forward_requests(mut client: ReadHalf<'_>, mut server: WriteHalf<'_>, state: &State) -> Ending {
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    loop {
        let Ok(length) = client.read(&mut buffer).await else { return Ending::Broken };
        state.delay_chunk().await;
        let chunk = &buffer[..length];
        let answer = lock(&state.answer).clone();
        if let Some(answer) = answer.filter(|_| length > 0) {
            return Ending::Answered(answer);
        }
        match state.take_planned(chunk) {
            Some(CutPoint::AfterRequest) => return Ending::Requested(chunk.to_owned()),
            Some(CutPoint::BeforeRequest) => {
                state.requests_cut.fetch_add(1, Ordering::SeqCst);
                return Ending::Broken;
            }
            None if chunk.is_empty() => {
                let _ = server.shutdown().await;
                // The server may still send something.
                return std::future::pending().await;
            }
            None if server.write_all(chunk).await.is_err() => return Ending::Broken,
            None => {}
        }
    }
}

async fn forward_answers(mut server: ReadHalf<'_>, mut client: WriteHalf<'_>, state: &State) -> Ending {
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    loop {
        let Ok(length) = server.read(&mut buffer).await else { return Ending::Broken };
        state.delay_chunk().await;
        if length == 0 {
            let _ = client.shutdown().await;
            return Ending::Closed;
        }
        if client.write_all(&buffer[..length]).await.is_err() {
            return Ending::Broken;
        }
    }
}

/// Closes a connection so that the other side sees a reset, not an end of the stream.
fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
