//! A way to a server that breaks on demand.

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

/// How long a cut after a request waits for the server to answer it.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// The most that is passed on in one piece.
const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// A TCP proxy on loopback that passes everything on until it is told otherwise; it ends with this value.
///
/// It runs on a thread of its own with a clock of its own, so that tests may block or pause time beside it. A chunk is
/// what it reads at once: usually what the other side wrote at once.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    end: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts one in front of a server, which need not be there yet: a connection that cannot be passed on is reset.
    pub fn start(to: SocketAddr) -> Self {
        let listener =
            std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        listener.set_nonblocking(true).expect("a listener need not block");
        let (state, end) = (Arc::new(State::new()), CancellationToken::new());
        let (served, ended) = (Arc::clone(&state), end.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a thread can have a runtime");
            runtime.block_on(ended.run_until_cancelled(serve(listener, to, served)));
        });
        Self { address, state, end, thread: Some(thread) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resets every open connection; new ones work. All are reset when this returns.
    pub fn cut(&self) {
        self.state.cut(None);
    }

    /// Resets open connections, and new ones as soon as they are accepted, until it is told otherwise.
    pub fn refuse(&self, yes: bool) {
        if yes {
            self.state.cut(Some(true));
        } else {
            lock(&self.state.door).refuses = false;
        }
    }

    /// Passes nothing on, either way, until it is told otherwise: connections stay open, new ones too, and hang.
    pub fn freeze(&self, yes: bool) {
        self.state.weather.send_modify(|weather| weather.frozen = yes);
    }

    /// Holds back each chunk for so long, either way.
    pub fn delay(&self, delay: Duration) {
        self.state.weather.send_modify(|weather| weather.delay = delay);
    }

    /// Cuts a connection once, at the next chunk from a client that contains `needle`: the server gets the chunk and
    /// answers it, and both sides are reset before the client sees anything of that. What became of its request, the
    /// client cannot know. A later call takes the place of an earlier one that has not happened yet.
    pub fn cut_after_request(&self, needle: &[u8]) {
        self.state.plan(needle, Cut::AfterRequest);
    }

    /// Like [`cut_after_request`](Self::cut_after_request), but the server does not get the chunk.
    pub fn cut_before_request(&self, needle: &[u8]) {
        self.state.plan(needle, Cut::BeforeRequest);
    }

    /// How many connections were accepted, those too that were reset at once.
    pub fn accepted(&self) -> u64 {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// Answers every chunk from a client with these bytes in the server's place and closes its connection, until it is
    /// told otherwise.
    pub fn answer(&self, answer: Option<&[u8]>) {
        *lock(&self.state.answer) = answer.map(<[u8]>::to_vec);
    }

    /// How many cuts at a request there have been.
    pub fn faults(&self) -> u64 {
        self.state.faults.load(Ordering::SeqCst)
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

/// What the proxy has been told, and what has come of it.
struct State {
    door: Mutex<Door>,
    weather: watch::Sender<Weather>,
    planned: Mutex<Option<(Vec<u8>, Cut)>>,
    answer: Mutex<Option<Vec<u8>>>,
    faults: AtomicU64,
    accepted: AtomicU64,
}

struct Door {
    refuses: bool,
    generation: Generation,
}

#[derive(Clone, Copy)]
struct Weather {
    frozen: bool,
    delay: Duration,
}

#[derive(Clone, Copy)]
enum Cut {
    BeforeRequest,
    AfterRequest,
}

impl State {
    fn new() -> Self {
        Self {
            door: Mutex::new(Door { refuses: false, generation: Generation::new() }),
            weather: watch::Sender::new(Weather { frozen: false, delay: Duration::ZERO }),
            planned: Mutex::new(None),
            answer: Mutex::new(None),
            faults: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
        }
    }

    fn plan(&self, needle: &[u8], cut: Cut) {
        assert!(!needle.is_empty(), "every chunk contains an empty needle");
        *lock(&self.planned) = Some((needle.to_owned(), cut));
    }

    /// The cut that is planned for this chunk, if any. It is planned no longer.
    fn take_planned(&self, chunk: &[u8]) -> Option<Cut> {
        let mut planned = lock(&self.planned);
        let matches = |(needle, _): &mut (Vec<u8>, Cut)| {
            chunk.windows(needle.len()).any(|part| part == needle.as_slice())
        };
        planned.take_if(matches).map(|(_, cut)| cut)
    }

    fn cut(&self, refuses: Option<bool>) {
        let mut door = lock(&self.door);
        door.refuses = refuses.unwrap_or(door.refuses);
        let open = std::mem::replace(&mut door.generation, Generation::new());
        // Connections that come meanwhile need the door.
        drop(door);
        open.end();
    }

    fn admit(&self) -> Option<Member> {
        let door = lock(&self.door);
        (!door.refuses).then(|| door.generation.join())
    }

    /// Waits for as long as a chunk is to be held back.
    async fn hold(&self) {
        let mut weather = self.weather.subscribe();
        let delay = weather.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        // The sender lives in `self`.
        let _ = weather.wait_for(|weather| !weather.frozen).await;
    }
}

/// The connections between two cuts.
struct Generation {
    cut: CancellationToken,
    open: mpsc::Sender<()>,
    closed: mpsc::Receiver<()>,
}

/// What a connection holds for as long as it is open.
struct Member {
    cut: CancellationToken,
    _open: mpsc::Sender<()>,
}

impl Generation {
    fn new() -> Self {
        let (open, closed) = mpsc::channel();
        Self { cut: CancellationToken::new(), open, closed }
    }

    fn join(&self) -> Member {
        Member { cut: self.cut.clone(), _open: self.open.clone() }
    }

    /// Cuts every member and waits until each is closed.
    fn end(self) {
        self.cut.cancel();
        drop(self.open);
        // Nobody sends: this returns when the last sender is gone.
        let _ = self.closed.recv();
    }
}

async fn serve(listener: std::net::TcpListener, to: SocketAddr, state: Arc<State>) {
    let listener = TcpListener::from_std(listener).expect("a runtime takes a listener");
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        state.accepted.fetch_add(1, Ordering::SeqCst);
        match state.admit() {
            Some(member) => drop(tokio::spawn(carry(client, to, Arc::clone(&state), member))),
            None => reset(client),
        }
    }
}

async fn carry(mut client: TcpStream, to: SocketAddr, state: Arc<State>, member: Member) {
    let server = member.cut.run_until_cancelled(TcpStream::connect(to)).await;
    let Some(Ok(mut server)) = server else { return reset(client) };
    // Small answers are not to wait for each other here as well.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let end = member.cut.run_until_cancelled(converse(&mut client, &mut server, &state)).await;
    if end != Some(End::Closed) {
        reset(client);
        reset(server);
    }
}

/// How a conversation ends.
#[derive(PartialEq)]
enum End {
    /// The server has closed it, and the client has all that it said.
    Closed,
    Broken,
    /// A cut at a request, which the server still has to get.
    Requested(Vec<u8>),
    /// A client that gets an answer which is not the server's.
    Answered(Vec<u8>),
}

async fn converse(client: &mut TcpStream, server: &mut TcpStream, state: &State) -> End {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let end = tokio::select! {
        end = carry_requests(from_client, to_server, state) => end,
        end = carry_answers(from_server, to_client, state) => end,
    };
    let chunk = match end {
        End::Requested(chunk) => chunk,
        End::Answered(answer) => return reply(client, &answer).await,
        End::Closed | End::Broken => return end,
    };
    // From here on nobody carries answers.
    if server.write_all(&chunk).await.is_ok() {
        let _ = tokio::time::timeout(ANSWER_PATIENCE, server.read(&mut [0])).await;
    }
    state.faults.fetch_add(1, Ordering::SeqCst);
    End::Broken
}

/// Answers and closes. What the client still sends is read, since it would otherwise see a reset and no answer.
async fn reply(client: &mut TcpStream, answer: &[u8]) -> End {
    if client.write_all(answer).await.is_err() || client.shutdown().await.is_err() {
        return End::Broken;
    }
    let mut rest = vec![0; CHUNK_BYTES_MAX];
    let drain = async { while client.read(&mut rest).await.is_ok_and(|length| length > 0) {} };
    let _ = tokio::time::timeout(ANSWER_PATIENCE, drain).await;
    End::Closed
}

async fn carry_requests(mut client: ReadHalf<'_>, mut server: WriteHalf<'_>, state: &State) -> End {
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    loop {
        let Ok(length) = client.read(&mut buffer).await else { return End::Broken };
        state.hold().await;
        let chunk = &buffer[..length];
        let answer = lock(&state.answer).clone();
        if let Some(answer) = answer.filter(|_| length > 0) {
            return End::Answered(answer);
        }
        match state.take_planned(chunk) {
            Some(Cut::AfterRequest) => return End::Requested(chunk.to_owned()),
            Some(Cut::BeforeRequest) => {
                state.faults.fetch_add(1, Ordering::SeqCst);
                return End::Broken;
            }
            None if chunk.is_empty() => {
                let _ = server.shutdown().await;
                // The server may still have something to say.
                return std::future::pending().await;
            }
            None if server.write_all(chunk).await.is_err() => return End::Broken,
            None => {}
        }
    }
}

async fn carry_answers(mut server: ReadHalf<'_>, mut client: WriteHalf<'_>, state: &State) -> End {
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    loop {
        let Ok(length) = server.read(&mut buffer).await else { return End::Broken };
        state.hold().await;
        if length == 0 {
            let _ = client.shutdown().await;
            return End::Closed;
        }
        if client.write_all(&buffer[..length]).await.is_err() {
            return End::Broken;
        }
    }
}

/// Closes a connection so that the other side sees an error, not an end.
fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
