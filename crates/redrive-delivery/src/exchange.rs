//! One attempt's request and what became of it.

use std::error::Error;
use std::time::Duration;

use http::{HeaderMap, Method};
use hyper_util::client::legacy;
use redrive_core::{Deferral, Failure, Fault};

use crate::dial::{DialError, Peer};
use crate::evidence::{Evidence, Phase};
use crate::local::LocalFailure;
use crate::progress::Progress;
use crate::target::Target;
use crate::upload::Upload;

/// How long a task waits that this node could not send. The node itself pauses for longer; another node may take the
/// task at once.
pub(crate) const LOCAL_FAILURE_WAIT: Duration = Duration::from_secs(1);
/// How long a task waits whose stored body could not be read while it was sent.
const BODY_FAILURE_WAIT: Duration = Duration::from_secs(5);

/// A request to be sent once.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// Where it goes.
    pub target: &'a Target,
    /// The method; gRPC is always POST.
    pub method: Method,
    /// All headers, redrive's own included.
    pub headers: HeaderMap,
    /// What is sent; for gRPC the serialised message.
    pub body: Upload,
    /// Attempts made before this one, which gRPC tells the target.
    pub previous_attempts: u32,
    /// The time this attempt has, which gRPC tells the target. Keeping to it is the caller's part.
    pub timeout: Option<Duration>,
    /// Where to note how far it came; for the caller to read when it drops the attempt.
    pub progress: Progress,
}

impl<'a> Outgoing<'a> {
    /// A first attempt at a POST without headers and body.
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

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// How far it came.
    pub phase: Phase,
    /// The HTTP status of the answer.
    pub status: Option<u16>,
    /// The gRPC code of the answer.
    pub grpc_code: Option<u16>,
    /// How the answer begins, safe to show.
    pub excerpt: Option<String>,
    /// How long the target asks to be left alone.
    pub retry_after: Option<Duration>,
    /// The target asks not to be called again.
    pub no_retry: bool,
    /// The other end of the connection.
    pub peer: Option<Peer>,
    /// What went wrong; none is success.
    pub trouble: Option<Trouble>,
    /// Something about the answer that is worth knowing but changes nothing, such as a body that broke off.
    pub note: Option<String>,
}

impl Exchange {
    /// Whether the target took the call.
    pub fn is_success(&self) -> bool {
        self.trouble.is_none()
    }

    /// What the policy decides about; none is success.
    pub fn failure(&self) -> Option<Failure> {
        let trouble = self.trouble.as_ref()?;
        let failure = Failure::new(trouble.sort.fault(), &trouble.message);
        Some(match self.retry_after {
            Some(wait) => failure.with_retry_after(wait),
            None => failure,
        })
    }

    /// Why the attempt was not made although the target is not to blame; none when there was an attempt.
    pub fn deferral(&self) -> Option<Deferral> {
        let trouble = self.trouble.as_ref()?;
        match trouble.sort {
            // The same words wherever the node met it, so that it is one problem and not several.
            Sort::Local(failure) => Some(Deferral::of_node(LOCAL_FAILURE_WAIT, failure)),
            Sort::Body => Some(Deferral::of_job(BODY_FAILURE_WAIT, &trouble.message)),
            Sort::Refused
            | Sort::Dns
            | Sort::Connect
            | Sort::ConnectTimeout
            | Sort::Tls
            | Sort::Connection
            | Sort::Status(_)
            | Sort::Grpc(_) => None,
        }
    }

    /// What to log about it.
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

    /// An exchange that has come as far as `progress` says, without trouble so far.
    pub(crate) fn so_far(progress: &Progress) -> Self {
        Self {
            phase: progress.settled_phase(),
            status: progress.status(),
            grpc_code: None,
            excerpt: None,
            retry_after: None,
            no_retry: false,
            peer: progress.peer(),
            trouble: None,
            note: None,
        }
    }

    /// An exchange that ended without an answer.
    pub(crate) fn unanswered(progress: &Progress, error: &legacy::Error) -> Self {
        Self { trouble: Some(Trouble::of(progress, error)), ..Self::so_far(progress) }
    }
}

/// What went wrong with an attempt, and what a person should read about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Its sort.
    pub sort: Sort,
    /// What a person should read.
    pub message: String,
}

/// The sort of a trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// This node could not send the request.
    Local(LocalFailure),
    /// The guard does not let the target's address be dialled.
    Refused,
    /// The target's host has no address.
    Dns,
    /// The target takes no connection.
    Connect,
    /// The connection took too long to open.
    ConnectTimeout,
    /// There is no TLS with the target.
    Tls,
    /// The connection broke, or what came over it was no HTTP.
    Connection,
    /// The request's own body could not be read to its end.
    Body,
    /// An HTTP status other than 2xx.
    Status(u16),
    /// A gRPC code other than 0.
    Grpc(u16),
}

impl Sort {
    /// What the policy knows it as.
    pub fn fault(self) -> Fault {
        match self {
            Self::Local(_)
            | Self::Dns
            | Self::Connect
            | Self::ConnectTimeout
            | Self::Tls
            | Self::Connection
            | Self::Body => Fault::Connection,
            Self::Refused => Fault::TargetRefused,
            Self::Status(status) => Fault::Status(status),
            Self::Grpc(code) => Fault::Grpc(code),
        }
    }
}

impl Trouble {
    pub(crate) fn new(sort: Sort, message: impl Into<String>) -> Self {
        Self { sort, message: message.into() }
    }

    fn of(progress: &Progress, error: &legacy::Error) -> Self {
        if let Some(failure) = progress.body_failure() {
            let sort = failure.local.map_or(Sort::Body, Sort::Local);
            return Self::new(sort, format!("the request's body could not be read: {}", failure.message));
        }
        let Some(cause) = error.source() else {
            return Self::new(Sort::Connection, error.to_string());
        };
        if let Some(dial) = cause.downcast_ref::<DialError>() {
            return Self::new(sort_of(dial), message_of(dial));
        }
        let when = match progress.settled_phase() {
            Phase::NeverSent => "before the request was sent",
            Phase::NoAnswer | Phase::Answered => "before an answer came",
        };
        Self::new(Sort::Connection, format!("the connection broke {when}: {}", explain(cause)))
    }
}

fn sort_of(error: &DialError) -> Sort {
    match error {
        DialError::Refused(_) => Sort::Refused,
        DialError::Local(failure) => Sort::Local(*failure),
        DialError::Dns { .. } => Sort::Dns,
        DialError::Connect { .. } => Sort::Connect,
        DialError::Timeout { .. } => Sort::ConnectTimeout,
        DialError::Tls { .. } => Sort::Tls,
    }
}

/// What a person should read. The cause of a refusal is left out: it names the address.
fn message_of(error: &DialError) -> String {
    match error {
        DialError::Refused(_) | DialError::Local(_) => error.to_string(),
        DialError::Dns { .. }
        | DialError::Connect { .. }
        | DialError::Timeout { .. }
        | DialError::Tls { .. } => explain(error),
    }
}

/// An error and its causes, each once.
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
