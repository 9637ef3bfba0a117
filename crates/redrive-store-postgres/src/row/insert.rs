//! New jobs as columns, so that one statement adds many.

use redrive_core::time::ceil_ms;
use redrive_core::{NewJob, Order, Start, UniqueRule};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::pool::Parameter;

/// The columns of new jobs, in the order of the statement `enqueue`.
#[derive(Debug, Default)]
pub(crate) struct NewJobColumns<'a> {
    pub(crate) ids: Vec<Uuid>,
    pub(crate) lanes: Vec<i32>,
    pub(crate) at: Vec<Option<i64>>,
    pub(crate) after: Vec<i64>,
    pub(crate) timeouts: Vec<Option<i64>>,
    pub(crate) leases: Vec<Option<i64>>,
    pub(crate) tenants: Vec<&'a str>,
    pub(crate) policies: Vec<String>,
    pub(crate) keys: Vec<Option<&'a str>>,
    pub(crate) fingerprints: Vec<Option<&'a [u8]>>,
    pub(crate) targets: Vec<Option<&'a str>>,
    pub(crate) metadata: Vec<Option<&'a str>>,
    pub(crate) payloads: Vec<&'a [u8]>,
    pub(crate) parents: Vec<Option<Uuid>>,
    pub(crate) branches: Vec<Option<i32>>,
    pub(crate) partitions: Vec<Option<String>>,
    pub(crate) stricts: Vec<bool>,
    pub(crate) detached: Vec<bool>,
}

impl<'a> NewJobColumns<'a> {
    /// The columns of these jobs. Their lanes must be known.
    pub(crate) fn new(jobs: impl IntoIterator<Item = &'a NewJob>, lanes: &Lanes) -> Result<Self> {
        let mut columns = Self::default();
        for job in jobs {
            columns.add(job, lanes)?;
        }
        Ok(columns)
    }

    fn add(&mut self, job: &'a NewJob, lanes: &Lanes) -> Result<()> {
        let lane = lanes.number(job).ok_or_else(|| Error::failed("a lane has no number"))?;
        self.push(job, lane);
        Ok(())
    }

    fn push(&mut self, job: &'a NewJob, lane: i32) {
        let (at, after) = match job.start {
            Start::Now => (None, 0),
            Start::After(wait) => (None, ceil_ms(wait)),
            Start::At(at) => (Some(at.as_ms()), 0),
        };
        self.ids.push(job.id.0);
        self.lanes.push(lane);
        self.at.push(at);
        self.after.push(after);
        self.timeouts.push(job.timeout.map(ceil_ms));
        self.leases.push(job.lease.map(ceil_ms));
        self.tenants.push(job.tenant.as_str());
        self.policies.push(job.policy.to_string());
        self.keys.push(job.idempotency.as_ref().map(|idempotency| idempotency.key.as_str()));
        self.fingerprints
            .push(job.idempotency.as_ref().map(|idempotency| idempotency.fingerprint.as_slice()));
        self.targets.push(job.target.as_deref());
        self.metadata.push(job.metadata.as_deref());
        self.payloads.push(&job.payload);
        self.parents.push(job.parent.map(|parent| parent.id.0));
        self.branches.push(job.parent.map(|parent| parent.branch as i32));
        self.partitions.push(job.partition.as_ref().map(|partition| partition.scope(&job.queue)));
        self.stricts.push(job.partition.as_ref().is_some_and(|partition| partition.order == Order::Strict));
        self.detached.push(job.parent.is_some_and(|parent| parent.detached));
    }

    pub(crate) fn parameters(&self) -> [Parameter<'_>; 18] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.lanes, Type::INT4_ARRAY),
            (&self.at, Type::INT8_ARRAY),
            (&self.after, Type::INT8_ARRAY),
            (&self.timeouts, Type::INT8_ARRAY),
            (&self.leases, Type::INT8_ARRAY),
            (&self.tenants, Type::TEXT_ARRAY),
            (&self.policies, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.fingerprints, Type::BYTEA_ARRAY),
            (&self.targets, Type::TEXT_ARRAY),
            (&self.metadata, Type::TEXT_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
            (&self.parents, Type::UUID_ARRAY),
            (&self.branches, Type::INT4_ARRAY),
            (&self.partitions, Type::TEXT_ARRAY),
            (&self.stricts, Type::BOOL_ARRAY),
            (&self.detached, Type::BOOL_ARRAY),
        ]
    }
}

/// The columns of new jobs with unique keys, in the order of the statement `enqueue_unique`.
#[derive(Debug, Default)]
pub(crate) struct UniqueJobColumns<'a> {
    pub(crate) jobs: NewJobColumns<'a>,
    pub(crate) kinds: Vec<&'a str>,
    pub(crate) keys: Vec<&'a str>,
    pub(crate) rules: Vec<i16>,
    pub(crate) spans: Vec<Option<i64>>,
}

impl<'a> UniqueJobColumns<'a> {
    /// The columns of the jobs that have a unique key.
    pub(crate) fn new(jobs: impl IntoIterator<Item = &'a NewJob>, lanes: &Lanes) -> Result<Self> {
        let mut columns = Self::default();
        for (job, unique) in jobs.into_iter().filter_map(|job| Some((job, job.unique.as_ref()?))) {
            let (rule, span) = match unique.rule {
                UniqueRule::Live => (LIVE, None),
                UniqueRule::For(span) => (FOR, Some(ceil_ms(span))),
                UniqueRule::Replace => (REPLACE, None),
            };
            columns.jobs.add(job, lanes)?;
            columns.kinds.push(job.kind.as_str());
            columns.keys.push(unique.key.as_str());
            columns.rules.push(rule);
            columns.spans.push(span);
        }
        Ok(columns)
    }

    pub(crate) fn parameters(&self) -> impl Iterator<Item = Parameter<'_>> {
        let unique: [Parameter<'_>; 4] = [
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.rules, Type::INT2_ARRAY),
            (&self.spans, Type::INT8_ARRAY),
        ];
        self.jobs.parameters().into_iter().chain(unique)
    }
}

/// The codes of [`UniqueRule`] in the statement `enqueue_unique`.
const LIVE: i16 = 0;
const FOR: i16 = 1;
const REPLACE: i16 = 2;

/// The latest due time of these jobs. Only the server can compare a time with its clock; waits are checked earlier.
pub(crate) fn latest_due_time<'a>(jobs: impl IntoIterator<Item = &'a NewJob>) -> Option<i64> {
    let at = |job: &NewJob| match job.start {
        Start::At(at) => Some(at.as_ms()),
        Start::Now | Start::After(_) => None,
    };
    jobs.into_iter().filter_map(at).max()
}
