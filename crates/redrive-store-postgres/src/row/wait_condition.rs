//! The columns of the condition that a job waits for.

use std::borrow::Cow;

use redrive_core::{Invalid, SignalName, WaitCondition};

/// The codes of [`WaitCondition`] in the database. Their meaning never changes.
const SIGNAL: i16 = 0;
const CHILDREN: i16 = 1;
const UNPAUSED: i16 = 2;
const FREE_SLOT: i16 = 3;
const ANY: i16 = 4;

/// The columns of a [`WaitCondition`]. All are None if a job waits for nothing.
#[derive(Debug, Default)]
pub(crate) struct WaitConditionColumns<'a> {
    pub(crate) code: Option<i16>,
    pub(crate) name: Option<Cow<'a, str>>,
    pub(crate) branch: Option<i32>,
    pub(crate) failures: Option<i64>,
}

impl<'a> WaitConditionColumns<'a> {
    pub(crate) fn new(awaits: Option<&'a WaitCondition>) -> Self {
        let plain = |code| Self { code: Some(code), ..Self::default() };
        match awaits {
            None => Self::default(),
            Some(WaitCondition::Signal(name)) => Self { name: Some(name.as_str().into()), ..plain(SIGNAL) },
            Some(WaitCondition::Children { branch, failures_max }) => Self {
                branch: Some(*branch as i32),
                failures: Some((*failures_max).into()),
                ..plain(CHILDREN)
            },
            Some(WaitCondition::Unpaused) => plain(UNPAUSED),
            Some(WaitCondition::FreeSlot) => plain(FREE_SLOT),
            Some(any @ WaitCondition::Any(_)) => Self { name: Some(any.parts_json().into()), ..plain(ANY) },
        }
    }
}

/// Reads the columns of a row. A claim sets the code to NULL and leaves the others as they are.
pub(crate) fn read(
    code: Option<i16>,
    name: impl FnOnce() -> Result<String, Invalid>,
    branch: impl FnOnce() -> Result<i32, Invalid>,
    failures: impl FnOnce() -> Result<i64, Invalid>,
) -> Result<Option<WaitCondition>, Invalid> {
    let Some(code) = code else { return Ok(None) };
    Ok(Some(match code {
        SIGNAL => WaitCondition::Signal(SignalName::new(name()?)?),
        CHILDREN => WaitCondition::Children {
            branch: branch()? as u32,
            failures_max: u32::try_from(failures()?).map_err(|_| {
                Invalid::new("awaits_failures", "cannot be read: is not a number of failures")
            })?,
        },
        UNPAUSED => WaitCondition::Unpaused,
        FREE_SLOT => WaitCondition::FreeSlot,
        ANY => WaitCondition::from_parts_json(&name()?)?,
        _ => return Err(Invalid::new("awaits", "cannot be read: is not a wait condition")),
    }))
}
