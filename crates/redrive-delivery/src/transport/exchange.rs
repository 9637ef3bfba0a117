//! The request of one attempt, and its result.

use std::error::Error;
use std::time::Duration;

use http::{HeaderMap, Method};
use hyper_util::client::legacy;
use redrive_core::{Deferral, Failure, FailureKind};

use crate::evidence::{Evidence, Phase};
use crate::target::Target;
use crate::transport::dial::{DialError, Peer};
use crate::transport::local::LocalFailure;
use crate::transport::progress::Progress;
use crate::transport::upload::Upload;

/// The wait of a task that this node could not send. The node itself pauses for longer; another node may take the task.
pub(crate) const LOCAL_FAILURE_WAIT: Duration = Duration::from_secs(1);
/// The wait of a task whose stored body could not be read while it was sent.
const BODY_FAILURE_WAIT: Duration = Duration::from_secs(5);

/// A request that is sent once.
#[derive(Debug)]
pub struct OutgoingRequest<'a> {
    /// The target.
    pub target: &'a Target,
    /// The method; gRPC is always POST.
    pub method: Method,
    /// All headers, including redrive's own.
    pub headers: HeaderMap,
    /// The body; for gRPC the serialised message.
    pub body: Upload,
    /// The number of attempts before this one. gRPC sends it to the target.
    pub previous_attempts: u32,
    /// The time limit of this attempt. gRPC sends it to the target; the caller enforces it.
    pub timeout: Option<Duration>,
    /// Records how far the request gets. The caller reads it after it has dropped the attempt.
    pub progress: Progress,
}

impl<'a> OutgoingRequest<'a> {
    /// The first attempt of a POST without headers and body.
    pub fn new(target: &'a Target) -> Self {
        Self {
            target,
            method: Method::POST,
            headers: HeaderMap::new(),
            body: Upload::empty(),
            previous_attempts: 0,
            timeout: None,
            progress: Progress::new(),
        }
    }
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// How far the request got.
    pub phase: Phase,
    /// The HTTP status of the answer.
    pub status: Option<u16>,
    /// The gRPC code of the answer.
    pub grpc_code: Option<u16>,
    /// The start of the answer, safe to show.
    pub excerpt: Option<String>,
    /// The pause that the target asks for.
    pub retry_after: Option<Duration>,
    /// The target asks not to be called again.
    pub no_retry: bool,
    /// The other end of the connection.
    pub peer: Option<Peer>,
    /// Why the call failed; `None` on success.
    pub failure: Option<TransportFailure>,
    /// A remark about the answer that does not change the result, such as a body that broke off.
    pub note: Option<String>,
}

impl Exchange {
    /// Whether the call succeeded.
    pub fn is_success(&self) -> bool {
        self.failure.is_none()
    }

    /// The failure as the policy sees it; `None` on success.
    pub fn to_failure(&self) -> Option<Failure> {
        let failure = self.failure.as_ref()?;
        let failure = Failure::new(failure.kind.failure_kind(), &failure.message);
        Some(match self.retry_after {
            Some(wait) => failure.with_retry_after(wait),
            None => failure,
        })
    }

    /// Why the attempt is not charged: this node or the stored body failed, not the target. `None` when the attempt counts.
    pub fn deferral(&self) -> Option<Deferral> {
        let failure = self.failure.as_ref()?;
        match failure.kind {
            // The message is the same for every task, so that the node reports one problem and not several.
            TransportFailureKind::Local(local) => Some(Deferral::of_node(LOCAL_FAILURE_WAIT, local)),
            TransportFailureKind::Body => Some(Deferral::of_job(BODY_FAILURE_WAIT, &failure.message)),
            TransportFailureKind::TargetRefused
            | TransportFailureKind::Dns
            | TransportFailureKind::Connect
            | TransportFailureKind::ConnectTimeout
            | TransportFailureKind::Tls
            | TransportFailureKind::Connection
            | TransportFailureKind::Status(_)
            | TransportFailureKind::Grpc(_) => None,
        }
    }

