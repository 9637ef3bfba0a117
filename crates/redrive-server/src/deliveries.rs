//! The parts of the delivery crate that routes use: large bodies, signing secrets and gates.

use redrive_core::{Job, JobId, Tenant};
use redrive_delivery::bodies::{AttachError, PutError, attach, detach};
use redrive_delivery::gate::{HoldKind, OriginState, OriginStatus};
use redrive_delivery::secrets::VaultError;
use redrive_delivery::{BodyRef, Target};
use tokio::time::Instant;

use crate::api::Api;
use crate::error::{Answer, Problem};
use crate::metrics::GateNumbers;
use crate::request_body::BodyReadError;
use redrive_wire::Code;

/// A hold of a task by the gate of its origin.
pub(crate) struct GateHold {
    pub(crate) origin: String,
    pub(crate) detail: String,
    pub(crate) ends_in: std::time::Duration,
}

impl Api {
    /// Stores a large body for a task that is about to be created.
    pub(crate) async fn store_body(&self, task: JobId, tenant: &Tenant, bytes: Vec<u8>) -> Answer<BodyRef> {
        let now = crate::api::now();
        let body = self.parts.bodies.put_bytes(&*self.store, tenant, bytes, now).await?;
        attach(&*self.store, &body, tenant, task, now).await?;
        Ok(body)
    }

    /// Attaches a body that the tenant has uploaded to a task that is about to be created.
    pub(crate) async fn attach_body(&self, task: JobId, tenant: &Tenant, body: &BodyRef) -> Answer<()> {
        Ok(attach(&*self.store, body, tenant, task, crate::api::now()).await?)
    }

    /// Undoes [`Api::store_body`] or [`Api::attach_body`] for a task that turned out to be a repeat, because another request was
    /// faster. If this fails, the hourly cleanup removes the body.
    pub(crate) async fn release_body(&self, task: JobId, tenant: &Tenant, body: &BodyRef) {
        if let Err(error) = detach(&*self.store, body, tenant, task).await {
            tracing::debug!(%task, %error, "cannot release the body of a repeated request; the cleanup will remove it");
        }
    }

    /// Rejects the name of a secret that the tenant does not have.
    pub(crate) async fn check_secret(&self, tenant: &Tenant, name: &str) -> Answer<()> {
        match self.parts.vault.active_secrets(&*self.store, tenant, name).await {
            // The secret exists, but only another key can decrypt it: the task waits for a node with that key.
            Ok(_) | Err(VaultError::WrongKey) => Ok(()),
            Err(VaultError::NotFound) => {
                let detail = format!(
                    "there is no signing secret {name:?}; create it with PUT /v1/signing-secrets/{name}"
                );
                Err(Problem::invalid("signingSecret", detail))
            }
            Err(VaultError::Invalid(invalid)) => Err(Problem::invalid("signingSecret", invalid.problem)),
            Err(error) => Err(error.into()),
        }
    }

    /// The numbers of the gates of this node, for metrics.
    pub(crate) fn gate_numbers(&self) -> Vec<GateNumbers> {
        self.parts.gates.status(Instant::now()).into_iter().map(gate_numbers).collect()
    }

    /// The hold of a task, if the gate of its origin on this node holds it back.
    pub(crate) fn gate_hold(&self, job: &Job) -> Option<GateHold> {
        let origin = Target::parse(job.target.as_deref()?).ok()?.origin().to_string();
        let hold = self.parts.gates.hold(&origin, Instant::now())?;
        let detail = format!("the gate of {origin} holds calls back: {}", hold_reason(hold.kind));
        Some(GateHold { detail, ends_in: hold.ends_in, origin })
    }
}

fn hold_reason(kind: HoldKind) -> &'static str {
    match kind {
        HoldKind::Blocked => "the origin failed too often, so calls are blocked for a while",
        HoldKind::RetryAfter => "the origin asked for a pause with Retry-After",
        HoldKind::Full => "the limit of calls in progress is reached",
        HoldKind::Probing => "a probe is testing whether the origin works again",
        HoldKind::RetriesYield => "first attempts wait, and retries already use their half of the limit",
    }
}

fn gate_numbers(status: OriginStatus) -> GateNumbers {
    let state = match status.state {
        OriginState::Passing => 0,
        OriginState::Held | OriginState::Probing => 1,
        OriginState::Blocked => 2,
    };
    let (limit, in_flight) = (i64::from(status.limit), i64::from(status.in_flight));
    GateNumbers { origin: status.origin, state, limit, in_flight }
}

impl From<PutError> for Problem {
    fn from(error: PutError) -> Self {
        match error {
            PutError::TooLarge => Self::new(Code::BodyTooLarge, error.to_string()),
            PutError::Interrupted(ref cause) => match BodyReadError::find_in(&**cause) {
                Some(fault) => fault.into(),
                None => Self::new(Code::BrokenBody, error.to_string()),
            },
            PutError::Store(cause) => {
                tracing::warn!(%cause, "cannot store a body");
                Self::new(Code::Unavailable, "the body could not be stored; try again in a second")
            }
        }
    }
}

impl From<AttachError> for Problem {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Gone => Self::invalid("bodyRef", error.to_string()).with_code(Code::UnknownBody),
            AttachError::TooManyTasks => Self::invalid("bodyRef", error.to_string()),
            AttachError::Store(error) => error.into(),
        }
    }
}

impl From<VaultError> for Problem {
    fn from(error: VaultError) -> Self {
        match error {
            VaultError::NotFound => Self::new(Code::NotFound, error.to_string()),
            VaultError::Invalid(invalid) => invalid.into(),
            VaultError::Store(error) => error.into(),
            VaultError::Exists => Self::new(Code::Unavailable, error.to_string()),
            VaultError::WrongKey => Self::internal(&error),
        }
    }
}
