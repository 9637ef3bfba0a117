//! What a job waits for, as columns.

use std::borrow::Cow;

use redrive_core::{Await, Invalid, SignalName};

/// The codes of [`Await`]; they never change meaning.
const SIGNAL: i16 = 0;
const CHILDREN: i16 = 1;
const UNHOLD: i16 = 2;
const TURN: i16 = 3;
const ANY: i16 = 4;

/// The columns of an [`Await`], all empty for nothing.
#[derive(Debug, Default)]
pub(crate) struct AwaitColumns<'a> {
    pub(crate) code: Option<i16>,
    pub(crate) name: Option<Cow<'a, str>>,
    pub(crate) branch: Option<i32>,
    pub(crate) failures: Option<i64>,
}

impl<'a> AwaitColumns<'a> {
    /// The columns of what a job waits for.
    pub(crate) fn of(awaits: Option<&'a Await>) -> Self {
        let plain = |code| Self { code: Some(code), ..Self::default() };
        match awaits {
            None => Self::default(),
            Some(Await::Signal(name)) => Self { name: Some(name.as_str().into()), ..plain(SIGNAL) },
            Some(Await::Children { branch, failures_max }) => Self {
                branch: Some(*branch as i32),
                failures: Some((*failures_max).into()),
                ..plain(CHILDREN)
            },
            Some(Await::Unhold) => plain(UNHOLD),
            Some(Await::Turn) => plain(TURN),
            Some(any @ Await::Any(_)) => Self { name: Some(any.parts_json().into()), ..plain(ANY) },
        }
    }
}

/// Reads the columns of a row; a claim empties the code and leaves the others.
pub(crate) fn read(
    code: Option<i16>,
    name: impl FnOnce() -> Result<String, Invalid>,
    branch: impl FnOnce() -> Result<i32, Invalid>,
    failures: impl FnOnce() -> Result<i64, Invalid>,
) -> Result<Option<Await>, Invalid> {
    let Some(code) = code else { return Ok(None) };
    Ok(Some(match code {
        SIGNAL => Await::Signal(SignalName::new(name()?)?),
        CHILDREN => Await::Children {
            branch: branch()? as u32,
            failures_max: u32::try_from(failures()?)
                .map_err(|_| Invalid::new("awaits_failures", "cannot be read: is no number of failures"))?,
        },
        UNHOLD => Await::Unhold,
        TURN => Await::Turn,
        ANY => Await::from_parts_json(&name()?)?,
        _ => return Err(Invalid::new("awaits", "cannot be read: is nothing to wait for")),
    }))
}
