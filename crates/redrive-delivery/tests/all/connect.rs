//! Before a request is sent: look-ups, refusals, connections that do not come about, and saying so honestly.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::DeferralScope;
use redrive_delivery::{
    Guard, LocalFailure, Outgoing, Phase, Progress, Sort, Target, Transport, TransportSettings,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::stage::{FailingResolver, Names, Server, Silent, local, post, read_request, transport};

const CLOSING: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 0\r\n\r\n";

fn named(server: &Server, name: &str) -> Target {
    Target::parse(&format!("http://{name}:{}/", server.address.port())).unwrap()
}

#[tokio::test]
async fn a_name_that_moves_to_a_private_address_is_refused_then() {
    for moved in ["10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"] {
        let server = Server::answering(|_| CLOSING.into()).await;
        let resolver = Names::of(&[("rebind.test", &[&["127.0.0.1"], &[moved]])]);
        let guard = Guard::public_only().allow("127.0.0.1/32".parse::<ipnet::IpNet>().unwrap());
        let settings = TransportSettings { resolver, connect_timeout: Duration::from_millis(300), ..local() };
        let transport = Transport::new(settings.with_guard(guard)).unwrap();
        let target = named(&server, "rebind.test");
        assert!(post(&transport, &target).await.is_success());
        let second = post(&transport, &target).await;
        let trouble = second.trouble.unwrap();
        assert_eq!(trouble.sort, Sort::Refused, "{moved}: {}", trouble.message);
        assert!(trouble.message.contains("--allow-target"), "{}", trouble.message);
        assert!(
            !trouble.message.contains(moved),
            "a tenant learns what the name leads to: {}",
            trouble.message
        );
        assert_eq!((second.phase, second.peer), (Phase::NeverSent, None));
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn only_the_addresses_that_may_be_dialled_are() {
    let server = Server::answering(|_| CLOSING.into()).await;
    let resolver = Names::of(&[("mixed.test", &[&["10.0.0.1", "::1", "127.0.0.1", "192.168.0.1"]])]);
    let guard = Guard::public_only().allow("127.0.0.0/8".parse::<ipnet::IpNet>().unwrap());
    let settings = TransportSettings { resolver, ..local() };
    let transport = Transport::new(settings.with_guard(guard)).unwrap();
    let exchange = post(&transport, &named(&server, "mixed.test")).await;
    assert_eq!(exchange.peer.unwrap().address, server.address);
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_takes_no_connection() {
    let server = Server::answering(|_| CLOSING.into()).await;
    // Nothing listens on the other addresses of loopback at this port.
    let resolver = Names::of(&[("pair.test", &[&["127.0.0.2", "127.0.0.3", "127.0.0.1"]])]);
    let transport = Transport::new(TransportSettings { resolver, ..local() }).unwrap();
    let exchange = post(&transport, &named(&server, "pair.test")).await;
    assert_eq!(exchange.peer.unwrap().address, server.address);
}

#[tokio::test]
async fn what_never_connected_was_never_sent() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let names = Names::of(&[("empty.test", &[&[]])]);
    let short = Duration::from_millis(100);
    let settings = |resolver| TransportSettings { resolver, connect_timeout: short, ..local() };
    let silent: Arc<Silent> = Arc::new(Silent);
    for (sort, url, settings) in [
        (Sort::Connect, format!("http://{unused}/"), local()),
        (Sort::Connect, format!("https://{unused}/"), local()),
        (Sort::Connect, format!("grpc://{unused}/a.B/C"), local()),
        (Sort::Dns, "http://unknown.test/".into(), settings(names.clone())),
        (Sort::Dns, "http://empty.test/".into(), settings(names.clone())),
        (Sort::ConnectTimeout, "http://slow.test/".into(), settings(silent.clone())),
        (Sort::ConnectTimeout, "grpcs://slow.test/a.B/C".into(), settings(silent)),
        (Sort::Refused, "http://10.1.2.3/".into(), local()),
        (Sort::Refused, "grpc://192.168.1.1/a.B/C".into(), local()),
    ] {
        let exchange = post(&Transport::new(settings).unwrap(), &Target::parse(&url).unwrap()).await;
        let trouble = exchange.trouble.unwrap();
        assert_eq!(trouble.sort, sort, "{url}: {}", trouble.message);
        assert_eq!((exchange.phase, exchange.status), (Phase::NeverSent, None), "{url}");
    }
}

#[tokio::test]
async fn what_this_node_cannot_do_is_put_off_and_not_charged() {
    for failure in [LocalFailure::ProcessFiles, LocalFailure::Memory, LocalFailure::Resolver] {
        let settings = TransportSettings { resolver: Arc::new(FailingResolver(failure)), ..local() };
        let exchange =
            post(&Transport::new(settings).unwrap(), &Target::parse("http://a.test/").unwrap()).await;
        assert_eq!(exchange.trouble.as_ref().unwrap().sort, Sort::Local(failure));
        assert_eq!((exchange.phase, exchange.peer), (Phase::NeverSent, None));
        let deferral = exchange.deferral().unwrap();
        assert_eq!(deferral.scope, DeferralScope::Node);
        assert!(deferral.reason.contains(&failure.to_string()), "{}", deferral.reason);
    }
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let refused = post(&transport(), &Target::parse(&format!("http://{unused}/")).unwrap()).await;
    assert_eq!(refused.deferral(), None, "what the target does is charged");
}

#[tokio::test]
async fn a_refusal_does_not_say_what_a_name_leads_to() {
    let guard = || Guard::public_only().deny("10.0.0.0/8".parse::<ipnet::IpNet>().unwrap());
    let mut messages = std::collections::BTreeSet::new();
    for address in ["10.1.2.3", "192.168.7.8", "127.0.0.1", "fd00::7", "169.254.169.254"] {
        let resolver = Names::of(&[("internal.test", &[&[address]])]);
        let settings = TransportSettings { resolver, ..local() };
        let transport = Transport::new(settings.with_guard(guard())).unwrap();
        let exchange = post(&transport, &Target::parse("http://internal.test/").unwrap()).await;
        let evidence = exchange.evidence();
        assert_eq!((evidence.address, evidence.protocol, evidence.excerpt), (None, None, None));
        messages.insert(exchange.trouble.unwrap().message);
    }
    assert_eq!(messages.len(), 1, "the message depends on the address: {messages:?}");
    let message = messages.pop_first().unwrap();
    assert!(!message.contains(char::is_numeric), "{message}");
}

#[tokio::test]
async fn a_guard_that_changes_closes_what_the_one_before_let_through() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let tell = tell.clone();
        async move {
            while read_request(&mut stream).await.is_some() {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            }
            tell.send(()).unwrap();
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
    assert_eq!(refused.trouble.unwrap().sort, Sort::Refused, "an old connection was used");
    let closed = tokio::time::timeout(Duration::from_secs(20), told.recv()).await;
    assert_eq!(closed.expect("the idle connection is closed"), Some(()));
    assert!(transport.set_guard(Guard::open_to_loopback()));
    assert!(post(&transport, &target).await.is_success());
}

#[tokio::test]
async fn what_was_dropped_while_connecting_was_never_sent() {
    let transport = Transport::new(TransportSettings { resolver: Arc::new(Silent), ..local() }).unwrap();
    let target = Target::parse("http://slow.test/").unwrap();
    let progress = Progress::new();
    let outgoing = Outgoing { progress: progress.clone(), ..Outgoing::new(&target) };
    let attempt = tokio::time::timeout(Duration::from_millis(50), transport.send(outgoing));
    assert!(attempt.await.is_err());
    assert_eq!(progress.phase(), Phase::NeverSent);
    assert_eq!(progress.evidence().to_json(), r#"{"phase":"NEVER_SENT"}"#);
}

#[tokio::test]
async fn a_target_that_closes_at_once_gave_no_answer() {
    let server = Server::start(|stream, _| async move { drop(stream) }).await;
    for _ in 0..20 {
        let exchange = post(&transport(), &server.target("/")).await;
        assert_eq!(exchange.trouble.unwrap().sort, Sort::Connection);
        assert_ne!(exchange.phase, Phase::Answered);
    }
}

#[tokio::test]
async fn a_target_that_reads_and_closes_was_sent_the_request() {
    let server = Server::start(|mut stream, _| async move {
        read_request(&mut stream).await;
    })
    .await;
    let exchange = post(&transport(), &server.target("/")).await;
    assert_eq!(exchange.trouble.unwrap().sort, Sort::Connection);
    assert_eq!(exchange.phase, Phase::NoAnswer);
    assert_eq!(server.connections(), 1, "what may have arrived is not sent twice in one attempt");
}

#[tokio::test]
async fn an_idle_connection_that_was_closed_costs_nothing() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let tell = tell.clone();
        async move {
            read_request(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            drop(stream);
            tell.send(()).unwrap();
        }
    })
    .await;
    let (transport, target) = (transport(), server.target("/"));
    for round in 1..=3 {
        assert!(post(&transport, &target).await.is_success(), "{round}");
        told.recv().await.unwrap();
        // The end of the connection has to come across before the next request takes it.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.connections(), 3);
}
