//! What is imported, as columns, so that one statement adds many.

use redrive_core::steps::Step;
use redrive_core::time::ceil_ms;
use redrive_core::transfer::{Parcel, Received, Slot};
use redrive_core::{Attempt, Job, JobId, Order, Reason, StoreError, Timestamp};
use tokio_postgres::types::{ToSql, Type};

use crate::awaits::AwaitColumns;
use crate::import::Hold;
use crate::lanes::Lanes;
use crate::pool::Parameter;

/// A column: one value for each row.
pub(crate) type Column<'a> = (Box<dyn ToSql + Sync + Send + 'a>, Type);

/// Columns as parameters.
pub(crate) fn parameters<'a>(columns: &'a [Column<'_>]) -> Vec<Parameter<'a>> {
    columns.iter().map(|(values, kind)| (&**values as &(dyn ToSql + Sync), kind.clone())).collect()
}

fn array<'a, R, T: ToSql + Sync + Send + 'a>(
    rows: &'a [R],
    kind: Type,
    value: impl Fn(&'a R) -> T,
) -> Column<'a> {
    (Box::new(rows.iter().map(value).collect::<Vec<T>>()), kind)
}

fn of<'a, T: ToSql + Sync + Send + 'a>(
    parcels: &'a [&'a Parcel],
    kind: Type,
    value: impl Fn(&'a Job) -> T,
) -> Column<'a> {
    array(parcels, kind, |parcel| value(&parcel.job))
}

/// The columns of `import.sql`.
pub(crate) fn jobs<'a>(parcels: &'a [&'a Parcel], lanes: &Lanes) -> Result<Vec<Column<'a>>, StoreError> {
    let unknown = || StoreError::Failed("a lane has no number".into());
    let lane = |parcel: &&Parcel| {
        let job = &parcel.job;
        lanes.number_of(&job.queue, &job.kind, job.priority).ok_or_else(unknown)
    };
    let lanes: Vec<i32> = parcels.iter().map(lane).collect::<Result<_, _>>()?;
    let mut columns = vec![
        array(parcels, Type::UUID_ARRAY, |parcel| parcel.job.id.0),
        (Box::new(lanes) as Box<dyn ToSql + Sync + Send>, Type::INT4_ARRAY),
    ];
    columns.extend(progress(parcels));
    columns.extend(contents(parcels));
    columns.push(array(parcels, Type::BYTEA_ARRAY, |parcel| {
        parcel.fingerprint.as_ref().map(<[u8; 32]>::as_slice)
    }));
    Ok(columns)
}

/// How far jobs have come.
fn progress<'a>(parcels: &'a [&'a Parcel]) -> [Column<'a>; 15] {
    [
        of(parcels, Type::INT2_ARRAY, |job| i16::from(job.state.code())),
        of(parcels, Type::INT8_ARRAY, |job| job.next_run_at.as_ms()),
        of(parcels, Type::INT4_ARRAY, |job| job.run as i32),
        of(parcels, Type::INT4_ARRAY, |job| job.attempt as i32),
        of(parcels, Type::INT8_ARRAY, |job| job.epoch as i64),
        of(parcels, Type::INT8_ARRAY, |job| job.created_at.as_ms()),
        of(parcels, Type::INT8_ARRAY, |job| job.began_at.as_ms()),
        of(parcels, Type::INT8_ARRAY, |job| job.started_at.map(Timestamp::as_ms)),
        of(parcels, Type::INT8_ARRAY, |job| job.lease_until.map(Timestamp::as_ms)),
        of(parcels, Type::INT8_ARRAY, |job| job.finished_at.map(Timestamp::as_ms)),
        of(parcels, Type::INT8_ARRAY, |job| job.wait.map(ceil_ms)),
        of(parcels, Type::INT8_ARRAY, |job| job.timeout.map(ceil_ms)),
        of(parcels, Type::INT8_ARRAY, |job| job.lease.map(ceil_ms)),
        of(parcels, Type::BOOL_ARRAY, |job| job.cancel_requested),
        of(parcels, Type::INT4_ARRAY, |job| job.last_status.map(i32::from)),
    ]
}

/// What jobs are.
fn contents<'a>(parcels: &'a [&'a Parcel]) -> [Column<'a>; 20] {
    [
        of(parcels, Type::TEXT_ARRAY, |job| job.tenant.as_str()),
        of(parcels, Type::TEXT_ARRAY, |job| job.policy.to_string()),
        of(parcels, Type::TEXT_ARRAY, |job| job.worker.as_ref().map(|worker| worker.as_str())),
        of(parcels, Type::TEXT_ARRAY, |job| job.key.as_ref().map(|key| key.as_str())),
        of(parcels, Type::TEXT_ARRAY, |job| job.reason.map(Reason::name)),
        of(parcels, Type::TEXT_ARRAY, |job| job.subject.as_deref()),
        of(parcels, Type::TEXT_ARRAY, |job| job.last_error.as_deref()),
        of(parcels, Type::TEXT_ARRAY, |job| job.metadata.as_deref()),
        of(parcels, Type::BYTEA_ARRAY, |job| job.payload.as_slice()),
        of(parcels, Type::BYTEA_ARRAY, |job| job.output.as_deref()),
        of(parcels, Type::UUID_ARRAY, |job| job.parent.map(|parent| parent.id.0)),
        of(parcels, Type::INT4_ARRAY, |job| job.parent.map(|parent| parent.branch as i32)),
        of(parcels, Type::INT2_ARRAY, |job| awaits(job).code),
        of(parcels, Type::TEXT_ARRAY, |job| awaits(job).name),
        of(parcels, Type::INT4_ARRAY, |job| awaits(job).branch),
        of(parcels, Type::INT8_ARRAY, |job| awaits(job).failures),
        of(parcels, Type::BOOL_ARRAY, |job| job.held),
        of(parcels, Type::TEXT_ARRAY, |job| {
            job.partition.as_ref().map(|partition| partition.scope(&job.queue))
        }),
        of(parcels, Type::BOOL_ARRAY, |job| {
            job.partition.as_ref().is_some_and(|partition| partition.order == Order::Strict)
        }),
        of(parcels, Type::BOOL_ARRAY, |job| job.parent.is_some_and(|parent| parent.detached)),
    ]
}

fn awaits(job: &Job) -> AwaitColumns<'_> {
    AwaitColumns::of(job.awaits.as_ref())
}