    /// The evidence for the attempt log.
    pub fn evidence(&self) -> Evidence {
        Evidence {
            phase: self.phase,
            status: self.status,
            grpc_code: self.grpc_code,
            excerpt: self.excerpt.clone(),
            address: self.peer.map(|peer| peer.address.to_string()),
            protocol: self.peer.map(|peer| peer.protocol.name().to_owned()),
            note: self.note.clone(),
        }
    }

    /// An exchange without a failure, up to what `progress` has recorded.
    pub(crate) fn from_progress(progress: &Progress) -> Self {
        Self {
            phase: progress.settled_phase(),
            status: progress.status(),
            grpc_code: None,
            excerpt: None,
            retry_after: None,
            no_retry: false,
            peer: progress.peer(),
            failure: None,
            note: None,
        }
    }

    /// An exchange that ended without an answer.
    pub(crate) fn unanswered(progress: &Progress, error: &legacy::Error) -> Self {
        Self { failure: Some(TransportFailure::of(progress, error)), ..Self::from_progress(progress) }
    }
}

/// Why a call failed: before the answer, or because of the answer's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportFailure {
    /// Its kind.
    pub kind: TransportFailureKind,
    /// The message for people.
    pub message: String,
}

/// The kinds of [`TransportFailure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportFailureKind {
    /// This node could not send the request.
    Local(LocalFailure),
    /// The guard does not allow the address of the target.
    TargetRefused,
    /// The target's host has no address.
    Dns,
    /// The target does not accept connections.
    Connect,
    /// The connection took too long to open.
    ConnectTimeout,
    /// The TLS handshake with the target failed.
    Tls,
    /// The connection broke, or the answer was not HTTP.
    Connection,
    /// The body of the request could not be read completely.
    Body,
    /// An HTTP status other than 2xx.
    Status(u16),
    /// A gRPC code other than 0.
    Grpc(u16),
}

impl TransportFailureKind {
    /// The kind under which a policy classifies this failure.
    pub fn failure_kind(self) -> FailureKind {
        match self {
            Self::Local(_)
            | Self::Dns
            | Self::Connect
            | Self::ConnectTimeout
            | Self::Tls
            | Self::Connection
            | Self::Body => FailureKind::Connection,
            Self::TargetRefused => FailureKind::TargetRefused,
            Self::Status(status) => FailureKind::Status(status),
            Self::Grpc(code) => FailureKind::Grpc(code),
        }
    }
}

impl TransportFailure {
    pub(crate) fn new(kind: TransportFailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    fn of(progress: &Progress, error: &legacy::Error) -> Self {
        if let Some(failure) = progress.body_failure() {
            let kind = failure.local.map_or(TransportFailureKind::Body, TransportFailureKind::Local);
            return Self::new(
                kind,
                format!("the body of the request could not be read: {}", failure.message),
            );
        }
        let Some(cause) = error.source() else {
            return Self::new(TransportFailureKind::Connection, error.to_string());
        };
        if let Some(dial) = cause.downcast_ref::<DialError>() {
            return Self::new(kind_of(dial), message_of(dial));
        }
        let when = match progress.settled_phase() {
            Phase::NeverSent => "before the request was sent",
            Phase::NoAnswer | Phase::Answered => "before an answer came",
        };
        Self::new(
            TransportFailureKind::Connection,
            format!("the connection broke {when}: {}", explain(cause)),
        )
    }
}

fn kind_of(error: &DialError) -> TransportFailureKind {
    match error {
        DialError::Refused(_) => TransportFailureKind::TargetRefused,
        DialError::Local(failure) => TransportFailureKind::Local(*failure),
        DialError::Dns { .. } => TransportFailureKind::Dns,
        DialError::Connect { .. } => TransportFailureKind::Connect,
        DialError::Timeout { .. } => TransportFailureKind::ConnectTimeout,
        DialError::Tls { .. } => TransportFailureKind::Tls,
    }
}

/// The message for people. It leaves out the cause of a refusal, which contains the address.
fn message_of(error: &DialError) -> String {
    match error {
        DialError::Refused(_) | DialError::Local(_) => error.to_string(),
        DialError::Dns { .. }
        | DialError::Connect { .. }
        | DialError::Timeout { .. }
        | DialError::Tls { .. } => explain(error),
    }
}

/// The messages of an error and its causes, without repetitions.
pub(crate) fn explain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
