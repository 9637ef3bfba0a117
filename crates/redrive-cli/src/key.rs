//! `redrive key`: API keys, made and revoked in the store itself, so that the first one can be made before a service runs.

use anyhow::Context as _;
use redrive::Redrive;
use redrive_core::Tenant;
use redrive_server::keys::{self, NewKey, Scope};

use crate::config::Place;
use crate::serve::runtime;

/// What to do with keys.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Make a key; it is shown once
    Create(Create),
    /// Show keys, without their secrets
    List(Place),
    /// Revoke a key
    Revoke {
        /// The key's id, as `list` shows it
        id: String,
        #[command(flatten)]
        place: Place,
    },
}

/// A key to make.
#[derive(clap::Args)]
pub(crate) struct Create {
    /// What people call it
    #[arg(long)]
    name: String,
    /// Whose tasks it sees; all when absent
    #[arg(long)]
    tenant: Option<String>,
    /// What it allows: read, write or admin
    #[arg(long, default_value = "write")]
    scope: Scope,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    let runtime = runtime()?;
    match verb {
        Verb::Create(create) => runtime.block_on(make(create)),
        Verb::List(place) => runtime.block_on(list(&place)),
        Verb::Revoke { id, place } => runtime.block_on(revoke(&id, &place)),
    }
}

async fn make(create: Create) -> anyhow::Result<()> {
    let redrive = open(&create.place).await?;
    let tenant = create.tenant.map(Tenant::new).transpose()?;
    let new = NewKey { name: create.name, tenant, scope: create.scope };
    let now = redrive.backend().stats().await?.now;
    let (key, secret) = keys::create(&**redrive.backend(), new, now).await?;
    eprintln!("key {} with scope {}; this is the only time it is shown:", key.id, key.scope);
    println!("{secret}");
    Ok(())
}

async fn list(place: &Place) -> anyhow::Result<()> {
    let redrive = open(place).await?;
    let mut after: Option<String> = None;
    println!("{:<20} {:<6} {:<20} NAME", "ID", "SCOPE", "TENANT");
    loop {
        let page = keys::list(&**redrive.backend(), after.as_deref(), 100).await?;
        for key in &page {
            let tenant = key.tenant.as_ref().map_or("(all)", Tenant::as_str);
            println!("{:<20} {:<6} {tenant:<20} {}", key.id, key.scope.name(), key.name);
        }
        match page.last() {
            Some(last) => after = Some(last.id.clone()),
            None => return Ok(()),
        }
    }
}

async fn revoke(id: &str, place: &Place) -> anyhow::Result<()> {
    let redrive = open(place).await?;
    let known = keys::revoke(&**redrive.backend(), id).await?;
    anyhow::ensure!(known, "there is no key {id}; `redrive key list` shows them");
    eprintln!("key {id} is revoked");
    Ok(())
}

async fn open(place: &Place) -> anyhow::Result<Redrive> {
    Redrive::open(&place.store).await.context(
        "the store cannot be opened; while a service runs on it, use its API: POST /keys with an admin key",
    )
}
