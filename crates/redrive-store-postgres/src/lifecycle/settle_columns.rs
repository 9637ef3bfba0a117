//! Settlements as columns, so that one statement applies many.

use std::borrow::Cow;
use std::collections::HashSet;

use redrive_core::store::Settlement;
use redrive_core::time::ceil_ms;
use redrive_core::{AttemptReport, Lease, Reason, WaitCondition};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::Result;
use crate::lanes::Lanes;
use crate::pool::Parameter;
use crate::row::insert::NewJobColumns;
use crate::row::wait_condition::WaitConditionColumns;

/// A lease as the key of a row.
pub(crate) fn key(lease: Lease) -> (Uuid, i64) {
    (lease.id.0, lease.epoch as i64)
}

/// The columns of settlements, in the order of the statement `settle`.
#[derive(Default)]
pub(crate) struct SettlementColumns<'a> {
    /// The first settlement of each lease, in the order of the call.
    pub(crate) firsts: Vec<&'a Settlement>,
    ids: Vec<Uuid>,
    epochs: Vec<i64>,
    states: Vec<i16>,
    states_if_cancelling: Vec<i16>,
    waits: Vec<Option<i64>>,
    refunds: Vec<i32>,
    budget_pauses: Vec<i64>,
    errors: Vec<Option<&'a str>>,
    statuses: Vec<Option<i32>>,
    reasons: Vec<Option<&'static str>>,
    outputs: Vec<Option<&'a [u8]>>,
    awaits: WaitColumns<'a>,
    attempts: AttemptColumns<'a>,
}

/// The columns of the conditions that settled jobs wait for.
#[derive(Default)]
struct WaitColumns<'a> {
    codes: Vec<Option<i16>>,
    names: Vec<Option<Cow<'a, str>>>,
    branches: Vec<Option<i32>>,
    failures: Vec<Option<i64>>,
}

impl<'a> WaitColumns<'a> {
    fn push(&mut self, awaits: Option<&'a WaitCondition>) {
        let WaitConditionColumns { code, name, branch, failures } = WaitConditionColumns::new(awaits);
        self.codes.push(code);
        self.names.push(name);
        self.branches.push(branch);
        self.failures.push(failures);
    }
}

/// The columns of logged attempts, NULL for settlements without one.
#[derive(Default)]
struct AttemptColumns<'a> {
    runs: Vec<Option<i32>>,
    attempts: Vec<Option<i32>>,
    started_at: Vec<Option<i64>>,
    durations: Vec<Option<i64>>,
    outcomes: Vec<Option<&'a str>>,
    errors: Vec<Option<&'a str>>,
    details: Vec<Option<&'a str>>,
}

impl<'a> AttemptColumns<'a> {
    fn push(&mut self, report: Option<&'a AttemptReport>) {
        self.runs.push(report.map(|report| report.run as i32));
        self.attempts.push(report.map(|report| report.attempt as i32));
        self.started_at.push(report.map(|report| report.started_at.as_ms()));
        self.durations.push(report.map(|report| ceil_ms(report.duration)));
        self.outcomes.push(report.map(|report| report.outcome.as_str()));
        self.errors.push(report.and_then(|report| report.error.as_deref()));
        self.details.push(report.and_then(|report| report.detail.as_deref()));
    }
}

/// The columns of follow-ups, each with the lease of its settlement.
#[derive(Default)]
pub(crate) struct FollowUpColumns<'a> {
    follows: Vec<Uuid>,
    epochs: Vec<i64>,
    jobs: NewJobColumns<'a>,
}

impl<'a> FollowUpColumns<'a> {
    pub(crate) fn new(columns: &SettlementColumns<'a>, lanes: &Lanes) -> Result<Self> {
        let jobs = columns.firsts.iter().flat_map(|settlement| &settlement.follow_ups);
        let mut follow_ups = Self { jobs: NewJobColumns::new(jobs, lanes)?, ..Self::default() };
        for settlement in &columns.firsts {
            let (id, epoch) = key(settlement.lease);
            follow_ups.follows.extend(settlement.follow_ups.iter().map(|_| id));
            follow_ups.epochs.extend(settlement.follow_ups.iter().map(|_| epoch));
        }
        Ok(follow_ups)
    }

    pub(crate) fn parameters(&self) -> impl Iterator<Item = Parameter<'_>> {
        let leases: [Parameter<'_>; 2] =
            [(&self.follows, Type::UUID_ARRAY), (&self.epochs, Type::INT8_ARRAY)];
        leases.into_iter().chain(self.jobs.parameters())
    }
}

impl<'a> SettlementColumns<'a> {
    /// Orders the columns by id, so that concurrent writers lock rows in the same order.
    pub(crate) fn new(settlements: &'a [Settlement]) -> Self {
        let mut leases = HashSet::with_capacity(settlements.len());
        let firsts: Vec<&Settlement> =
            settlements.iter().filter(|settlement| leases.insert(settlement.lease)).collect();
        let mut ordered = firsts.clone();
        ordered.sort_by_key(|settlement| settlement.lease);
        let mut columns = Self { firsts, ..Self::default() };
        for settlement in ordered {
            columns.push(settlement);
        }
        columns
    }

    fn push(&mut self, settlement: &'a Settlement) {
        let effect = settlement.verdict.effect();
        let (id, epoch) = key(settlement.lease);
        self.ids.push(id);
        self.epochs.push(epoch);
        self.states.push(effect.state.code().into());
        self.states_if_cancelling.push(effect.state_if_cancelling.code().into());
        self.waits.push(effect.wait.map(ceil_ms));
        self.refunds.push(effect.refund as i32);
        self.budget_pauses.push(ceil_ms(effect.budget_pause));
        self.errors.push(settlement.error.as_deref());
        self.statuses.push(settlement.status.map(i32::from));
        self.reasons.push(settlement.verdict.reason().map(Reason::name));
        self.outputs.push(settlement.verdict.output());
        self.awaits.push(settlement.verdict.awaits());
        self.attempts.push(settlement.entry.as_ref());
    }

    pub(crate) fn parameters(&self) -> [Parameter<'_>; 22] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.epochs, Type::INT8_ARRAY),
            (&self.states, Type::INT2_ARRAY),
            (&self.states_if_cancelling, Type::INT2_ARRAY),
            (&self.waits, Type::INT8_ARRAY),
            (&self.refunds, Type::INT4_ARRAY),
            (&self.budget_pauses, Type::INT8_ARRAY),
            (&self.errors, Type::TEXT_ARRAY),
            (&self.statuses, Type::INT4_ARRAY),
            (&self.reasons, Type::TEXT_ARRAY),
            (&self.outputs, Type::BYTEA_ARRAY),
            (&self.awaits.codes, Type::INT2_ARRAY),
            (&self.awaits.names, Type::TEXT_ARRAY),
            (&self.awaits.branches, Type::INT4_ARRAY),
            (&self.awaits.failures, Type::INT8_ARRAY),
            (&self.attempts.runs, Type::INT4_ARRAY),
            (&self.attempts.attempts, Type::INT4_ARRAY),
            (&self.attempts.started_at, Type::INT8_ARRAY),
            (&self.attempts.durations, Type::INT8_ARRAY),
            (&self.attempts.outcomes, Type::TEXT_ARRAY),
            (&self.attempts.errors, Type::TEXT_ARRAY),
            (&self.attempts.details, Type::TEXT_ARRAY),
        ]
    }
}
