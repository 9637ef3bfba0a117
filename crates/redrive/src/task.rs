//! What a user defines: a payload that names its kind.

use redrive_core::Policy;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Determinism;

/// A kind of job: the type is its payload, stored as JSON.
///
/// The kind is stored with each job, so it must not change while jobs of it exist; the type's fields may, as far as
/// serde can read the old ones.
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// The name under which jobs of this type are stored.
    const KIND: &'static str;
    /// What a successful attempt returns; it is kept on the job.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// When to try again. A job keeps the policy it was enqueued with.
    fn policy() -> Policy {
        Policy::default()
    }

    /// What happens when the handler's steps are no longer those that were remembered.
    fn determinism() -> Determinism {
        Determinism::default()
    }
}
