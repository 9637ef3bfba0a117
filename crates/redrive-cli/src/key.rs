//! `redrive key`: API keys, in a running service or, before one runs, in the store itself.

use anyhow::Context as _;
use redrive::Redrive;
use redrive_core::Tenant;
use redrive_server::keys::{self, KeysError, NewKey, Scope};
use redrive_server::wire::key::{ApiKey, KeyRequest};

use crate::call::{Query, Reach, Service};
use crate::config::{DEFAULT_STORE, check_store};
use crate::exit::Exit;
use crate::explicit::ExplicitOptions;
use crate::list::{self, Columns, Pages, Paging};
use crate::print::{self, Look};
use crate::table::{Cell, Table};
use crate::when;

/// What to do with keys.
///
/// They are those of the store that --store names or of the service that --url names. Without either option REDRIVE_STORE
/// counts before REDRIVE_URL, and without a variable they are those of the store sqlite:redrive.db. So the first key can be
/// made before a service runs. It must have scope admin and no tenant; from then on every call needs a key, even after keys
/// were revoked.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    explicit: ExplicitOptions,
    #[command(subcommand)]
    verb: Verb,
    /// The store: sqlite:FILE, postgres://USER:PASSWORD@HOST/DATABASE or redis://USER:PASSWORD@HOST
    #[arg(long, env = "REDRIVE_STORE", hide_env_values = true, value_name = "ADDRESS", global = true)]
    store: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Make a key; it is shown once
    Create(Create),
    /// Show keys, without their secrets
    List,
    /// Revoke a key; the last admin key that is bound to no tenant stays
    Revoke {
        /// The key's id, as `list` shows it
        #[arg(value_name = "KEY")]
        id: String,
    },
}

/// A key to make.
#[derive(clap::Args)]
struct Create {
    /// What people call it
    #[arg(long)]
    name: String,
    /// Whose tasks it sees; all when absent
    #[arg(long)]
    tenant: Option<String>,
    /// What it allows: read, write or admin
    #[arg(long, default_value = "write", value_parser = clap::builder::PossibleValuesParser::new(SCOPES))]
    scope: String,
    /// Let it see request and response bodies, payloads, outputs and steps; a key of scope admin always may
    #[arg(long)]
    bodies: bool,
}

const SCOPES: [&str; 3] = ["read", "write", "admin"];
const KEYS: &str = "keys";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let Arguments { explicit, verb, mut store, mut reach } = arguments;
    explicit.decide(("store", &mut store), ("url", &mut reach.url))?;
    match (store, &reach.url) {
        (None, Some(_)) => in_service(verb, &reach, &reach.service()?).await,
        (store, _) => in_store(verb, &reach, store.as_deref().unwrap_or(DEFAULT_STORE)).await,
    }
}

async fn in_service(verb: Verb, reach: &Reach, service: &Service) -> anyhow::Result<Exit> {
    match verb {
        Verb::Create(create) => {
            let Create { bodies, .. } = create;
            let (scope, tenant) = (Some(create.scope()?), create.tenant);
            let request = KeyRequest { name: create.name, tenant, scope, bodies };
            let answer = service.post(&[KEYS], &request).await?;
            made(reach, &answer.read()?)
        }
        Verb::List => {
            list::show(reach, Pages::new(service, &[KEYS], Query::new(), &Paging::all()), &COLUMNS).await
        }
        Verb::Revoke { id } => {
            service.delete(&[KEYS, &id]).await?;
            revoked(&id)
        }
    }
}

