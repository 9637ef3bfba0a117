//! DNS with the test's own name server: caching, and whether a failure is one of this node or of the target.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive_delivery::{
    LocalFailure, Resolve, ResolveError, SystemResolver, Target, Transport, TransportFailureKind,
    TransportSettings,
};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::fixture::{Server, local, post};

/// The longest time that a query, or the recovery of a resolver, may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A name server on loopback: every name under `.test` is 127.0.0.1, names with `slow` in them get no answer, others do
/// not exist.
#[derive(Clone)]
struct NameServer {
    address: SocketAddr,
    questions: Arc<Mutex<HashMap<String, usize>>>,
    silent: Arc<AtomicBool>,
}

impl NameServer {
    async fn start(ttl_s: u32) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let server = Self { address, questions: Arc::default(), silent: Arc::default() };
        let this = server.clone();
        tokio::spawn(async move {
            let mut message = [0; 512];
            while let Ok((length, peer)) = socket.recv_from(&mut message).await {
                if let Some(answer) = this.answer(&message[..length], ttl_s) {
                    socket.send_to(&answer, peer).await.unwrap();
                }
            }
        });
        server
    }

    fn answer(&self, message: &[u8], ttl_s: u32) -> Option<Vec<u8>> {
        let (name, end) = read_name(&message[12..])?;
        let question = &message[12..12 + end + 4];
        let is_a = question[end..end + 2] == [0, 1];
        if is_a {
            *self.questions.lock().unwrap().entry(name.clone()).or_default() += 1;
        }
        if self.silent.load(Ordering::SeqCst) || name.contains("slow") {
            return None;
        }
        let exists = name.ends_with(".test");
        let (code, answers) = (if exists { 0 } else { 3 }, u8::from(exists && is_a));
        let mut answer = vec![message[0], message[1], 0x81, 0x80 | code, 0, 1, 0, answers, 0, 0, 0, 0];
        answer.extend_from_slice(question);
        if answers == 1 {
            answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
            answer.extend_from_slice(&ttl_s.to_be_bytes());
            answer.extend_from_slice(&[0, 4, 127, 0, 0, 1]);
        }
        Some(answer)
    }

    fn resolver(&self) -> SystemResolver {
        SystemResolver::with_name_servers([self.address])
    }

    /// The number of queries for the address of `name`.
    fn queries_for(&self, name: &str) -> usize {
        self.questions.lock().unwrap().get(name).copied().unwrap_or_default()
    }
}

/// A name in a message, and where it ends.
fn read_name(bytes: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), 0);
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join(".").to_ascii_lowercase(), at));
        }
        labels.push(String::from_utf8_lossy(bytes.get(at..at + length)?).into_owned());
        at += length;
    }
}

