//! Puts a whole service together from addresses and flags.

use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use redrive::Redrive;
use redrive_core::StoreError;
use redrive_core::store::Backend;
use redrive_delivery::bodies::{Bodies, OpenError};
use redrive_delivery::gate::{GateRules, Gates};
use redrive_delivery::secrets::{KeyError, SecretKey, Vault};
use redrive_delivery::{Guard, Parts, Transport, TransportError, TransportSettings};

use crate::identity::{self, AcceptNew, IdentityError, secret_key};
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
    /// What this node may have other than the nodes before it on a shared store.
    pub accept_new: AcceptNew,
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
    /// It differs from the other nodes on its store.
    #[error(transparent)]
    Identity(IdentityError),
    /// The service did not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl From<IdentityError> for AssembleError {
    fn from(error: IdentityError) -> Self {
        match error {
            IdentityError::Key(error) => error.into(),
            IdentityError::Bodies(error) => error.into(),
            IdentityError::Store(error) => error.into(),
            mismatch @ IdentityError::Mismatch(_) => Self::Identity(mismatch),
        }
    }
}

impl From<StoreError> for AssembleError {
    fn from(error: StoreError) -> Self {
        StartError::from(error).into()
    }
}

/// Opens everything and starts to listen.
pub async fn assemble(setup: Setup) -> Result<Service, AssembleError> {
    let store = Redrive::open(&setup.store).await?.backend().clone();
    let (key, bodies) = key_and_bodies(&setup, &*store).await?;
    let parts = Parts {
        gates: Arc::new(Gates::new(GateRules::default().with_origin_concurrency(setup.origin_concurrency))),
        bodies,
        vault: Arc::new(Vault::new(&key)),
    };
    let settings = TransportSettings {
        guard: guard(&setup),
        // As many as may be under way: fewer would be closed and dialled again between calls.
        idle_per_origin_max: setup.origin_concurrency as usize,
        ..TransportSettings::default()
    };
    let transport = Transport::new(settings)?;
    let service = Service::start(setup.config, store, parts, transport.clone()).await?;
    Ok(service.guarding(transport).await)
}

/// Opens the key and the bodies. On a store that several nodes share they must be those of the other nodes; nothing is made
/// before that is known.
async fn key_and_bodies(setup: &Setup, store: &dyn Backend) -> Result<(SecretKey, Bodies), AssembleError> {
    let shared = redrive::is_shared(&setup.store)?;
    loop {
        if shared {
            identity::check(store, &setup.secret_key, &setup.bodies, setup.accept_new).await?;
        }
        let (key, bodies) = (secret_key(&setup.secret_key)?, Bodies::open(&setup.bodies)?);
        if !shared || identity::record(store, &key, &bodies, setup.accept_new).await? {
            return Ok((key, bodies));
        }
        // Another node was first: it is compared with now.
    }
}

/// What the settings allow and deny. Whether loopback is open besides depends on the API keys, and changes with them.
fn guard(setup: &Setup) -> Guard {
    let guard = setup.allow.iter().fold(Guard::public_only(), |guard, range| guard.allow(*range));
    setup.deny.iter().fold(guard, |guard, range| guard.deny(*range))
}
