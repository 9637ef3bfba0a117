//! What a job waits for, as columns.

use std::borrow::Cow;

use redrive_core::{Await, Invalid, SignalName};

/// The columns of an [`Await`].
#[derive(Debug, Default)]
pub(crate) struct Columns<'a> {
    pub(crate) code: Option<u8>,
    pub(crate) name: Option<Cow<'a, str>>,
    pub(crate) branch: Option<u32>,
    pub(crate) failures: Option<u32>,
}

impl<'a> Columns<'a> {
    /// The columns of what a job waits for, or of nothing.
    pub(crate) fn of(awaits: Option<&'a Await>) -> Self {
        match awaits {
            None => Self::default(),
            Some(Await::Signal(name)) => {
                Self { code: Some(0), name: Some(name.as_str().into()), ..Self::default() }
            }
            Some(Await::Children { branch, failures_max }) => Self {
                code: Some(1),
                branch: Some(*branch),
                failures: Some(*failures_max),
                ..Self::default()
            },
            Some(Await::Unhold) => Self { code: Some(2), ..Self::default() },
            Some(Await::Turn) => Self { code: Some(3), ..Self::default() },
            Some(any @ Await::Any(_)) => {
                Self { code: Some(4), name: Some(any.parts_json().into()), ..Self::default() }
            }
        }
    }
}

/// Reads the columns: code, name, branch and failures.
pub(crate) fn read(
    code: Option<u8>,
    name: impl FnOnce() -> Result<String, Invalid>,
    number: impl Fn(Number) -> Result<u32, Invalid>,
) -> Result<Option<Await>, Invalid> {
    match code {
        None => Ok(None),
        Some(0) => Ok(Some(Await::Signal(SignalName::new(name()?)?))),
        Some(1) => Ok(Some(Await::Children {
            branch: number(Number::Branch)?,
            failures_max: number(Number::Failures)?,
        })),
        Some(2) => Ok(Some(Await::Unhold)),
        Some(3) => Ok(Some(Await::Turn)),
        Some(4) => Await::from_parts_json(&name()?).map(Some),
        Some(code) => Err(Invalid::new("awaits", format!("{code} is nothing to wait for"))),
    }
}

/// A column with a number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Number {
    Branch,
    Failures,
}
