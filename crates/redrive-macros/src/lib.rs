//! `#[derive(Task)]`, which the `redrive` crate re-exports: use it from there.

mod attributes;
mod expand;
mod kind;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `redrive::Task` for a struct or an enum, which is the payload of the job.
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
/// Options stand in the attribute `#[task(…)]`:
///
/// | option | value | without it |
/// | --- | --- | --- |
/// | `kind = "…"` | the name under which jobs are stored | the name of the type in snake_case |
/// | `output = TYPE` | what the handler returns | `()` |
/// | `policy = EXPRESSION` | a `redrive::Policy`: when to try again | `Policy::default()` |
/// | `determinism = EXPRESSION` | a `redrive::Determinism` | `Determinism::default()` |
/// | `crate = PATH` | where the `redrive` crate is | `::redrive` |
///
/// The kind is stored with each job. Before you rename a type whose jobs may still be in the store, give it its former kind.
///
/// ```
/// use redrive::{Policy, Task, presets};
/// use serde::{Deserialize, Serialize};
///
/// fn patient() -> Policy {
///     presets::upload()
/// }
///
/// #[derive(Serialize, Deserialize, Task)]
/// #[task(kind = "charge", output = u64, policy = patient())]
/// struct ChargeCard {
///     cents: u64,
/// }
///
/// assert_eq!(ChargeCard::KIND, "charge");
/// assert_eq!(ChargeCard::policy(), presets::upload());
/// ```
///
/// A task has no type parameters, because a kind names one type:
///
/// ```compile_fail
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, redrive::Task)]
/// struct Send<T> {
///     to: T,
/// }
/// ```
///
/// An option that does not exist is an error, as is a kind that no store would take:
///
/// ```compile_fail
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, redrive::Task)]
/// #[task(name = "send")]
/// struct Send;
/// ```
///
/// ```compile_fail
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, redrive::Task)]
/// #[task(kind = "")]
/// struct Send;
/// ```
///
/// The type must be its own payload: without serde's derives the compiler names what is missing.
///
/// ```compile_fail,E0277
/// #[derive(redrive::Task)]
/// struct Send;
/// ```
#[proc_macro_derive(Task, attributes(task))]
pub fn derive_task(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::task(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
