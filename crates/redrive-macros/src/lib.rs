//! `#[derive(Task)]`, which the `redrive` crate re-exports: use it from there.

mod attributes;
mod expand;
mod kind;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `redrive::Task` for a struct or an enum, which is the payload of the job. See the trait for examples.
///
/// The attribute `#[task(…)]` sets options:
///
/// | option | value | default |
/// | --- | --- | --- |
/// | `kind = "…"` | the kind of the jobs | the name of the type in snake_case |
/// | `output = TYPE` | what the handler returns | `()` |
/// | `policy = EXPRESSION` | a `redrive::Policy`, for retries | `Policy::default()` |
/// | `determinism = EXPRESSION` | a `redrive::Determinism` | `Determinism::default()` |
/// | `crate = PATH` | the path of the `redrive` crate | `::redrive` |
///
/// The kind is stored with each job. If you rename a type whose jobs may still be in the store, set `kind` to its former kind.
#[proc_macro_derive(Task, attributes(task))]
pub fn derive_task(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::task(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
