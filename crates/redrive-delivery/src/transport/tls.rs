//! Whom to trust: the system's roots, else those that browsers ship.

use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

use crate::dial::Speak;

/// The connectors for HTTP and for gRPC. Reads the system's roots from disk, once.
pub(crate) fn connectors(
    extra_roots: &[CertificateDer<'static>],
) -> Result<(TlsConnector, TlsConnector), Error> {
    // The provider is named, so that another one elsewhere in the program makes no difference here.
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(extra_roots)?)
        .with_no_client_auth();
    let speaking = |speak: Speak| {
        let mut config = config.clone();
        config.alpn_protocols = match speak {
            Speak::Either => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Speak::Http2 => vec![b"h2".to_vec()],
        };
        TlsConnector::from(Arc::new(config))
    };
    Ok((speaking(Speak::Either), speaking(Speak::Http2)))
}

fn roots(extra: &[CertificateDer<'static>]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    for root in extra {
        roots.add(root.clone())?;
    }
    Ok(roots)
}
