//! Parses the options in `#[task(…)]`.

use syn::meta::ParseNestedMeta;
use syn::parse::Parse;
use syn::{Attribute, Expr, LitStr, Path, Type};

use crate::kind;

const OPTIONS: &str = "kind, output, policy, determinism, crate";

/// The options of `#[task(…)]`.
#[derive(Default)]
pub(crate) struct Attributes {
    pub(crate) kind: Option<LitStr>,
    pub(crate) output: Option<Type>,
    pub(crate) policy: Option<Expr>,
    pub(crate) determinism: Option<Expr>,
    pub(crate) krate: Option<Path>,
}

impl Attributes {
    /// Parses every `#[task(…)]` of a type. Each option may appear once.
    pub(crate) fn read(attributes: &[Attribute]) -> syn::Result<Self> {
        let mut options = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("task")) {
            attribute.parse_nested_meta(|option| options.read_option(&option))?;
        }
        Ok(options)
    }

    fn read_option(&mut self, option: &ParseNestedMeta<'_>) -> syn::Result<()> {
        let name = option.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match name.as_str() {
            "kind" => {
                set(&mut self.kind, option, &name)?;
                self.kind.as_ref().map_or(Ok(()), kind::check)
            }
            "output" => set(&mut self.output, option, &name),
            "policy" => set(&mut self.policy, option, &name),
            "determinism" => set(&mut self.determinism, option, &name),
            "crate" => set(&mut self.krate, option, &name),
            _ => Err(option.error(format!("unknown option; the options are {OPTIONS}"))),
        }
    }
}

fn set<V: Parse>(place: &mut Option<V>, option: &ParseNestedMeta<'_>, name: &str) -> syn::Result<()> {
    if place.is_some() {
        return Err(option.error(format!("the option {name} is set twice")));
    }
    *place = Some(option.value()?.parse()?);
    Ok(())
}
