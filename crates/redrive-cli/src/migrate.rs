//! `redrive migrate`: the tables of a store, made or brought up to date before a service needs them.

use anyhow::Context as _;

use crate::config::Place;
use crate::print;
use crate::serve::runtime;

pub(crate) fn run(place: &Place) -> anyhow::Result<()> {
    let migrated = runtime()?.block_on(redrive::migrate(place.checked()?));
    let schema = migrated.context("the tables cannot be brought up to date")?;
    print::line(&format!("{} is at schema {schema}", redrive::shown(&place.store)))?;
    Ok(())
}
