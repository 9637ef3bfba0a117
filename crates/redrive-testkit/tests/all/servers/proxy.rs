//! The proxy: each of its faults in front of a server that repeats what it hears, and of Postgres.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive_testkit::servers::{Postgres, Proxy};

use crate::client::{Client, PATIENCE};

/// Longer than an answer takes that nothing holds back.
const MOMENT: Duration = Duration::from_millis(300);

/// A call that plans a cut at a request.
type Plan = fn(&Proxy, &[u8]);

#[test]
fn it_passes_everything_on() {
    let (proxy, heard) = echo();
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
    assert_eq!(heard.lock().unwrap().len(), long.len());
    assert_eq!(proxy.faults(), 0);
}

#[test]
fn a_cut_resets_what_is_open_and_nothing_else() {
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
fn it_refuses_until_it_is_told_otherwise() {
    let (proxy, _) = echo();
    let mut open = connect(&proxy);
    assert_eq!(ask(&mut open, "before").unwrap(), "before");
    proxy.refuse(true);
    assert_eq!(open.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    for _ in 0..2 {
        assert!(is_cut_off(ask(&mut connect(&proxy), "meanwhile")));
    }
    proxy.refuse(false);
    assert_eq!(ask(&mut connect(&proxy), "after").unwrap(), "after");
}

#[test]
fn what_is_frozen_hangs_and_then_goes_on() {
    let (proxy, heard) = echo();
    let mut open = connect(&proxy);
    assert_eq!(ask(&mut open, "before").unwrap(), "before");
    proxy.freeze(true);
    let mut new = connect(&proxy);
    for stream in [&mut open, &mut new] {
        stream.set_read_timeout(Some(MOMENT)).unwrap();
        assert_eq!(ask(stream, "!").unwrap_err().kind(), ErrorKind::WouldBlock);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    assert_eq!(*heard.lock().unwrap(), b"before");
    proxy.freeze(false);
    for stream in [&mut open, &mut new] {
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"!");
    }
    proxy.freeze(true);
    proxy.cut();
    assert_eq!(
        open.read(&mut [0]).unwrap_err().kind(),
        ErrorKind::ConnectionReset,
        "a frozen one can be cut"
    );
}

#[test]
fn a_delay_counts_both_ways() {
    let (proxy, _) = echo();
    let mut stream = connect(&proxy);
    proxy.delay(MOMENT);
    let began = Instant::now();
    assert_eq!(ask(&mut stream, "slow").unwrap(), "slow");
    assert!(began.elapsed() >= MOMENT * 2);
}

#[test]
fn a_cut_at_a_request_happens_once_and_on_its_side_of_the_request() {
    let cases: [(Plan, _); 2] = [(Proxy::cut_after_request, "ab commit"), (Proxy::cut_before_request, "ab")];
    for (plan, expected) in cases {
        let (proxy, heard) = echo();
        let [mut stream, mut other] = [(); 2].map(|()| connect(&proxy));
        plan(&proxy, b"commit");
        assert_eq!(ask(&mut stream, "a").unwrap(), "a");
        assert_eq!(ask(&mut other, "b").unwrap(), "b");
        assert_eq!(proxy.faults(), 0);
        assert_eq!(ask(&mut stream, " commit").unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!((proxy.faults(), String::from_utf8_lossy(&heard.lock().unwrap()).as_ref()), (1, expected));
        assert_eq!(ask(&mut other, "commit").unwrap(), "commit", "it happened twice");
        assert_eq!(proxy.faults(), 1);
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
        assert_eq!((proxy.faults(), postgres.run("SELECT count(*) FROM kept").as_str()), (1, rows));
    }
}

#[test]
fn it_resets_what_it_cannot_pass_on() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Proxy::start(nobody);
    assert!(is_cut_off(ask(&mut connect(&proxy), "anyone?")));
}

#[test]
fn nothing_listens_after_it() {
    let (proxy, _) = echo();
    let (address, mut open) = (proxy.address(), connect(&proxy));
    assert_eq!(ask(&mut open, "before").unwrap(), "before");
    drop(proxy);
    assert!(!matches!(open.read(&mut [0]), Ok(1..)));
    assert!(TcpStream::connect(address).is_err());
}

#[tokio::test(start_paused = true)]
async fn it_works_beside_a_paused_clock_and_blocking_calls() {
    let (proxy, _) = echo();
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, "before").unwrap(), "before");
    proxy.cut();
    assert!(is_cut_off(ask(&mut stream, "after")));
}

/// A proxy in front of a server that repeats what it hears, and what that has heard from everyone.
fn echo() -> (Proxy, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let server = Arc::clone(&heard);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, heard) = (stream.unwrap(), Arc::clone(&server));
            std::thread::spawn(move || {
                let mut chunk = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut chunk) {
                    heard.lock().unwrap().extend_from_slice(&chunk[..length]);
                    if stream.write_all(&chunk[..length]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (Proxy::start(address), heard)
}

/// Whether a call failed, and not for want of an answer: the reset may come before or after it writes.
fn is_cut_off<T>(call: std::io::Result<T>) -> bool {
    call.is_err_and(|e| matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, words: &str) -> std::io::Result<String> {
    stream.write_all(words.as_bytes())?;
    let mut answer = vec![0; words.len()];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8(answer).unwrap())
}

#[test]
fn it_answers_in_the_servers_place_until_it_is_told_otherwise() {
    let (proxy, heard) = echo();
    proxy.answer(Some(b"not today"));
    let mut stream = connect(&proxy);
    stream.write_all(b"anyone there?").unwrap();
    let mut said = String::new();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!((said.as_str(), heard.lock().unwrap().len()), ("not today", 0));
    proxy.answer(None);
    assert_eq!(ask(&mut connect(&proxy), "now").unwrap(), "now");
}
