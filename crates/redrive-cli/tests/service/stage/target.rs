//! A target that notes every request down and answers by a script, however bad.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::eventually;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) at: Instant,
    /// From 1, over all connections.
    pub(crate) number: usize,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Call {
    /// The header with this name in lower case; empty when there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key")
    }

    pub(crate) fn task_id(&self) -> &str {
        self.header("redrive-task-id")
    }

    pub(crate) fn attempt(&self) -> u32 {
        self.header("redrive-attempt").parse().unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// What a target does about a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Answers with a status, more header lines and a body.
    Answer(u16, &'static str, String),
    /// Does nothing for a while, then something.
    After(Duration, Box<Reply>),
    /// Never answers.
    Hang,
    /// Sends these bytes and closes.
    Raw(&'static str),
    /// Sends the first bytes at once, then the others one by one with a pause before each.
    Drip(&'static str, &'static str, Duration),
    /// Sends a body of this many bytes.
    Flood(u64),
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self::Answer(status, "", String::new())
    }

    pub(crate) fn after_ms(ms: u64, reply: Self) -> Self {
        Self::After(Duration::from_millis(ms), Box::new(reply))
    }
}

type Script = dyn Fn(&Call) -> Reply + Send + Sync;

/// A server on a free port of loopback.
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    serving: Mutex<JoinSet<()>>,
}

struct Shared {
    script: Mutex<Arc<Script>>,
    calls: Mutex<Vec<Call>>,
    count: AtomicUsize,
    connections: AtomicUsize,
    sent_bytes: AtomicU64,
}

impl Target {
    pub(crate) async fn start(script: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", script).await
    }

    /// At an address that it can come back to: nothing else in these tests takes ports of other loopback addresses.
    pub(crate) async fn start_on(
        host: &str,
        script: impl Fn(&Call) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::at(&format!("{host}:0"), script).await
    }

    async fn at(address: &str, script: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let shared = Arc::new(Shared {
            script: Mutex::new(Arc::new(script)),
            calls: Mutex::default(),
            count: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            sent_bytes: AtomicU64::new(0),
        });
        let target = Self { address: listener.local_addr().unwrap(), shared, serving: Mutex::default() };
        target.serve(listener);
        target
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers otherwise from now on.
    pub(crate) fn now(&self, script: impl Fn(&Call) -> Reply + Send + Sync + 'static) {
        *self.shared.script.lock().unwrap() = Arc::new(script);
    }

    /// Stops to listen and breaks every connection.
    pub(crate) async fn down(&self) {
        let mut serving = std::mem::take(&mut *self.serving.lock().unwrap());
        serving.shutdown().await;
    }

    /// Listens again.
    pub(crate) async fn up(&self) {
        self.serve(TcpListener::bind(self.address).await.unwrap());
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().unwrap().clone()
    }

    /// Calls so far.
    pub(crate) fn count(&self) -> usize {
        self.shared.calls.lock().unwrap().len()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Bytes of floods that went out.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.shared.sent_bytes.load(Ordering::SeqCst)
    }

    /// Waits for so many calls, and gives them.
    pub(crate) async fn expect(&self, calls: usize) -> Vec<Call> {
        let what = format!("{calls} calls at {}", self.address);
        eventually(&what, async || (self.count() >= calls).then(|| self.calls())).await
    }

    fn serve(&self, listener: TcpListener) {
        let shared = self.shared.clone();
        self.serving.lock().unwrap().spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let shared = shared.clone();
                // Whether it ends well is for the test to find out on the other side.
                open.spawn(async move { drop(shared.converse(stream).await) });
                while open.try_join_next().is_some() {}
            }
        });
    }
}

impl Shared {
    /// Answers request after request on one connection.
    async fn converse(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        while let Some(call) = self.read(&mut stream).await? {
            let script = self.script.lock().unwrap().clone();
            let mut reply = script(&call);
            self.calls.lock().unwrap().push(call);
            while let Reply::After(pause, then) = reply {
                tokio::time::sleep(pause).await;
                reply = *then;
            }
            if !self.reply(stream.get_mut(), reply).await? {
                break;
            }
        }
        Ok(())
    }

    async fn read(&self, stream: &mut BufReader<TcpStream>) -> io::Result<Option<Call>> {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let mut words = line.split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(Some(Call { at: Instant::now(), number, method, path, headers, body }))
    }

    /// Says whether the connection goes on.
    async fn reply(&self, stream: &mut TcpStream, reply: Reply) -> io::Result<bool> {
        match reply {
            Reply::Answer(status, headers, body) => {
                let length = body.len();
                let answer =
                    format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
                stream.write_all(answer.as_bytes()).await?;
                return Ok(true);
            }
            Reply::After(..) => unreachable!("waited for before"),
            Reply::Hang => std::future::pending().await,
            Reply::Raw(bytes) => stream.write_all(bytes.as_bytes()).await?,
            Reply::Drip(first, rest, pause) => {
                stream.write_all(first.as_bytes()).await?;
                for byte in rest.bytes() {
                    tokio::time::sleep(pause).await;
                    stream.write_all(&[byte]).await?;
                }
            }
            Reply::Flood(bytes) => self.flood(stream, bytes).await?,
        }
        stream.shutdown().await?;
        Ok(false)
    }

    async fn flood(&self, stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
        let head = format!("HTTP/1.1 200 x\r\ncontent-length: {bytes}\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let chunk = vec![b'x'; 64 * 1024];
        while self.sent_bytes.load(Ordering::SeqCst) < bytes {
            stream.write_all(&chunk).await?;
            self.sent_bytes.fetch_add(chunk.len() as u64, Ordering::SeqCst);
        }
        Ok(())
    }
}
