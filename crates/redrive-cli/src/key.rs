//! `redrive key`: API keys, in a running service or directly in a store.

use anyhow::Context as _;
use redrive::Redrive;
use redrive_core::Tenant;
use redrive_server::keys::{self, KeysError, NewKey};
use redrive_wire::Scope;
use redrive_wire::key::{ApiKey, KeyRequest};

use crate::client::{Client, Query, ServiceOptions};
use crate::exit::ExitStatus;
use crate::options::ExplicitOptions;
use crate::output::list::{self, Columns, Pages, Paging};
use crate::output::table::{Cell, Table};
use crate::output::time;
use crate::output::{self, OutputStyle};
use crate::serve::config::{DEFAULT_STORE, check_store};

/// Create, list and revoke API keys
///
/// The keys are in the store of --store, or in the service of --url. Without either option, REDRIVE_STORE wins over
/// REDRIVE_URL, and the default is the store sqlite:redrive.db, so that you can create the first key before a service runs.
/// The first key must have scope admin and no tenant. From then on every call needs a key, even after keys were revoked.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    explicit: ExplicitOptions,
    #[command(subcommand)]
    command: KeyCommand,
    /// The store: sqlite:FILE, postgres://USER:PASSWORD@HOST/DATABASE or redis://USER:PASSWORD@HOST
    #[arg(long, env = "REDRIVE_STORE", hide_env_values = true, value_name = "ADDRESS", global = true)]
    store: Option<String>,
    #[command(flatten)]
    options: ServiceOptions,
}

#[derive(clap::Subcommand)]
enum KeyCommand {
    /// Create a key, and print it once
    Create(CreateArguments),
    /// List keys, without their secrets
    List,
    /// Revoke a key; the last admin key without a tenant cannot be revoked
    Revoke {
        /// The id of the key, as `list` prints it
        #[arg(value_name = "KEY")]
        id: String,
    },
}

#[derive(clap::Args)]
struct CreateArguments {
    /// A name by which people recognise the key
    #[arg(long)]
    name: String,
    /// The tenant of the key; without it the key sees all tenants
    #[arg(long)]
    tenant: Option<String>,
    /// The scope of the key
    #[arg(long, default_value = "write", value_parser = clap::builder::PossibleValuesParser::new(SCOPES))]
    scope: String,
    /// Allow the key to read bodies, payloads, outputs and steps; a key of scope admin always may
    #[arg(long)]
    bodies: bool,
}

const SCOPES: [&str; 3] = ["read", "write", "admin"];
const KEYS: &str = "keys";

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitStatus> {
    let Arguments { explicit, command, mut store, mut options } = arguments;
    explicit.resolve(("store", &mut store), ("url", &mut options.url))?;
    match (store, &options.url) {
        (None, Some(_)) => in_service(command, &options, &options.client()?).await,
        (store, _) => in_store(command, &options, store.as_deref().unwrap_or(DEFAULT_STORE)).await,
    }
}

async fn in_service(
    command: KeyCommand,
    options: &ServiceOptions,
    client: &Client,
) -> anyhow::Result<ExitStatus> {
    match command {
        KeyCommand::Create(create) => {
            let CreateArguments { bodies, .. } = create;
            let (scope, tenant) = (Some(create.scope()?), create.tenant);
            let request = KeyRequest { name: create.name, tenant, scope, bodies };
            let answer = client.post(&[KEYS], &request).await?;
            show_created(options, &answer.read()?)
        }
        KeyCommand::List => {
            list::show(options, Pages::new(client, &[KEYS], Query::new(), &Paging::all()), &COLUMNS).await
        }
        KeyCommand::Revoke { id } => {
            client.delete(&[KEYS, &id]).await?;
            show_revoked(&id)
        }
    }
}

