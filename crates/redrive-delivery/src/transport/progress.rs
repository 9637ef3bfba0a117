//! Records how far an attempt got. It can be read after a timeout has dropped the future of the attempt.

use std::error::Error;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use http::Extensions;
use hyper_util::client::legacy::connect::CaptureConnection;

use crate::evidence::{Evidence, Phase};
use crate::transport::dial::Peer;
use crate::transport::exchange::explain;
use crate::transport::local::LocalFailure;

/// How far one attempt got. Clones share the same state.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<ProgressState>);

#[derive(Debug, Default)]
struct ProgressState {
    /// 0 before anything is written, [`SENDING`] from then on, [`ANSWERED`] once a status has arrived.
    phase: AtomicU8,
    status: AtomicU16,
    connection: OnceLock<CaptureConnection>,
    body_failure: OnceLock<BodyFailure>,
}

/// Why the body of the request could not be read.
#[derive(Debug)]
pub(crate) struct BodyFailure {
    pub(crate) message: String,
    /// Set if it is a problem of this node.
    pub(crate) local: Option<LocalFailure>,
}

const SENDING: u8 = 1;
const ANSWERED: u8 = 2;

impl Progress {
    /// The progress of an attempt that has not started.
    pub fn new() -> Self {
        Self::default()
    }

    /// How far an attempt got whose future was dropped.
    ///
    /// The connection may be about to write the request when the future is dropped. So an attempt that had a connection counts as
    /// sent: `NeverSent` is always true.
    pub fn phase(&self) -> Phase {
        match self.settled_phase() {
            Phase::NeverSent if self.peer().is_some() => Phase::NoAnswer,
            phase @ (Phase::NeverSent | Phase::NoAnswer | Phase::Answered) => phase,
        }
    }

    /// The status of the answer, if one has arrived.
    pub fn status(&self) -> Option<u16> {
        Some(self.0.status.load(Ordering::Acquire)).filter(|status| *status != 0)
    }

    /// The peer of the connection that carried the request, if there was one.
    pub fn peer(&self) -> Option<Peer> {
        let connection = self.0.connection.get()?.connection_metadata();
        let mut extras = Extensions::new();
        connection.as_ref()?.get_extras(&mut extras);
        extras.remove()
    }

    /// The evidence of an attempt whose future was dropped.
    pub fn evidence(&self) -> Evidence {
        let peer = self.peer();
        Evidence {
            status: self.status(),
            address: peer.map(|peer| peer.address.to_string()),
            protocol: peer.map(|peer| peer.protocol.name().to_owned()),
            ..Evidence::new(self.phase())
        }
    }

    /// How far an attempt got whose future has ended by itself. This is exact.
    pub(crate) fn settled_phase(&self) -> Phase {
        match self.0.phase.load(Ordering::Acquire) {
            0 => Phase::NeverSent,
            SENDING => Phase::NoAnswer,
            ANSWERED.. => Phase::Answered,
        }
    }

    pub(crate) fn set_connection(&self, connection: CaptureConnection) {
        // Each attempt has its own progress, so this is set once.
        let _ = self.0.connection.set(connection);
    }

    pub(crate) fn set_sending(&self) {
        self.0.phase.fetch_max(SENDING, Ordering::AcqRel);
    }

    pub(crate) fn set_answered(&self, status: u16) {
        self.0.status.store(status, Ordering::Release);
        self.set_answered_without_status();
    }

    /// An answer has started whose status comes at its end, as with gRPC.
    pub(crate) fn set_answered_without_status(&self) {
        self.0.phase.fetch_max(ANSWERED, Ordering::AcqRel);
    }

    pub(crate) fn set_body_failure(&self, error: &(dyn Error + 'static)) {
        let failure = BodyFailure { message: explain(error), local: LocalFailure::find_in(error) };
        // The first error is the cause of later ones.
        let _ = self.0.body_failure.set(failure);
    }

    pub(crate) fn body_failure(&self) -> Option<&BodyFailure> {
        self.0.body_failure.get()
    }
}