async fn resolve(resolver: &SystemResolver, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
    timeout(TIMEOUT, resolver.resolve(host)).await.expect("the query ends in time")
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[tokio::test]
async fn an_answer_is_cached_for_its_ttl_and_no_longer() {
    let server = NameServer::start(2).await;
    let resolver = server.resolver();
    let began = Instant::now();
    for _ in 0..20 {
        assert_eq!(resolve(&resolver, "a.test").await.unwrap(), [LOOPBACK]);
    }
    if began.elapsed() < Duration::from_secs(1) {
        assert_eq!(server.queries_for("a.test"), 1, "a cached answer is used");
    }
    let queries = server.queries_for("a.test");
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(resolve(&resolver, "a.test").await.unwrap(), [LOOPBACK]);
    assert!(server.queries_for("a.test") > queries, "an answer was cached for longer than its TTL");

    let uncached = NameServer::start(0).await;
    let resolver = uncached.resolver();
    for _ in 0..3 {
        assert_eq!(resolve(&resolver, "a.test").await.unwrap(), [LOOPBACK]);
    }
    assert_eq!(uncached.queries_for("a.test"), 3, "an answer with a TTL of 0 is not cached");
}

#[tokio::test]
async fn the_cache_is_bounded() {
    let server = NameServer::start(3_600).await;
    let resolver = server.resolver().with_cached_answers_max(10);
    let names: Vec<String> = (0..200).map(|n| format!("n{n}.test")).collect();
    for _ in 0..2 {
        for name in &names {
            assert_eq!(resolve(&resolver, name).await.unwrap(), [LOOPBACK]);
        }
    }
    let queried_again = names.iter().filter(|name| server.queries_for(name) > 1).count();
    assert!(
        queried_again > 150,
        "only {queried_again} of 200 names were queried again: the others are still cached"
    );
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_a_failure_of_the_target() {
    let server = NameServer::start(60).await;
    for host in ["no-such-host.example", "no-such-host.invalid"] {
        let error = resolve(&server.resolver(), host).await.unwrap_err();
        assert!(matches!(error, ResolveError::Failed(_)), "{host}: {error:?}");
    }
}

#[tokio::test]
async fn name_servers_that_do_not_answer_are_a_local_failure() {
    let unused = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for server in [unused, silent.local_addr().unwrap()] {
        let settings = TransportSettings {
            resolver: Arc::new(SystemResolver::with_name_servers([server])),
            connect_timeout: Duration::from_secs(4),
            ..local()
        };
        let transport = Transport::new(settings).unwrap();
        let exchange = post(&transport, &Target::parse("http://hooks.example/").unwrap()).await;
        let failure = exchange.failure.unwrap();
        assert_eq!(
            failure.kind,
            TransportFailureKind::Local(LocalFailure::Resolver),
            "{server}: {}",
            failure.message
        );
    }
}

#[tokio::test]
async fn a_name_without_an_answer_does_not_stop_other_names() {
    let server = NameServer::start(60).await;
    let settings = TransportSettings { resolver: Arc::new(server.resolver()), ..local() };
    let transport = Transport::new(settings).unwrap();
    let exchange = post(&transport, &Target::parse("http://slow.example/").unwrap()).await;
    let failure = exchange.failure.unwrap();
    assert_eq!(
        failure.kind,
        TransportFailureKind::ConnectTimeout,
        "the name server works: {}",
        failure.message
    );
    let target = Server::answering(|_| "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".into()).await;
    let url = format!("http://hooks.test:{}/", target.address.port());
    assert!(post(&transport, &Target::parse(&url).unwrap()).await.is_success());
}

#[tokio::test]
async fn name_servers_that_answer_again_are_used_again() {
    let server = NameServer::start(0).await;
    server.silent.store(true, Ordering::SeqCst);
    let resolver = server.resolver();
    let down = |result| matches!(result, Err(ResolveError::Local(LocalFailure::Resolver)));
    assert!(down(resolve(&resolver, "a.test").await));
    // From here on the failure is known: queries fail at once, and names that need no name server still work.
    let began = Instant::now();
    for _ in 0..100 {
        assert!(down(resolve(&resolver, "b.test").await));
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(resolve(&resolver, "localhost").await.unwrap().contains(&LOOPBACK));
    server.silent.store(false, Ordering::SeqCst);
    let again = async {
        while resolve(&resolver, "c.test").await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TIMEOUT, again).await.expect("the resolver notices that the name server answers again");
}

#[tokio::test]
async fn localhost_and_the_hosts_file_need_no_name_server() {
    let unused = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let resolver = SystemResolver::with_name_servers([unused]);
    for host in ["localhost", "localhost.", "a.localhost"] {
        let addresses = resolve(&resolver, host).await.unwrap();
        assert!(!addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback), "{host}: {addresses:?}");
    }
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    for line in lines.filter(|line| line.split_whitespace().count() > 1) {
        let mut words = line.split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else { continue };
        for name in words {
            let found = resolve(&resolver, name).await.unwrap();
            assert!(found.contains(&address) || address.is_loopback(), "{name}: {found:?}");
        }
    }
}

/// With one thread for blocking work, one blocking query would stop all file I/O.
#[test]
fn unanswered_queries_block_no_threads() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let resolver = Arc::new(SystemResolver::with_name_servers([silent.local_addr().unwrap()]));
        let lookups: Vec<_> = (0..100)
            .map(|n| {
                let resolver = resolver.clone();
                tokio::spawn(async move { resolver.resolve(&format!("n{n}.example")).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!lookups.iter().any(|lookup| lookup.is_finished()), "the queries still wait for an answer");
        let began = Instant::now();
        tokio::task::spawn_blocking(|| std::fs::read("/etc/hosts")).await.unwrap().unwrap();
        assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
        for lookup in lookups {
            lookup.abort();
        }
    });
    // Dropping the runtime waits for threads that are blocked.
    let began = Instant::now();
    drop(runtime);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