async fn in_store(verb: Verb, reach: &Reach, store: &str) -> anyhow::Result<Exit> {
    let redrive = open(store, &verb).await?;
    let records = &**redrive.backend();
    match verb {
        Verb::Create(create) => {
            let (scope, tenant) = (create.scope()?, create.tenant.map(Tenant::new).transpose()?);
            let now = redrive.backend().stats().await?.now;
            let new = NewKey { name: create.name, tenant, scope, bodies: create.bodies };
            let (key, secret) = keys::create(records, new, now).await.map_err(refused)?;
            made(reach, &ApiKey::show(key, Some(secret)))
        }
        Verb::List => {
            let mut table = None;
            let mut after: Option<String> = None;
            loop {
                let page = keys::list(records, after.as_deref(), 100).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.id.clone());
                show_page(reach, &mut table, page.into_iter().map(|key| ApiKey::show(key, None)).collect())?;
            }
            if table.is_none() && !reach.json {
                print::note(COLUMNS.none);
            }
            Ok(Exit::Done)
        }
        Verb::Revoke { id } => {
            if !keys::revoke(records, &id).await.map_err(refused)? {
                return Err(
                    Exit::NotFound.because(format!("there is no key {id}; `redrive key list` shows them"))
                );
            }
            revoked(&id)
        }
    }
}

/// How the command ends when the store's keys must not be changed so.
fn refused(error: KeysError) -> anyhow::Error {
    match error {
        KeysError::FirstKeyNotAdmin => {
            Exit::Refused.because(format!("{error}: redrive key create --name NAME --scope admin"))
        }
        KeysError::LastAdminKey => Exit::Refused.because(error.to_string()),
        KeysError::Contended | KeysError::Store(_) => error.into(),
    }
}

impl Create {
    fn scope(&self) -> anyhow::Result<Scope> {
        Ok(self.scope.parse()?)
    }
}

const COLUMNS: Columns<ApiKey> = Columns {
    heads: &["KEY", "SCOPE", "TENANT", "CREATED", "NAME"],
    spare: &["CREATED"],
    row: |key, look| {
        vec![
            Cell::whole(&key.key_id),
            Cell::text(allows(key)),
            Cell::text(key.tenant.as_deref().unwrap_or("(all)")),
            Cell::age(Some(key.created_at), look),
            Cell::text(&key.name),
        ]
    },
    none: "there are no keys",
};

/// The scope, and whether a key that is not an admin's may see bodies.
fn allows(key: &ApiKey) -> String {
    match key.scope {
        Scope::Read | Scope::Write if key.bodies => format!("{}, bodies", key.scope),
        Scope::Read | Scope::Write | Scope::Admin => key.scope.to_string(),
    }
}

fn show_page(reach: &Reach, table: &mut Option<Table>, keys: Vec<ApiKey>) -> anyhow::Result<()> {
    if reach.json {
        return keys.iter().try_for_each(print::json);
    }
    let look = Look::of_stdout(when::now_here());
    let table = table.get_or_insert_with(|| Table::new(COLUMNS.heads, COLUMNS.spare, look));
    keys.iter().for_each(|key| table.row((COLUMNS.row)(key, &look)));
    Ok(print::text(&table.show())?)
}

fn made(reach: &Reach, key: &ApiKey) -> anyhow::Result<Exit> {
    if reach.json {
        print::json(key)?;
        return Ok(Exit::Done);
    }
    print::note(&format!("key {} with scope {}; this is the only time it is shown:", key.key_id, key.scope));
    print::line(key.key.as_deref().unwrap_or_default())?;
    Ok(Exit::Done)
}

fn revoked(id: &str) -> anyhow::Result<Exit> {
    print::note(&format!("key {id} is revoked"));
    Ok(Exit::Done)
}

/// A new file is made for a new key alone: elsewhere it would only hide that this is the wrong folder.
async fn open(store: &str, verb: &Verb) -> anyhow::Result<Redrive> {
    check_store("--store", store)?;
    let missing = store == DEFAULT_STORE && !std::path::Path::new("redrive.db").exists();
    if missing && !matches!(verb, Verb::Create(_)) {
        let text = "there is no redrive.db here; name a store with --store, or a service with --url";
        return Err(Exit::NotFound.because(text));
    }
    Redrive::open(store).await.context(
        "the store cannot be opened; while a service runs on it, name that with --url and use an admin key",
    )
}
