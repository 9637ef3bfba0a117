//! Delivers HTTP and gRPC calls under a policy, without making an outage worse.

mod answer;
pub mod call;
pub mod dial;
pub mod evidence;
mod exchange;
mod grpc;
pub mod guard;
pub mod headers;
mod http;
mod progress;
pub mod retry_after;
pub mod target;
mod tls;
mod transport;
mod upload;
mod wire;

pub use answer::{ANSWER_BYTES_MAX, EXCERPT_BYTES_MAX};
pub use call::{BodyRef, Call, CallBody, Passport};
pub use dial::{Peer, Protocol, Resolve};
pub use evidence::{Evidence, Phase};
pub use exchange::{Exchange, Outgoing, Sort, Trouble};
pub use grpc::GRPC_ANSWER_BYTES_MAX;
pub use guard::{Guard, Refused};
pub use progress::Progress;
pub use target::{Origin, Scheme, Target};
pub use transport::{Transport, TransportError, TransportSettings};
pub use upload::{BoxError, Upload};