/// The columns of `import_attempts.sql`.
pub(crate) fn attempts<'a>(log: &'a [(JobId, &'a Attempt)]) -> [Column<'a>; 13] {
    [
        array(log, Type::UUID_ARRAY, |(job, _)| job.0),
        array(log, Type::INT8_ARRAY, |(_, each)| each.epoch as i64),
        array(log, Type::INT4_ARRAY, |(_, each)| each.entry.run as i32),
        array(log, Type::INT4_ARRAY, |(_, each)| each.entry.attempt as i32),
        array(log, Type::INT8_ARRAY, |(_, each)| each.entry.started_at.as_ms()),
        array(log, Type::INT8_ARRAY, |(_, each)| ceil_ms(each.entry.duration)),
        array(log, Type::TEXT_ARRAY, |(_, each)| each.entry.outcome.as_str()),
        array(log, Type::TEXT_ARRAY, |(_, each)| each.entry.error.as_deref()),
        array(log, Type::TEXT_ARRAY, |(_, each)| each.entry.detail.as_deref()),
        array(log, Type::TEXT_ARRAY, |(_, each)| each.worker.as_ref().map(|worker| worker.as_str())),
        array(log, Type::INT2_ARRAY, |(_, each)| i16::from(each.led_to.code())),
        array(log, Type::INT8_ARRAY, |(_, each)| each.wait.map(ceil_ms)),
        array(log, Type::INT8_ARRAY, |(_, each)| each.next_run_at.map(Timestamp::as_ms)),
    ]
}

/// The columns of `import_steps.sql`.
pub(crate) fn steps<'a>(steps: &'a [(JobId, &'a Step)]) -> [Column<'a>; 5] {
    [
        array(steps, Type::UUID_ARRAY, |(job, _)| job.0),
        array(steps, Type::INT8_ARRAY, |(_, step)| i64::from(step.place)),
        array(steps, Type::INT2_ARRAY, |(_, step)| i16::from(step.kind.code())),
        array(steps, Type::TEXT_ARRAY, |(_, step)| step.name.as_str()),
        array(steps, Type::BYTEA_ARRAY, |(_, step)| step.value.as_slice()),
    ]
}

/// The columns of `import_signals.sql`.
pub(crate) fn signals<'a>(signals: &'a [(JobId, &'a Received)]) -> [Column<'a>; 5] {
    [
        array(signals, Type::UUID_ARRAY, |(job, _)| job.0),
        array(signals, Type::UUID_ARRAY, |(_, signal)| signal.id),
        array(signals, Type::TEXT_ARRAY, |(_, signal)| signal.name.as_str()),
        array(signals, Type::BYTEA_ARRAY, |(_, signal)| signal.value.as_slice()),
        array(signals, Type::BOOL_ARRAY, |(_, signal)| signal.taken),
    ]
}

/// The columns of `import_uniques.sql`.
pub(crate) fn holds(holds: &[Hold]) -> [Column<'_>; 6] {
    [
        array(holds, Type::TEXT_ARRAY, |hold| hold.tenant.as_str()),
        array(holds, Type::TEXT_ARRAY, |hold| hold.kind.as_str()),
        array(holds, Type::TEXT_ARRAY, |hold| hold.key.as_str()),
        array(holds, Type::UUID_ARRAY, |hold| hold.job.0),
        array(holds, Type::INT8_ARRAY, |hold| hold.until.map(Timestamp::as_ms)),
        array(holds, Type::UUID_ARRAY, |hold| hold.holder),
    ]
}

/// The columns of `import_records.sql`.
pub(crate) fn records(slots: &[Slot]) -> [Column<'_>; 4] {
    [
        array(slots, Type::TEXT_ARRAY, |slot| slot.kind.as_str()),
        array(slots, Type::TEXT_ARRAY, |slot| slot.id.as_str()),
        array(slots, Type::INT8_ARRAY, |slot| slot.version as i64),
        array(slots, Type::BYTEA_ARRAY, |slot| slot.value.as_deref()),
    ]
}
