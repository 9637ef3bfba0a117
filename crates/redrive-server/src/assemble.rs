//! Puts a whole service together from addresses and flags.

use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use redrive::Redrive;
use redrive_core::store::Backend;
use redrive_delivery::bodies::{Bodies, OpenError};
use redrive_delivery::gate::{GateRules, Gates};
use redrive_delivery::secrets::{KeyError, SecretKey, Vault};
use redrive_delivery::{Guard, Parts, Transport, TransportError, TransportSettings};

use crate::keys;
use crate::service::{Config, Service, StartError};

/// Everything a service is made of, by address.
#[derive(Clone)]
pub struct Setup {
    /// Where it listens, what it does, how its worker works.
    pub config: Config,
    /// The store's address.
    pub store: String,
    /// Where large bodies go.
    pub bodies: String,
    /// What signing secrets and credentials in headers are encrypted with.
    pub secret_key: KeySource,
    /// Targets that are allowed although they are special.
    pub allow: Vec<IpNet>,
    /// Targets that are refused although they are public.
    pub deny: Vec<IpNet>,
    /// The highest number of calls under way to one origin.
    pub origin_concurrency: u32,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("config", &self.config)
            .field("store", &redrive::shown(&self.store))
            .field("bodies", &redrive::shown(&self.bodies))
            .finish_non_exhaustive()
    }
}

/// Where the key comes from that signing secrets are encrypted with.
#[derive(Clone)]
pub enum KeySource {
    /// A file that only its owner can read; it is made if there is none.
    File(PathBuf),
    /// The base64 of 32 bytes.
    Text(String),
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(…)"),
        }
    }
}

/// Why a service could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] redrive::Error),
    /// The object store cannot be opened.
    #[error(transparent)]
    Bodies(#[from] OpenError),
    /// The key cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The service did not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Opens everything and starts to listen.
pub async fn assemble(setup: Setup) -> Result<Service, AssembleError> {
    let store = Redrive::open(&setup.store).await?.backend().clone();
    let parts = Parts {
        gates: Arc::new(Gates::new(GateRules::default().with_origin_concurrency(setup.origin_concurrency))),
        bodies: Bodies::open(&setup.bodies)?,
        vault: Arc::new(Vault::new(&secret_key(&setup.secret_key)?)),
    };
    let guard = guard(&setup, &*store).await?;
    let settings = TransportSettings {
        guard,
        // As many as may be under way: fewer would be closed and dialled again between calls.
        idle_per_origin_max: setup.origin_concurrency as usize,
        ..TransportSettings::default()
    };
    let transport = Transport::new(settings)?;
    Ok(Service::start(setup.config, store, parts, transport).await?)
}

fn secret_key(source: &KeySource) -> Result<SecretKey, KeyError> {
    match source {
        KeySource::File(path) => SecretKey::load_or_create(path),
        KeySource::Text(text) => SecretKey::from_base64(text),
    }
}

/// Whoever can reach a service without keys can reach this machine anyway: only then may targets be on it.
async fn guard(setup: &Setup, store: &dyn Backend) -> Result<Guard, StartError> {
    let private = setup.config.listen.ip().is_loopback() && !keys::any_ever(store).await?;
    let guard = if private { Guard::open_to_loopback() } else { Guard::public_only() };
    let guard = setup.allow.iter().fold(guard, |guard, range| guard.allow(*range));
    Ok(setup.deny.iter().fold(guard, |guard, range| guard.deny(*range)))
}
