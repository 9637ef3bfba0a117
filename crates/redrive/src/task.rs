//! The trait that a program implements for the payload of each kind of job.

use redrive_core::Policy;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Determinism;

/// A kind of job. The type is the payload of the job and is stored as JSON.
///
/// The kind is stored with each job, so it must not change while such jobs exist. The fields of the type may change as long as
/// serde can read the stored payloads.
///
/// With the feature `macros`, which is on by default, `#[derive(Task)]` implements the trait:
///
/// ```
/// use redrive::Task;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Task)]
/// struct SendReceipt {
///     order: u64,
/// }
///
/// assert_eq!(SendReceipt::KIND, "send_receipt");
/// ```
///
/// The attribute `#[task(…)]` takes `kind`, `output`, `policy`, `determinism` and `crate`:
///
/// ```
/// use redrive::{Policy, Task, presets};
/// use serde::{Deserialize, Serialize};
///
/// fn card_policy() -> Policy {
///     presets::upload()
/// }
///
/// #[derive(Serialize, Deserialize, Task)]
/// #[task(kind = "charge", output = u64, policy = card_policy())]
/// struct ChargeCard {
///     cents: u64,
/// }
///
/// assert_eq!(ChargeCard::KIND, "charge");
/// assert_eq!(ChargeCard::policy(), presets::upload());
/// ```
///
/// The same without the macro:
///
/// ```
/// use redrive::{Policy, Task, presets};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct ChargeCard {
///     cents: u64,
/// }
///
/// impl Task for ChargeCard {
///     const KIND: &'static str = "charge";
///     type Output = u64;
///
///     fn policy() -> Policy {
///         presets::upload()
///     }
/// }
/// ```
///
/// A task owns its payload and has no generic parameters, because a kind names one type. The macro rejects this type:
///
/// ```compile_fail
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, redrive::Task)]
/// struct Notify<T> {
///     to: T,
/// }
/// ```
///
/// It also rejects unknown options, and a kind that no store accepts:
///
/// ```compile_fail
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, redrive::Task)]
/// #[task(name = "notify")]
/// struct Notify;
/// ```
///
/// ```compile_fail
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, redrive::Task)]
/// #[task(kind = "")]
/// struct Notify;
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a task",
    note = "add `#[derive(redrive::Task)]` to the type, beside serde's `Serialize` and `Deserialize`"
)]
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// The name of this kind of job in the store.
    const KIND: &'static str;
    /// The result of a successful attempt. It is stored with the job.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// The policy for retries. A job keeps the policy that it was enqueued with.
    fn policy() -> Policy {
        Policy::default()
    }

    /// What happens when the handler's steps differ from the stored ones because the code has changed.
    fn determinism() -> Determinism {
        Determinism::default()
    }
}
