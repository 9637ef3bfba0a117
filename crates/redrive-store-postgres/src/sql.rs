//! The statements of this store, in files by concern.
//!
//! The list of a job's columns and the expression for the current time exist once, here. Tests of query plans use this module too.

use redrive_sql::SqlFile;

/// Defines the columns of a job once, and the forms in which statements need them.
macro_rules! job_columns {
    ($first:literal $first_type:literal $(, $rest:literal $rest_type:literal)* $(,)?) => {
        /// The columns that every statement that returns jobs selects, in this order.
        pub(crate) const JOB_COLUMNS: &[&str] = &[$first $(, $rest)*];
        /// The same columns with their types, as a function declares them.
        pub(crate) const TYPED_JOB_COLUMNS: &str = concat!($first, " ", $first_type $(, ", ", $rest, " ", $rest_type)*);
        const COLUMN_NAMES: &str = concat!($first $(, ", ", $rest)*);
        const QUALIFIED_COLUMNS: &str = concat!("jobs.", $first $(, ", jobs.", $rest)*);
    };
}

job_columns![
    "id" "uuid",
    "lane" "integer",
    "state" "smallint",
    "next_run_at" "bigint",
    "run" "integer",
    "attempt" "integer",
    "epoch" "bigint",
    "created_at" "bigint",
    "began_at" "bigint",
    "started_at" "bigint",
    "lease_until" "bigint",
    "finished_at" "bigint",
    "wait_ms" "bigint",
    "timeout_ms" "bigint",
    "lease_ms" "bigint",
    "cancel_requested" "boolean",
    "last_status" "integer",
    "tenant" "text",
    "policy" "text",
    "worker" "text",
    "key" "text",
    "reason" "text",
    "target" "text",
    "last_error" "text",
    "metadata" "text",
    "payload" "bytea",
    "output" "bytea",
    "parent" "uuid",
    "branch" "integer",
    "awaits" "smallint",
    "awaits_name" "text",
    "awaits_branch" "integer",
    "awaits_failures" "bigint",
    "paused" "boolean",
    "partition" "text",
    "strict" "boolean",
    "detached" "boolean",
];

/// The placeholders that all files may use.
const VALUES: &[(&str, &str)] = &[
    ("job_columns", QUALIFIED_COLUMNS),
    ("job_column_names", COLUMN_NAMES),
    // The time of the caller if it passes one as $1, and the server's clock otherwise.
    ("now", "coalesce($1::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint)"),
    ("clock", "clock AS MATERIALIZED (\n  SELECT {now} AS now\n)"),
    (
        "store_is_not_sealed",
        "NOT EXISTS (SELECT FROM redrive.records WHERE records.kind = 'sealed' AND records.value IS NOT NULL)",
    ),
    (
        "lane_is_claimable",
        "NOT EXISTS (
      SELECT FROM redrive.records
      WHERE records.kind = 'paused' AND records.id IN (lanes.queue, '*') AND records.value IS NOT NULL
    )
    AND {store_is_not_sealed}",
    ),
];

/// The settings for statements whose plans are stored. Such a plan is made before its arguments are known, perhaps while the tables are empty,
/// and is used when they are large. So it must walk indexes, whatever it would cost today.
pub(crate) const PLAN_SETTINGS: &[&str] = &[
    "plan_cache_mode = force_generic_plan",
    "enable_seqscan = off",
    "enable_bitmapscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
    "jit = off",
];

/// Parts of statements that add jobs, lease them, or write under leases.
const LEASES: &str = include_str!("../sql/leases.sql");

pub(crate) const LIFECYCLE: SqlFile =
    SqlFile::new(include_str!("../sql/lifecycle.sql"), VALUES).with_fragments_of(LEASES);
pub(crate) const SETTLE: SqlFile =
    SqlFile::new(include_str!("../sql/settle.sql"), VALUES).with_fragments_of(LEASES);
pub(crate) const RETENTION: SqlFile = SqlFile::new(include_str!("../sql/retention.sql"), VALUES);
pub(crate) const OPERATE: SqlFile = SqlFile::new(include_str!("../sql/operate.sql"), VALUES);
pub(crate) const STEPS: SqlFile =
    SqlFile::new(include_str!("../sql/steps.sql"), VALUES).with_fragments_of(LEASES);
pub(crate) const LIMITS: SqlFile =
    SqlFile::new(include_str!("../sql/limits.sql"), VALUES).with_fragments_of(LEASES);
pub(crate) const READ: SqlFile = SqlFile::new(include_str!("../sql/read.sql"), VALUES);
pub(crate) const RECORDS: SqlFile = SqlFile::new(include_str!("../sql/records.sql"), VALUES);
pub(crate) const TRANSFER: SqlFile = SqlFile::new(include_str!("../sql/transfer.sql"), VALUES);
pub(crate) const DOCTOR: SqlFile = SqlFile::new(include_str!("../sql/doctor.sql"), VALUES);
pub(crate) const WAKE: SqlFile = SqlFile::new(include_str!("../sql/wake.sql"), VALUES);
