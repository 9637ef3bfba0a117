//! How far an attempt has come, readable even after its future was dropped by a timeout.

use std::error::Error;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use http::Extensions;
use hyper_util::client::legacy::connect::CaptureConnection;

use crate::dial::Peer;
use crate::evidence::{Evidence, Phase};
use crate::exchange::explain;
use crate::local::LocalFailure;

/// A shared note of how far one attempt has come. Clones read the same note.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Note>);

#[derive(Debug, Default)]
struct Note {
    /// 0 while nothing was written, then 1 while it is, then 2 once a status is back.
    phase: AtomicU8,
    status: AtomicU16,
    connection: OnceLock<CaptureConnection>,
    body_failure: OnceLock<BodyFailure>,
}

/// Why the request's own body could not be read.
#[derive(Debug)]
pub(crate) struct BodyFailure {
    pub(crate) message: String,
    /// Set when it is a problem of this node.
    pub(crate) local: Option<LocalFailure>,
}

const SENDING: u8 = 1;
const ANSWERED: u8 = 2;

impl Progress {
    /// A note for an attempt that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// How far an attempt came whose future was dropped.
    ///
    /// The connection may be about to write the request when its future is dropped, so having had a connection counts
    /// as having sent: an attempt is never called unsent when it was sent.
    pub fn phase(&self) -> Phase {
        match self.settled_phase() {
            Phase::NeverSent if self.peer().is_some() => Phase::NoAnswer,
            phase @ (Phase::NeverSent | Phase::NoAnswer | Phase::Answered) => phase,
        }
    }

    /// The status that came back, if one did.
    pub fn status(&self) -> Option<u16> {
        Some(self.0.status.load(Ordering::Acquire)).filter(|status| *status != 0)
    }

    /// The other end of the connection that took the request, if one did.
    pub fn peer(&self) -> Option<Peer> {
        let connection = self.0.connection.get()?.connection_metadata();
        let mut extras = Extensions::new();
        connection.as_ref()?.get_extras(&mut extras);
        extras.remove()
    }

    /// What to log about an attempt whose future was dropped.
    pub fn evidence(&self) -> Evidence {
        let peer = self.peer();
        Evidence {
            status: self.status(),
            address: peer.map(|peer| peer.address.to_string()),
            protocol: peer.map(|peer| peer.protocol.name().to_owned()),
            ..Evidence::new(self.phase())
        }
    }

    /// How far an attempt came whose future has ended by itself: exact, because the request came back or was taken.
    pub(crate) fn settled_phase(&self) -> Phase {
        match self.0.phase.load(Ordering::Acquire) {
            0 => Phase::NeverSent,
            SENDING => Phase::NoAnswer,
            ANSWERED.. => Phase::Answered,
        }
    }

    pub(crate) fn watch(&self, connection: CaptureConnection) {
        // A second watch of the same note cannot happen: each attempt has its own.
        let _ = self.0.connection.set(connection);
    }

    pub(crate) fn sending(&self) {
        self.0.phase.fetch_max(SENDING, Ordering::AcqRel);
    }

    pub(crate) fn answered(&self, status: u16) {
        self.0.status.store(status, Ordering::Release);
        self.answered_without_status();
    }

    /// An answer has begun whose status is still to come, as with gRPC.
    pub(crate) fn answered_without_status(&self) {
        self.0.phase.fetch_max(ANSWERED, Ordering::AcqRel);
    }

    pub(crate) fn body_failed(&self, error: &(dyn Error + 'static)) {
        let failure = BodyFailure { message: explain(error), local: LocalFailure::behind(error) };
        // The first error is the cause; what follows is its echo.
        let _ = self.0.body_failure.set(failure);
    }

    pub(crate) fn body_failure(&self) -> Option<&BodyFailure> {
        self.0.body_failure.get()
    }
}
