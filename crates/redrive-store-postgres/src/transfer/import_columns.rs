//! Snapshots as columns, so that one statement imports many.

use redrive_core::steps::Step;
use redrive_core::time::ceil_ms;
use redrive_core::transfer::{JobSnapshot, RecordSnapshot, StoredSignal};
use redrive_core::{Attempt, Job, JobId, Order, Reason, StoreError, Timestamp};
use tokio_postgres::types::{ToSql, Type};

use crate::error::Result;
use crate::lanes::Lanes;
use crate::pool::Parameter;
use crate::row::wait_condition::WaitConditionColumns;
use crate::transfer::import::KeyAssignment;

/// The values of a column, one for each row, and the type of the array.
pub(crate) type Column<'a> = (Box<dyn ToSql + Sync + Send + 'a>, Type);

/// Columns as parameters.
pub(crate) fn parameters<'a>(columns: &'a [Column<'_>]) -> Vec<Parameter<'a>> {
    columns.iter().map(|(values, kind)| (&**values as &(dyn ToSql + Sync), kind.clone())).collect()
}

fn column<'a, R, T: ToSql + Sync + Send + 'a>(
    rows: &'a [R],
    kind: Type,
    value: impl Fn(&'a R) -> T,
) -> Column<'a> {
    (Box::new(rows.iter().map(value).collect::<Vec<T>>()), kind)
}

fn job_column<'a, T: ToSql + Sync + Send + 'a>(
    snapshots: &'a [&'a JobSnapshot],
    kind: Type,
    value: impl Fn(&'a Job) -> T,
) -> Column<'a> {
    column(snapshots, kind, |snapshot| value(&snapshot.job))
}

/// The columns of the statement `import_jobs`.
pub(crate) fn jobs<'a>(snapshots: &'a [&'a JobSnapshot], lanes: &Lanes) -> Result<Vec<Column<'a>>> {
    let unknown = || StoreError::Failed("a lane has no number".into());
    let lane = |snapshot: &&JobSnapshot| {
        let job = &snapshot.job;
        lanes.number_of(&job.queue, &job.kind, job.priority).ok_or_else(unknown)
    };
    let lanes: Vec<i32> = snapshots.iter().map(lane).collect::<Result<_, _>>()?;
    let mut columns = vec![
        column(snapshots, Type::UUID_ARRAY, |snapshot| snapshot.job.id.0),
        (Box::new(lanes) as Box<dyn ToSql + Sync + Send>, Type::INT4_ARRAY),
    ];
    columns.extend(state_columns(snapshots));
    columns.extend(content_columns(snapshots));
    columns.push(column(snapshots, Type::BYTEA_ARRAY, |snapshot| {
        snapshot.fingerprint.as_ref().map(<[u8; 32]>::as_slice)
    }));
    Ok(columns)
}

/// The columns of the state of jobs, from `state` to `last_status`.
fn state_columns<'a>(snapshots: &'a [&'a JobSnapshot]) -> [Column<'a>; 15] {
    [
        job_column(snapshots, Type::INT2_ARRAY, |job| i16::from(job.state.code())),
        job_column(snapshots, Type::INT8_ARRAY, |job| job.next_run_at.as_ms()),
        job_column(snapshots, Type::INT4_ARRAY, |job| job.run as i32),
        job_column(snapshots, Type::INT4_ARRAY, |job| job.attempt as i32),
        job_column(snapshots, Type::INT8_ARRAY, |job| job.epoch as i64),
        job_column(snapshots, Type::INT8_ARRAY, |job| job.created_at.as_ms()),
        job_column(snapshots, Type::INT8_ARRAY, |job| job.began_at.as_ms()),
        job_column(snapshots, Type::INT8_ARRAY, |job| job.started_at.map(Timestamp::as_ms)),
        job_column(snapshots, Type::INT8_ARRAY, |job| job.lease_until.map(Timestamp::as_ms)),
        job_column(snapshots, Type::INT8_ARRAY, |job| job.finished_at.map(Timestamp::as_ms)),
        job_column(snapshots, Type::INT8_ARRAY, |job| job.wait.map(ceil_ms)),
        job_column(snapshots, Type::INT8_ARRAY, |job| job.timeout.map(ceil_ms)),
        job_column(snapshots, Type::INT8_ARRAY, |job| job.lease.map(ceil_ms)),
        job_column(snapshots, Type::BOOL_ARRAY, |job| job.cancel_requested),
        job_column(snapshots, Type::INT4_ARRAY, |job| job.last_status.map(i32::from)),
    ]
}

/// The other columns of jobs, from `tenant` to `detached`.
fn content_columns<'a>(snapshots: &'a [&'a JobSnapshot]) -> [Column<'a>; 20] {
    [
        job_column(snapshots, Type::TEXT_ARRAY, |job| job.tenant.as_str()),
        job_column(snapshots, Type::TEXT_ARRAY, |job| job.policy.to_string()),
        job_column(snapshots, Type::TEXT_ARRAY, |job| job.worker.as_ref().map(|worker| worker.as_str())),
        job_column(snapshots, Type::TEXT_ARRAY, |job| job.key.as_ref().map(|key| key.as_str())),
        job_column(snapshots, Type::TEXT_ARRAY, |job| job.reason.map(Reason::name)),
        job_column(snapshots, Type::TEXT_ARRAY, |job| job.target.as_deref()),
        job_column(snapshots, Type::TEXT_ARRAY, |job| job.last_error.as_deref()),
        job_column(snapshots, Type::TEXT_ARRAY, |job| job.metadata.as_deref()),
        job_column(snapshots, Type::BYTEA_ARRAY, |job| job.payload.as_slice()),
        job_column(snapshots, Type::BYTEA_ARRAY, |job| job.output.as_deref()),
        job_column(snapshots, Type::UUID_ARRAY, |job| job.parent.map(|parent| parent.id.0)),
        job_column(snapshots, Type::INT4_ARRAY, |job| job.parent.map(|parent| parent.branch as i32)),
        job_column(snapshots, Type::INT2_ARRAY, |job| awaits(job).code),
        job_column(snapshots, Type::TEXT_ARRAY, |job| awaits(job).name),
        job_column(snapshots, Type::INT4_ARRAY, |job| awaits(job).branch),
        job_column(snapshots, Type::INT8_ARRAY, |job| awaits(job).failures),
        job_column(snapshots, Type::BOOL_ARRAY, |job| job.paused),
        job_column(snapshots, Type::TEXT_ARRAY, |job| {
            job.partition.as_ref().map(|partition| partition.scope(&job.queue))
        }),
        job_column(snapshots, Type::BOOL_ARRAY, |job| {
            job.partition.as_ref().is_some_and(|partition| partition.order == Order::Strict)
        }),
        job_column(snapshots, Type::BOOL_ARRAY, |job| job.parent.is_some_and(|parent| parent.detached)),
    ]
}

fn awaits(job: &Job) -> WaitConditionColumns<'_> {
    WaitConditionColumns::new(job.awaits.as_ref())
}

