//! A service behind a proxy that terminates TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::generate_simple_self_signed;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::cli::session::{Session, text};

/// Starts a proxy that terminates TLS and forwards to the service. Writes its certificate to `path`.
async fn start_tls_proxy(service: SocketAddr, path: &Path) -> String {
    let generated = generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(path, generated.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(generated.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![generated.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((caller, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut caller) = acceptor.accept(caller).await else { return };
                let mut service = TcpStream::connect(service).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut caller, &mut service).await;
            });
        }
    });
    format!("https://localhost:{port}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_behind_tls_is_reached_if_its_certificate_is_trusted() {
    let session = Session::start().await;
    let certificate = session.folder.path().join("certificate.pem");
    let url = start_tls_proxy(session.service.address, &certificate).await;
    let call = |trusted: bool| {
        let mut command = session.command(&["policy", "list", "--json", "--url", &url]);
        if trusted {
            command.env("SSL_CERT_FILE", &certificate);
        }
        command.output().unwrap()
    };
    let trusted = call(true);
    assert!(text(&trusted.stdout).contains(r#""policyId":"default""#), "{trusted:?}");
    let untrusted = call(false);
    assert_eq!(untrusted.status.code(), Some(5), "{untrusted:?}");
    assert!(text(&untrusted.stderr).contains("certificate"), "{untrusted:?}");
}
