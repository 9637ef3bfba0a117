//! A minimal HTTP client: one connection, one request after the other.

use std::net::SocketAddr;

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A connection. Dropping it closes it.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    driver: JoinHandle<()>,
}

impl Connection {
    /// Connects to `address`.
    pub async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream =
            TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async move {
            // A running request reports the error.
            let _ = connection.await;
        });
        Ok(Self { sender, host: HeaderValue::from_str(&address.to_string())?, driver })
    }

    /// Sends a request and reads the whole answer. Fails if the status is not the expected one.
    pub async fn call(
        &mut self,
        method: Method,
        path: &Uri,
        body: Bytes,
        expected: StatusCode,
    ) -> anyhow::Result<Bytes> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.clone();
        request.headers_mut().insert(header::HOST, self.host.clone());
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        anyhow::ensure!(
            status == expected,
            "{path} answered {status}, not {expected}: {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(answer)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
