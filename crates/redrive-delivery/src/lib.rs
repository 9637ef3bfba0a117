//! Delivers HTTP and gRPC calls under a policy, without making an outage worse.

pub mod call;
mod callback;
pub mod deliver;
pub mod encoding;
pub mod evidence;
pub mod gate;
mod gated_call;
pub mod guard;
pub mod headers;
pub mod resolve;
pub mod retry_after;
pub mod secrets;
pub mod sign;
pub mod target;
mod transport;

pub use call::{Call, CallBody, HeaderText, PropagatedContext};
pub use deliver::{Deliverer, DeliveryParts, KIND};
pub use evidence::{Evidence, Phase};
pub use guard::{Guard, GuardError, LoopbackAccess};
pub use redrive_bodies as bodies;
pub use redrive_bodies::{Bodies, BodyRef};
pub use resolve::{Resolve, ResolveError, SystemResolver};
pub use target::{Origin, Scheme, Target};
pub use transport::dial::{DialError, Peer, Protocol};
pub use transport::exchange::{Exchange, OutgoingRequest, TransportFailure, TransportFailureKind};
pub use transport::grpc::{GRPC_ANSWER_BYTES_MAX, name as grpc_name};
pub use transport::local::LocalFailure;
pub use transport::progress::Progress;
pub use transport::response_body::{EXCERPT_BYTES_MAX, RESPONSE_BYTES_MAX};
pub use transport::upload::{BoxError, Upload};
pub use transport::{Transport, TransportError, TransportSettings};
