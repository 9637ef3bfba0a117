//! Generates the `impl Task` of a type.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, parse_quote};

use crate::attributes::Attributes;
use crate::kind;

/// Generates the `impl Task` of a type. Fails if the type cannot be a task.
pub(crate) fn task(input: &DeriveInput) -> syn::Result<TokenStream> {
    refuse_unions(input)?;
    refuse_generics(input)?;
    let Attributes { kind, output, policy, determinism, krate } = Attributes::read(&input.attrs)?;
    let name = &input.ident;
    let kind = kind.unwrap_or_else(|| kind::of_type(name));
    kind::check(&kind)?;
    let output = output.unwrap_or_else(|| parse_quote!(()));
    let krate = krate.unwrap_or_else(|| parse_quote!(::redrive));
    let policy = policy.map(|policy| quote!(fn policy() -> #krate::Policy { #policy }));
    let determinism =
        determinism.map(|determinism| quote!(fn determinism() -> #krate::Determinism { #determinism }));
    Ok(quote! {
        #[automatically_derived]
        impl #krate::Task for #name {
            const KIND: &'static str = #kind;
            type Output = #output;
            #policy
            #determinism
        }
    })
}

fn refuse_unions(input: &DeriveInput) -> syn::Result<()> {
    match &input.data {
        Data::Struct(_) | Data::Enum(_) => Ok(()),
        Data::Union(union) => {
            Err(syn::Error::new(union.union_token.span, "a task is a struct or an enum, not a union"))
        }
    }
}

fn refuse_generics(input: &DeriveInput) -> syn::Result<()> {
    let Some(parameter) = input.generics.params.first() else { return Ok(()) };
    let problem = match parameter {
        syn::GenericParam::Lifetime(_) => {
            "a task owns its payload: use String instead of &str, Vec instead of a slice"
        }
        syn::GenericParam::Type(_) | syn::GenericParam::Const(_) => {
            "a task has no generic parameters, because a kind names one type; derive Task for a type that wraps this one"
        }
    };
    Err(syn::Error::new_spanned(parameter, problem))
}

#[cfg(test)]
mod tests {
    use syn::parse_str;

    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let input = parse_str(text).expect("a type");
        task(&input).map(|tokens| tokens.to_string()).map_err(|error| error.to_string())
    }

    /// Ignores spaces, because the spaces in printed tokens depend on their origin.
    fn check(text: &str, expected: &str) {
        let without_spaces = |text: &str| text.split_whitespace().collect::<String>();
        let tokens = expanded(text).map(|tokens| without_spaces(&tokens));
        assert_eq!(tokens, Ok(without_spaces(expected)), "{text}");
    }

    #[test]
    fn a_task_has_a_kind_and_an_output_without_options() {
        check(
            "struct SendReceipt { order: u64 }",
            "#[automatically_derived] impl ::redrive::Task for SendReceipt {
                const KIND: &'static str = \"send_receipt\"; type Output = ();
            }",
        );
    }

    #[test]
    fn each_option_sets_what_it_names() {
        check(
            "#[task(kind = \"charge\", output = Vec<u64>)] #[task(crate = jobs::engine)]
             #[task(policy = patient(3), determinism = Strict)]
             enum Charge { Card, Cash }",
            "#[automatically_derived] impl jobs::engine::Task for Charge {
                const KIND: &'static str = \"charge\"; type Output = Vec<u64>;
                fn policy() -> jobs::engine::Policy { patient(3) }
                fn determinism() -> jobs::engine::Determinism { Strict }
            }",
        );
    }

    #[test]
    fn a_type_that_cannot_be_a_task_is_rejected_with_the_reason() {
        let long = format!("#[task(kind = \"{}\")] struct A;", "k".repeat(129));
        for (text, problem) in [
            ("union A { a: u8 }", "not a union"),
            ("struct A<T> { a: T }", "a kind names one type"),
            ("struct A<const N: usize>;", "a kind names one type"),
            ("struct A<'a> { a: &'a str }", "use String instead of &str"),
            ("#[task(name = \"a\")] struct A;", "the options are kind, output, policy, determinism, crate"),
            ("#[task(kind = \"a\", kind = \"b\")] struct A;", "the option kind is set twice"),
            ("#[task(kind = \"\")] struct A;", "must not be empty"),
            ("#[task(kind = \"a\\nb\")] struct A;", "control characters"),
            ("#[task(kind = 7)] struct A;", "expected string literal"),
            ("#[task(kind)] struct A;", "expected `=`"),
            ("#[task] struct A;", "expected attribute arguments in parentheses"),
            (&long, "129 bytes long, at most 128"),
        ] {
            match expanded(text) {
                Err(error) => assert!(error.contains(problem), "{text}: {error}"),
                Ok(tokens) => panic!("{text} became {tokens}"),
            }
        }
    }
}
