//! Look-ups against a name server of the test: what is cached and for how long, and who is to blame when nothing comes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive_delivery::{
    LocalFailure, Resolve, ResolveError, Sort, SystemResolver, Target, Transport, TransportSettings,
};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::stage::{Server, local, post};

const PATIENCE: Duration = Duration::from_secs(30);

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
        SystemResolver::asking([self.address])
    }

    /// How often it was asked for the address of `name`.
    fn asked(&self, name: &str) -> usize {
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
    timeout(PATIENCE, resolver.resolve(host)).await.expect("the look-up ends")
}

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[tokio::test]
async fn an_answer_is_kept_for_its_ttl_and_no_longer() {
    let server = NameServer::start(2).await;
    let resolver = server.resolver();
    let began = Instant::now();
    for _ in 0..20 {
        assert_eq!(resolve(&resolver, "a.test").await.unwrap(), [HERE]);
    }
    if began.elapsed() < Duration::from_secs(1) {
        assert_eq!(server.asked("a.test"), 1, "what is known is not asked again");
    }
    let asked = server.asked("a.test");
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(resolve(&resolver, "a.test").await.unwrap(), [HERE]);
    assert!(server.asked("a.test") > asked, "an answer was kept for longer than its TTL");

    let fleeting = NameServer::start(0).await;
    let resolver = fleeting.resolver();
    for _ in 0..3 {
        assert_eq!(resolve(&resolver, "a.test").await.unwrap(), [HERE]);
    }
    assert_eq!(fleeting.asked("a.test"), 3, "a TTL of 0 is never kept");
}

#[tokio::test]
async fn the_cache_has_a_bound() {
    let server = NameServer::start(3_600).await;
    let resolver = server.resolver().with_cached_answers_max(10);
    let names: Vec<String> = (0..200).map(|n| format!("n{n}.test")).collect();
    for _ in 0..2 {
        for name in &names {
            assert_eq!(resolve(&resolver, name).await.unwrap(), [HERE]);
        }
    }
    let asked_again = names.iter().filter(|name| server.asked(name) > 1).count();
    assert!(asked_again > 150, "{asked_again} of 200 were asked again: the rest is still in memory");
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_the_targets_fault() {
    let server = NameServer::start(60).await;
    for host in ["no-such-host.example", "no-such-host.invalid"] {
        let error = resolve(&server.resolver(), host).await.unwrap_err();
        assert!(matches!(error, ResolveError::Failed(_)), "{host}: {error:?}");
    }
}

#[tokio::test]
async fn name_servers_that_do_not_answer_are_this_nodes_fault() {
    let nobody = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for server in [nobody, silent.local_addr().unwrap()] {
        let settings = TransportSettings {
            resolver: Arc::new(SystemResolver::asking([server])),
            connect_timeout: Duration::from_secs(4),
            ..local()
        };
        let transport = Transport::new(settings).unwrap();
        let exchange = post(&transport, &Target::parse("http://hooks.example/").unwrap()).await;
        let trouble = exchange.trouble.unwrap();
        assert_eq!(trouble.sort, Sort::Local(LocalFailure::Resolver), "{server}: {}", trouble.message);
    }
}

#[tokio::test]
async fn a_name_that_nobody_answers_for_does_not_stop_the_others() {
    let server = NameServer::start(60).await;
    let settings = TransportSettings { resolver: Arc::new(server.resolver()), ..local() };
    let transport = Transport::new(settings).unwrap();
    let exchange = post(&transport, &Target::parse("http://slow.example/").unwrap()).await;
    let trouble = exchange.trouble.unwrap();
    assert_eq!(trouble.sort, Sort::ConnectTimeout, "the name server works: {}", trouble.message);
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
    // From here on it is known: nobody waits for an answer any more, and what needs none still works.
    let began = Instant::now();
    for _ in 0..100 {
        assert!(down(resolve(&resolver, "b.test").await));
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(resolve(&resolver, "localhost").await.unwrap().contains(&HERE));
    server.silent.store(false, Ordering::SeqCst);
    let again = async {
        while resolve(&resolver, "c.test").await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, again).await.expect("it finds out that they answer again");
}

#[tokio::test]
async fn localhost_and_the_hosts_file_need_no_name_server() {
    let nobody = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let resolver = SystemResolver::asking([nobody]);
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

/// With one thread for blocking work, one look-up that blocks it would stop all file I/O.
#[test]
fn look_ups_that_get_no_answer_hold_no_threads() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let resolver = Arc::new(SystemResolver::asking([silent.local_addr().unwrap()]));
        let lookups: Vec<_> = (0..100)
            .map(|n| {
                let resolver = resolver.clone();
                tokio::spawn(async move { resolver.resolve(&format!("n{n}.example")).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!lookups.iter().any(|lookup| lookup.is_finished()), "they are still under way");
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
