//! The probe for deliveries: the service's own HTTP client in a bare loop, without store, gate or policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redrive_delivery::{Guard, OutgoingRequest, Target, Transport, TransportSettings, Upload};
use tokio::task::JoinSet;

use super::request;

/// The HTTP client of the service, and its target.
#[derive(Clone)]
pub struct BareClient {
    transport: Transport,
    target: Target,
}

impl BareClient {
    /// Sends to `target`, with the settings that the service gives the client.
    pub fn new(target: &str) -> anyhow::Result<Self> {
        let settings = TransportSettings::default().with_guard(Guard::open_to_loopback());
        Ok(Self { transport: Transport::new(settings)?, target: Target::parse(target)? })
    }

    /// Sends `calls` requests from `senders` tasks.
    pub async fn send_all(&self, calls: usize, senders: usize) -> anyhow::Result<()> {
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..senders {
            let (bare, next) = (self.clone(), next.clone());
            tasks.spawn(async move {
                loop {
                    let call = next.fetch_add(1, Ordering::Relaxed);
                    if call >= calls {
                        return anyhow::Ok(());
                    }
                    bare.send(call, None).await?;
                }
            });
        }
        tasks.join_all().await.into_iter().collect()
    }

    /// Sends one request, with its due time for the sink.
    pub async fn send(&self, call: usize, due: Option<i64>) -> anyhow::Result<()> {
        let mut outgoing = OutgoingRequest::new(&self.target);
        outgoing.headers = request::headers(&format!("bare-{call}"), due)?;
        outgoing.body = Upload::bytes(request::BODY);
        let exchange = self.transport.send(outgoing).await;
        anyhow::ensure!(exchange.is_success(), "the sink rejected a request: {:?}", exchange.failure);
        Ok(())
    }
}
