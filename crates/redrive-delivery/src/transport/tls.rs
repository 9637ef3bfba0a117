//! TLS settings: trusts the root certificates of the system, or Mozilla's if the system has none.

use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

use crate::transport::dial::HttpVersions;

/// The connectors for HTTP and for gRPC. Reads the root certificates of the system from disk once.
pub(crate) fn connectors(
    extra_roots: &[CertificateDer<'static>],
) -> Result<(TlsConnector, TlsConnector), Error> {
    // Names the provider, so that a default that another part of the program installs has no effect here.
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(extra_roots)?)
        .with_no_client_auth();
    let with_versions = |versions: HttpVersions| {
        let mut config = config.clone();
        config.alpn_protocols = match versions {
            HttpVersions::Http1OrHttp2 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            HttpVersions::Http2Only => vec![b"h2".to_vec()],
        };
        TlsConnector::from(Arc::new(config))
    };
    Ok((with_versions(HttpVersions::Http1OrHttp2), with_versions(HttpVersions::Http2Only)))
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
