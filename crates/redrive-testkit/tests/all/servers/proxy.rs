//! The proxy: each of its faults in front of an echo server and of Postgres.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive_testkit::servers::{Postgres, Proxy};

use super::client::{Client, WAIT_MAX};

/// Longer than an answer without a delay takes.
const SHORT_WAIT: Duration = Duration::from_millis(300);

/// A method that plans a cut at a request.
type Plan = fn(&Proxy, &[u8]);

#[test]
fn the_proxy_forwards_everything() {
    let (proxy, received) = echo();
    let mut stream = connect(&proxy);
    let long = vec![b'x'; 1_000_000];
    std::thread::scope(|scope| {
        let mut writer = stream.try_clone().unwrap();
        let long = &long;
        scope.spawn(move || {
            writer.write_all(long).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), long.len());
    });
    assert_eq!(received.lock().unwrap().len(), long.len());
    assert_eq!(proxy.requests_cut(), 0);
}

#[test]
fn a_cut_resets_open_connections_only() {
    let (proxy, _) = echo();
    let mut open = [(); 2].map(|()| connect(&proxy));
    open.iter_mut().for_each(|stream| assert_eq!(ask(stream, "before").unwrap(), "before"));
    proxy.cut();
    for stream in &mut open {
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(ask(&mut connect(&proxy), "after").unwrap(), "after");
}

#[test]
fn the_proxy_refuses_connections_until_it_is_switched_back() {
    let (proxy, _) = echo();
    let mut open = connect(&proxy);
    assert_eq!(ask(&mut open, "before").unwrap(), "before");
    proxy.set_refusing(true);
    assert_eq!(open.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    for _ in 0..2 {
        assert!(is_cut_off(ask(&mut connect(&proxy), "meanwhile")));
    }
    proxy.set_refusing(false);
    assert_eq!(ask(&mut connect(&proxy), "after").unwrap(), "after");
}

#[test]
fn a_frozen_connection_hangs_and_then_continues() {
    let (proxy, received) = echo();
    let mut open = connect(&proxy);
    assert_eq!(ask(&mut open, "before").unwrap(), "before");
    proxy.set_frozen(true);
    let mut new = connect(&proxy);
    for stream in [&mut open, &mut new] {
        stream.set_read_timeout(Some(SHORT_WAIT)).unwrap();
        assert_eq!(ask(stream, "!").unwrap_err().kind(), ErrorKind::WouldBlock);
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    }
    assert_eq!(*received.lock().unwrap(), b"before");
    proxy.set_frozen(false);
    for stream in [&mut open, &mut new] {
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"!");
    }
    proxy.set_frozen(true);
    proxy.cut();
    assert_eq!(
        open.read(&mut [0]).unwrap_err().kind(),
        ErrorKind::ConnectionReset,
        "a frozen connection can be cut"
    );
}

#[test]
fn a_delay_applies_in_both_directions() {
    let (proxy, _) = echo();
    let mut stream = connect(&proxy);
    proxy.set_delay(SHORT_WAIT);
    let began = Instant::now();
    assert_eq!(ask(&mut stream, "slow").unwrap(), "slow");
    assert!(began.elapsed() >= SHORT_WAIT * 2);
}

#[test]
fn a_cut_at_a_request_happens_once_and_on_its_side_of_the_request() {
    let cases: [(Plan, _); 2] = [(Proxy::cut_after_request, "ab commit"), (Proxy::cut_before_request, "ab")];
    for (plan, expected) in cases {
        let (proxy, received) = echo();
        let [mut stream, mut other] = [(); 2].map(|()| connect(&proxy));
        plan(&proxy, b"commit");
        assert_eq!(ask(&mut stream, "a").unwrap(), "a");
        assert_eq!(ask(&mut other, "b").unwrap(), "b");
        assert_eq!(proxy.requests_cut(), 0);
        assert_eq!(ask(&mut stream, " commit").unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(
            (proxy.requests_cut(), String::from_utf8_lossy(&received.lock().unwrap()).as_ref()),
            (1, expected)
        );
        assert_eq!(ask(&mut other, "commit").unwrap(), "commit", "the cut happened twice");
        assert_eq!(proxy.requests_cut(), 1);
    }
}

#[test]
fn a_commit_whose_answer_is_cut_off_has_happened() {
    let cases: [(Plan, _); 2] = [(Proxy::cut_after_request, "1"), (Proxy::cut_before_request, "0")];
    for (plan, rows) in cases {
        let postgres = Postgres::start();
        postgres.run("CREATE TABLE kept (word text)");
        let proxy = Proxy::start(([127, 0, 0, 1], postgres.port()).into());
        let mut client = Client::connect(proxy.address()).unwrap();
        plan(&proxy, b"COMMIT");
        client.run("BEGIN").unwrap();
        client.run("INSERT INTO kept VALUES ('here')").unwrap();
        assert_eq!(client.run("COMMIT").unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!((proxy.requests_cut(), postgres.run("SELECT count(*) FROM kept").as_str()), (1, rows));
    }
}

#[test]
fn the_proxy_resets_connections_that_it_cannot_forward() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Proxy::start(unused);
    assert!(is_cut_off(ask(&mut connect(&proxy), "anyone?")));
}

#[test]
fn nothing_listens_after_the_proxy_has_ended() {
    let (proxy, _) = echo();
    let (address, mut open) = (proxy.address(), connect(&proxy));
    assert_eq!(ask(&mut open, "before").unwrap(), "before");
    drop(proxy);
    assert!(!matches!(open.read(&mut [0]), Ok(1..)));
    assert!(TcpStream::connect(address).is_err());
}

#[tokio::test(start_paused = true)]
async fn the_proxy_works_beside_a_paused_clock_and_blocking_calls() {
    let (proxy, _) = echo();
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, "before").unwrap(), "before");
    proxy.cut();
    assert!(is_cut_off(ask(&mut stream, "after")));
}

/// A proxy in front of an echo server, and the bytes that the server has received.
fn echo() -> (Proxy, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let received = Arc::new(Mutex::new(Vec::new()));
    let server = Arc::clone(&received);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, received) = (stream.unwrap(), Arc::clone(&server));
            std::thread::spawn(move || {
                let mut chunk = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut chunk) {
                    received.lock().unwrap().extend_from_slice(&chunk[..length]);
                    if stream.write_all(&chunk[..length]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (Proxy::start(address), received)
}

/// Whether a call failed with a reset, before or after it wrote, and not with a timeout.
fn is_cut_off<T>(call: std::io::Result<T>) -> bool {
    call.is_err_and(|e| matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, words: &str) -> std::io::Result<String> {
    stream.write_all(words.as_bytes())?;
    let mut answer = vec![0; words.len()];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8(answer).unwrap())
}

#[test]
fn the_proxy_answers_instead_of_the_server_until_it_is_switched_back() {
    let (proxy, received) = echo();
    proxy.answer_instead(Some(b"not today"));
    let mut stream = connect(&proxy);
    stream.write_all(b"anyone there?").unwrap();
    let mut answer = String::new();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!((answer.as_str(), received.lock().unwrap().len()), ("not today", 0));
    proxy.answer_instead(None);
    assert_eq!(ask(&mut connect(&proxy), "now").unwrap(), "now");
}
