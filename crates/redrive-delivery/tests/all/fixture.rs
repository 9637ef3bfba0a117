//! Servers and resolvers for the tests.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_delivery::{
    Exchange, Guard, LocalFailure, OutgoingRequest, Resolve, ResolveError, Target, Transport,
    TransportSettings,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that hands each connection, with its number from 1, to a script.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) async fn start<F, R>(script: F) -> Self
    where
        F: Fn(TcpStream, usize) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::spawn(script(stream, number));
            }
        });
        Self { address, connections }
    }

    /// A server that answers every request with the bytes that `answer` gives for its number, over all connections.
    pub(crate) async fn answering(answer: impl Fn(usize) -> String + Send + Sync + 'static) -> Self {
        let answer = Arc::new(answer);
        let requests = Arc::new(AtomicUsize::new(0));
        Self::start(move |mut stream, _| {
            let (answer, requests) = (answer.clone(), requests.clone());
            async move {
                while read_request(&mut stream).await.is_some() {
                    let number = requests.fetch_add(1, Ordering::SeqCst) + 1;
                    let bytes = answer(number);
                    if stream.write_all(bytes.as_bytes()).await.is_err() || bytes.contains("onnection: close")
                    {
                        return;
                    }
                }
            }
        })
        .await
    }

    pub(crate) fn target(&self, path: &str) -> Target {
        Target::parse(&format!("http://{}{path}", self.address)).unwrap()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// A request with its body, as text; `None` at the end of the connection.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if bytes.len() >= end + 4 + length.unwrap_or(0) {
                return Some(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

/// Waits for the other side to close, and fails if it never does.
pub(crate) async fn expect_close(stream: &mut TcpStream) {
    let mut byte = [0; 1];
    let closed = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut byte)).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "the connection stayed open: {closed:?}");
}

/// A resolver with given answers. Each query of a name gets the next answer; the last answer is repeated.
#[derive(Debug, Default)]
pub(crate) struct FixedAnswers(Mutex<HashMap<String, Vec<Vec<IpAddr>>>>);

impl FixedAnswers {
    pub(crate) fn of(names: &[(&str, &[&[&str]])]) -> Arc<Self> {
        let addresses = |list: &&[&str]| list.iter().map(|address| address.parse().unwrap()).collect();
        let entry = |(name, answers): &(&str, &[&[&str]])| {
            ((*name).to_owned(), answers.iter().map(addresses).collect::<Vec<Vec<IpAddr>>>())
        };
        Arc::new(Self(Mutex::new(names.iter().map(entry).collect())))
    }
}

#[async_trait::async_trait]
impl Resolve for FixedAnswers {
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let mut names = self.0.lock().unwrap();
        match names.get_mut(host) {
            Some(answers) if answers.len() > 1 => Ok(answers.remove(0)),
            Some(answers) => Ok(answers[0].clone()),
            None => {
                Err(io::Error::new(io::ErrorKind::NotFound, format!("the test has no answer for {host}"))
                    .into())
            }
        }
    }
}

/// A resolver that never answers.
#[derive(Debug)]
pub(crate) struct SilentResolver;

#[async_trait::async_trait]
impl Resolve for SilentResolver {
    async fn resolve(&self, _: &str) -> Result<Vec<IpAddr>, ResolveError> {
        std::future::pending().await
    }
}

/// A resolver of a node whose DNS does not work.
#[derive(Debug)]
pub(crate) struct FailingResolver(pub(crate) LocalFailure);

#[async_trait::async_trait]
impl Resolve for FailingResolver {
    async fn resolve(&self, _: &str) -> Result<Vec<IpAddr>, ResolveError> {
        Err(self.0.into())
    }
}

pub(crate) fn local() -> TransportSettings {
    TransportSettings::default().with_guard(Guard::open_to_loopback())
}

pub(crate) fn transport() -> Transport {
    Transport::new(local()).unwrap()
}

/// One POST with a limit of five seconds.
pub(crate) async fn post(transport: &Transport, target: &Target) -> Exchange {
    send(transport, OutgoingRequest::new(target)).await
}

pub(crate) async fn send(transport: &Transport, outgoing: OutgoingRequest<'_>) -> Exchange {
    tokio::time::timeout(Duration::from_secs(5), transport.send(outgoing))
        .await
        .expect("the attempt ends within 5 s")
}