async fn in_store(command: KeyCommand, options: &ServiceOptions, store: &str) -> anyhow::Result<ExitStatus> {
    let redrive = open(store, &command).await?;
    let records = &**redrive.backend();
    match command {
        KeyCommand::Create(create) => {
            let (scope, tenant) = (create.scope()?, create.tenant.map(Tenant::new).transpose()?);
            let now = redrive.backend().stats().await?.now;
            let new = NewKey { name: create.name, tenant, scope, bodies: create.bodies };
            let (key, secret) = keys::create(records, new, now).await.map_err(key_error)?;
            show_created(options, &redrive_server::present::api_key(key, Some(secret)))
        }
        KeyCommand::List => {
            let mut table = None;
            let mut after: Option<String> = None;
            loop {
                let page = keys::list(records, after.as_deref(), 100).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.id.clone());
                show_page(
                    options,
                    &mut table,
                    page.into_iter().map(|key| redrive_server::present::api_key(key, None)).collect(),
                )?;
            }
            if table.is_none() && !options.json {
                output::note(COLUMNS.empty);
            }
            Ok(ExitStatus::Success)
        }
        KeyCommand::Revoke { id } => {
            if !keys::revoke(records, &id).await.map_err(key_error)? {
                return Err(ExitStatus::NotFound
                    .error(format!("there is no key {id}: `redrive key list` lists the keys")));
            }
            show_revoked(&id)
        }
    }
}

/// Converts an error of the keys into an exit status.
fn key_error(error: KeysError) -> anyhow::Error {
    match error {
        KeysError::FirstKeyNotAdmin => {
            ExitStatus::Rejected.error(format!("{error}: redrive key create --name NAME --scope admin"))
        }
        KeysError::LastAdminKey => ExitStatus::Rejected.error(error.to_string()),
        KeysError::Store(_) => error.into(),
    }
}

impl CreateArguments {
    fn scope(&self) -> anyhow::Result<Scope> {
        Ok(self.scope.parse()?)
    }
}

const COLUMNS: Columns<ApiKey> = Columns {
    headers: &["KEY", "SCOPE", "TENANT", "CREATED", "NAME"],
    optional: &["CREATED"],
    row: |key, style| {
        vec![
            Cell::id(&key.key_id),
            Cell::text(scope_text(key)),
            Cell::text(key.tenant.as_deref().unwrap_or("(all)")),
            Cell::age(Some(key.created_at), style),
            Cell::text(&key.name),
        ]
    },
    empty: "there are no keys",
};

/// The scope, and whether a key without scope admin may read bodies.
fn scope_text(key: &ApiKey) -> String {
    match key.scope {
        Scope::Read | Scope::Write if key.bodies => format!("{}, bodies", key.scope),
        Scope::Read | Scope::Write | Scope::Admin => key.scope.to_string(),
    }
}

fn show_page(options: &ServiceOptions, table: &mut Option<Table>, keys: Vec<ApiKey>) -> anyhow::Result<()> {
    if options.json {
        return keys.iter().try_for_each(output::json);
    }
    let style = OutputStyle::of_stdout(time::now());
    let table = table.get_or_insert_with(|| COLUMNS.table(style));
    keys.iter().for_each(|key| table.add_row((COLUMNS.row)(key, &style)));
    Ok(output::text(&table.render())?)
}

fn show_created(options: &ServiceOptions, key: &ApiKey) -> anyhow::Result<ExitStatus> {
    if options.json {
        output::json(key)?;
        return Ok(ExitStatus::Success);
    }
    output::note(&format!("created key {} with scope {}; it is shown only once:", key.key_id, key.scope));
    output::line(key.key.as_deref().unwrap_or_default())?;
    Ok(ExitStatus::Success)
}

fn show_revoked(id: &str) -> anyhow::Result<ExitStatus> {
    output::note(&format!("revoked key {id}"));
    Ok(ExitStatus::Success)
}

/// Opens the store. Only `create` may create a new file; otherwise the command was run in the wrong folder.
async fn open(store: &str, command: &KeyCommand) -> anyhow::Result<Redrive> {
    check_store("--store", store)?;
    let missing = store == DEFAULT_STORE && !std::path::Path::new("redrive.db").exists();
    if missing && !matches!(command, KeyCommand::Create(_)) {
        let text = "there is no redrive.db here: set --store or --url";
        return Err(ExitStatus::NotFound.error(text));
    }
    Redrive::open(store)
        .await
        .context("cannot open the store: if a service uses it, set --url and use an admin key")
}
