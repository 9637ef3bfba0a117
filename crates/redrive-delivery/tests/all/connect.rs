//! Failures before a request is sent: DNS, refused addresses, failed connections, and how they are reported.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::DeferralScope;
use redrive_delivery::{
    Guard, LocalFailure, OutgoingRequest, Phase, Progress, Target, Transport, TransportFailureKind,
    TransportSettings,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::fixture::{
    FailingResolver, FixedAnswers, Server, SilentResolver, local, post, read_request, transport,
};

const CLOSING: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 0\r\n\r\n";

fn target_at(server: &Server, name: &str) -> Target {
    Target::parse(&format!("http://{name}:{}/", server.address.port())).unwrap()
}

#[tokio::test]
async fn a_name_that_changes_to_a_private_address_is_refused() {
    for moved in ["10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"] {
        let server = Server::answering(|_| CLOSING.into()).await;
        let resolver = FixedAnswers::of(&[("rebind.test", &[&["127.0.0.1"], &[moved]])]);
        let guard = Guard::public_only().allow("127.0.0.1/32".parse::<ipnet::IpNet>().unwrap());
        let settings = TransportSettings { resolver, connect_timeout: Duration::from_millis(300), ..local() };
        let transport = Transport::new(settings.with_guard(guard)).unwrap();
        let target = target_at(&server, "rebind.test");
        assert!(post(&transport, &target).await.is_success());
        let second = post(&transport, &target).await;
        let failure = second.failure.unwrap();
        assert_eq!(failure.kind, TransportFailureKind::TargetRefused, "{moved}: {}", failure.message);
        assert!(failure.message.contains("--allow-target"), "{}", failure.message);
        assert!(
            !failure.message.contains(moved),
            "the message reveals the address of the name: {}",
            failure.message
        );
        assert_eq!((second.phase, second.peer), (Phase::NeverSent, None));
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn only_allowed_addresses_of_a_host_are_dialled() {
    let server = Server::answering(|_| CLOSING.into()).await;
    let resolver = FixedAnswers::of(&[("mixed.test", &[&["10.0.0.1", "::1", "127.0.0.1", "192.168.0.1"]])]);
    let guard = Guard::public_only().allow("127.0.0.0/8".parse::<ipnet::IpNet>().unwrap());
    let settings = TransportSettings { resolver, ..local() };
    let transport = Transport::new(settings.with_guard(guard)).unwrap();
    let exchange = post(&transport, &target_at(&server, "mixed.test")).await;
    assert_eq!(exchange.peer.unwrap().address, server.address);
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_refuses_the_connection() {
    let server = Server::answering(|_| CLOSING.into()).await;
    // Nothing listens on the other addresses of loopback at this port.
    let resolver = FixedAnswers::of(&[("pair.test", &[&["127.0.0.2", "127.0.0.3", "127.0.0.1"]])]);
    let transport = Transport::new(TransportSettings { resolver, ..local() }).unwrap();
    let exchange = post(&transport, &target_at(&server, "pair.test")).await;
    assert_eq!(exchange.peer.unwrap().address, server.address);
}

#[tokio::test]
async fn a_request_without_a_connection_was_never_sent() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let names = FixedAnswers::of(&[("empty.test", &[&[]])]);
    let short = Duration::from_millis(100);
    let settings = |resolver| TransportSettings { resolver, connect_timeout: short, ..local() };
    let silent: Arc<SilentResolver> = Arc::new(SilentResolver);
    for (kind, url, settings) in [
        (TransportFailureKind::Connect, format!("http://{unused}/"), local()),
        (TransportFailureKind::Connect, format!("https://{unused}/"), local()),
        (TransportFailureKind::Connect, format!("grpc://{unused}/a.B/C"), local()),
        (TransportFailureKind::Dns, "http://unknown.test/".into(), settings(names.clone())),
        (TransportFailureKind::Dns, "http://empty.test/".into(), settings(names.clone())),
        (TransportFailureKind::ConnectTimeout, "http://slow.test/".into(), settings(silent.clone())),
        (TransportFailureKind::ConnectTimeout, "grpcs://slow.test/a.B/C".into(), settings(silent)),
        (TransportFailureKind::TargetRefused, "http://10.1.2.3/".into(), local()),
        (TransportFailureKind::TargetRefused, "grpc://192.168.1.1/a.B/C".into(), local()),
    ] {
        let exchange = post(&Transport::new(settings).unwrap(), &Target::parse(&url).unwrap()).await;
        let failure = exchange.failure.unwrap();
        assert_eq!(failure.kind, kind, "{url}: {}", failure.message);
        assert_eq!((exchange.phase, exchange.status), (Phase::NeverSent, None), "{url}");
    }
}

#[tokio::test]
async fn a_local_failure_defers_the_attempt_without_a_charge() {
    for failure in [LocalFailure::ProcessFiles, LocalFailure::Memory, LocalFailure::Resolver] {
        let settings = TransportSettings { resolver: Arc::new(FailingResolver(failure)), ..local() };
        let exchange =
            post(&Transport::new(settings).unwrap(), &Target::parse("http://a.test/").unwrap()).await;
        assert_eq!(exchange.failure.as_ref().unwrap().kind, TransportFailureKind::Local(failure));
        assert_eq!((exchange.phase, exchange.peer), (Phase::NeverSent, None));
        let deferral = exchange.deferral().unwrap();
        assert_eq!(deferral.scope, DeferralScope::Node);
        assert!(deferral.reason.contains(&failure.to_string()), "{}", deferral.reason);
    }
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let refused = post(&transport(), &Target::parse(&format!("http://{unused}/")).unwrap()).await;
    assert_eq!(refused.deferral(), None, "a failure of the target is charged");
}

#[tokio::test]
async fn a_refusal_does_not_reveal_the_address_of_a_name() {
    let guard = || Guard::public_only().deny("10.0.0.0/8".parse::<ipnet::IpNet>().unwrap());
    let mut messages = std::collections::BTreeSet::new();
    for address in ["10.1.2.3", "192.168.7.8", "127.0.0.1", "fd00::7", "169.254.169.254"] {
        let resolver = FixedAnswers::of(&[("internal.test", &[&[address]])]);
        let settings = TransportSettings { resolver, ..local() };
        let transport = Transport::new(settings.with_guard(guard())).unwrap();
        let exchange = post(&transport, &Target::parse("http://internal.test/").unwrap()).await;
        let evidence = exchange.evidence();
        assert_eq!((evidence.address, evidence.protocol, evidence.excerpt), (None, None, None));
        messages.insert(exchange.failure.unwrap().message);
    }
    assert_eq!(messages.len(), 1, "the message depends on the address: {messages:?}");
    let message = messages.pop_first().unwrap();
    assert!(!message.contains(char::is_numeric), "{message}");
}

#[tokio::test]
async fn a_new_guard_closes_the_connections_of_the_previous_one() {
    let (closed_sender, mut closed_receiver) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let closed_sender = closed_sender.clone();
        async move {
            while read_request(&mut stream).await.is_some() {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            }
            closed_sender.send(()).unwrap();
        }
    })
    .await;
    let (transport, target) = (transport(), server.target("/"));
    let other = transport.clone();
    assert!(post(&transport, &target).await.is_success());
    assert!(post(&transport, &target).await.is_success());
    assert_eq!(server.connections(), 1, "the connection is kept for the next request");
    assert!(other.set_guard(Guard::public_only()) && !other.set_guard(Guard::public_only()));
    let refused = post(&transport, &target).await;
    assert_eq!(
        refused.failure.unwrap().kind,
        TransportFailureKind::TargetRefused,
        "an old connection was used"
    );
    let closed = tokio::time::timeout(Duration::from_secs(20), closed_receiver.recv()).await;
    assert_eq!(closed.expect("the idle connection is closed"), Some(()));
    assert!(transport.set_guard(Guard::open_to_loopback()));
    assert!(post(&transport, &target).await.is_success());
}

#[tokio::test]
async fn a_request_dropped_while_connecting_was_never_sent() {
    let transport =
        Transport::new(TransportSettings { resolver: Arc::new(SilentResolver), ..local() }).unwrap();
    let target = Target::parse("http://slow.test/").unwrap();
    let progress = Progress::new();
    let outgoing = OutgoingRequest { progress: progress.clone(), ..OutgoingRequest::new(&target) };
    let attempt = tokio::time::timeout(Duration::from_millis(50), transport.send(outgoing));
    assert!(attempt.await.is_err());
    assert_eq!(progress.phase(), Phase::NeverSent);
    assert_eq!(progress.evidence().to_json(), r#"{"phase":"never_sent"}"#);
}

#[tokio::test]
async fn a_connection_that_closes_at_once_is_no_answer() {
    let server = Server::start(|stream, _| async move { drop(stream) }).await;
    for _ in 0..20 {
        let exchange = post(&transport(), &server.target("/")).await;
        assert_eq!(exchange.failure.unwrap().kind, TransportFailureKind::Connection);
        assert_ne!(exchange.phase, Phase::Answered);
    }
}

#[tokio::test]
async fn a_request_counts_as_sent_if_the_target_closes_without_an_answer() {
    let server = Server::start(|mut stream, _| async move {
        read_request(&mut stream).await;
    })
    .await;
    let exchange = post(&transport(), &server.target("/")).await;
    assert_eq!(exchange.failure.unwrap().kind, TransportFailureKind::Connection);
    assert_eq!(exchange.phase, Phase::NoAnswer);
    assert_eq!(
        server.connections(),
        1,
        "a request that may have arrived is not sent again in the same attempt"
    );
}

#[tokio::test]
async fn a_closed_idle_connection_fails_no_request() {
    let (closed_sender, mut closed_receiver) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let closed_sender = closed_sender.clone();
        async move {
            read_request(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            drop(stream);
            closed_sender.send(()).unwrap();
        }
    })
    .await;
    let (transport, target) = (transport(), server.target("/"));
    for round in 1..=3 {
        assert!(post(&transport, &target).await.is_success(), "{round}");
        closed_receiver.recv().await.unwrap();
        // Waits until the client has noticed that the connection is closed.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.connections(), 3);
}