/// The columns of the statement `import_attempts`.
pub(crate) fn attempts<'a>(log: &'a [(JobId, &'a Attempt)]) -> [Column<'a>; 13] {
    [
        column(log, Type::UUID_ARRAY, |(job, _)| job.0),
        column(log, Type::INT8_ARRAY, |(_, each)| each.epoch as i64),
        column(log, Type::INT4_ARRAY, |(_, each)| each.entry.run as i32),
        column(log, Type::INT4_ARRAY, |(_, each)| each.entry.attempt as i32),
        column(log, Type::INT8_ARRAY, |(_, each)| each.entry.started_at.as_ms()),
        column(log, Type::INT8_ARRAY, |(_, each)| ceil_ms(each.entry.duration)),
        column(log, Type::TEXT_ARRAY, |(_, each)| each.entry.outcome.as_str()),
        column(log, Type::TEXT_ARRAY, |(_, each)| each.entry.error.as_deref()),
        column(log, Type::TEXT_ARRAY, |(_, each)| each.entry.detail.as_deref()),
        column(log, Type::TEXT_ARRAY, |(_, each)| each.worker.as_ref().map(|worker| worker.as_str())),
        column(log, Type::INT2_ARRAY, |(_, each)| i16::from(each.led_to.code())),
        column(log, Type::INT8_ARRAY, |(_, each)| each.wait.map(ceil_ms)),
        column(log, Type::INT8_ARRAY, |(_, each)| each.next_run_at.map(Timestamp::as_ms)),
    ]
}

/// The columns of the statement `import_steps`.
pub(crate) fn steps<'a>(steps: &'a [(JobId, &'a Step)]) -> [Column<'a>; 5] {
    [
        column(steps, Type::UUID_ARRAY, |(job, _)| job.0),
        column(steps, Type::INT8_ARRAY, |(_, step)| i64::from(step.place)),
        column(steps, Type::INT2_ARRAY, |(_, step)| i16::from(step.kind.code())),
        column(steps, Type::TEXT_ARRAY, |(_, step)| step.name.as_str()),
        column(steps, Type::BYTEA_ARRAY, |(_, step)| step.value.as_slice()),
    ]
}

/// The columns of the statement `import_signals`.
pub(crate) fn signals<'a>(signals: &'a [(JobId, &'a StoredSignal)]) -> [Column<'a>; 5] {
    [
        column(signals, Type::UUID_ARRAY, |(job, _)| job.0),
        column(signals, Type::UUID_ARRAY, |(_, signal)| signal.id),
        column(signals, Type::TEXT_ARRAY, |(_, signal)| signal.name.as_str()),
        column(signals, Type::BYTEA_ARRAY, |(_, signal)| signal.value.as_slice()),
        column(signals, Type::BOOL_ARRAY, |(_, signal)| signal.taken),
    ]
}

/// The columns of the statement `import_unique_keys`.
pub(crate) fn assignments(assignments: &[KeyAssignment]) -> [Column<'_>; 6] {
    [
        column(assignments, Type::TEXT_ARRAY, |assignment| assignment.tenant.as_str()),
        column(assignments, Type::TEXT_ARRAY, |assignment| assignment.kind.as_str()),
        column(assignments, Type::TEXT_ARRAY, |assignment| assignment.key.as_str()),
        column(assignments, Type::UUID_ARRAY, |assignment| assignment.job.0),
        column(assignments, Type::INT8_ARRAY, |assignment| assignment.until.map(Timestamp::as_ms)),
        column(assignments, Type::UUID_ARRAY, |assignment| assignment.holder),
    ]
}

/// The columns of the statement `import_records`.
pub(crate) fn records(snapshots: &[RecordSnapshot]) -> [Column<'_>; 4] {
    [
        column(snapshots, Type::TEXT_ARRAY, |record| record.kind.as_str()),
        column(snapshots, Type::TEXT_ARRAY, |record| record.id.as_str()),
        column(snapshots, Type::INT8_ARRAY, |record| record.version as i64),
        column(snapshots, Type::BYTEA_ARRAY, |record| record.value.as_deref()),
    ]
}
