//! A call that a gate has admitted. However it ends, it reports to the gate and writes its evidence to the log.

use redrive_worker::{AttemptNote, Context};
use tokio::time::Instant;

use crate::evidence::Evidence;
use crate::gate::{OriginHealth, Permit};
use crate::transport::exchange::{Exchange, TransportFailure, TransportFailureKind};
use crate::transport::progress::Progress;

/// Counts as a call in progress to its origin until it ends.
///
/// An attempt may be dropped at any time. After a timeout it reports that the origin is struggling; after a cancel it reports nothing.
pub(crate) struct GatedCall {
    cx: Context,
    permit: Option<Permit>,
    began: Instant,
    progress: Option<Progress>,
}

impl GatedCall {
    pub(crate) fn new(cx: Context, permit: Permit) -> Self {
        Self { cx, permit: Some(permit), began: Instant::now(), progress: None }
    }

    /// Starts the clock: the request is about to be sent.
    pub(crate) fn start_sending(&mut self, progress: &Progress) {
        self.began = Instant::now();
        self.progress = Some(progress.clone());
    }

    /// Reports an exchange that has ended by itself.
    pub(crate) fn finish(&mut self, exchange: &Exchange) {
        if exchange.deferral().is_none() {
            self.note(&exchange.evidence());
        }
        self.progress = None;
        let Some(permit) = self.permit.take() else { return };
        match origin_health(exchange) {
            Some(health) => permit.report(health, self.began.elapsed(), Instant::now()),
            None => drop(permit),
        }
    }

    fn note(&self, evidence: &Evidence) {
        let status = evidence.grpc_code.or(evidence.status);
        self.cx.note(AttemptNote { detail: Some(evidence.to_json()), status });
    }
}

impl Drop for GatedCall {
    fn drop(&mut self) {
        let Some(progress) = &self.progress else { return };
        self.note(&progress.evidence());
        if let Some(permit) = self.permit.take().filter(|_| !self.cx.is_cancelled()) {
            permit.report(OriginHealth::Struggling(None), self.began.elapsed(), Instant::now());
        }
    }
}

/// How the origin behaved in an exchange; `None` if the exchange says nothing about it.
fn origin_health(exchange: &Exchange) -> Option<OriginHealth> {
    let wait = exchange.retry_after;
    match &exchange.failure {
        None => Some(OriginHealth::Working),
        Some(TransportFailure { kind, .. }) => match kind {
            TransportFailureKind::Local(_)
            | TransportFailureKind::TargetRefused
            | TransportFailureKind::Body => None,
            TransportFailureKind::Dns
            | TransportFailureKind::Connect
            | TransportFailureKind::ConnectTimeout
            | TransportFailureKind::Tls
            | TransportFailureKind::Connection => Some(OriginHealth::Struggling(None)),
            TransportFailureKind::Status(status) => Some(OriginHealth::of_status(*status, wait)),
            TransportFailureKind::Grpc(code) => Some(OriginHealth::of_grpc(*code, wait)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::local::LocalFailure;

    #[test]
    fn a_problem_of_this_node_does_not_count_against_the_origin() {
        let health = |kind| {
            let failure = Some(TransportFailure { kind, message: String::new() });
            origin_health(&Exchange { failure, ..Exchange::from_progress(&Progress::new()) })
        };
        for local in [LocalFailure::ProcessFiles, LocalFailure::Ports, LocalFailure::Resolver] {
            assert!(health(TransportFailureKind::Local(local)).is_none(), "{local}");
        }
        assert!(
            health(TransportFailureKind::Body).is_none()
                && health(TransportFailureKind::TargetRefused).is_none()
        );
        assert!(
            health(TransportFailureKind::Connect).is_some() && health(TransportFailureKind::Dns).is_some()
        );
    }
}
