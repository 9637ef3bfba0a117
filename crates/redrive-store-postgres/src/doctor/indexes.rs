//! Checks for indexes that are missing, unfinished, different from the expected ones, or far too large.

use redrive_core::{Finding, Severity, text};
use redrive_sql::Statement;
use tokio_postgres::Row;

use super::DoctorContext;
use crate::error::Result;
use crate::sql;

static INDEXES: Statement = sql::DOCTOR.statement("indexes");

/// An index that the migrations create.
struct ExpectedIndex {
    name: &'static str,
    /// As the server prints it.
    definition: &'static str,
    /// The severity and the consequence if it is missing.
    without: (Severity, &'static str),
}

impl ExpectedIndex {
    /// The statement that creates it under a name, without blocking writes.
    fn create_sql(&self, name: &str) -> String {
        self.definition.replacen(self.name, name, 1).replacen("INDEX ", "INDEX CONCURRENTLY ", 1)
    }

    /// The statement that makes the index with this name the primary key, if this is one. It also renames the index.
    fn primary_key_sql(&self, index: &str) -> Option<String> {
        let (name, table) = (self.name, self.name.strip_suffix("_pkey")?);
        Some(format!("ALTER TABLE redrive.{table} ADD CONSTRAINT {name} PRIMARY KEY USING INDEX {index}"))
    }
}

/// All indexes, in the order of their names. A test compares them with new tables.
const EXPECTED: [ExpectedIndex; 32] = [
    ExpectedIndex {
        name: "attempts_pkey",
        definition: "CREATE UNIQUE INDEX attempts_pkey ON redrive.attempts USING btree (job, epoch)",
        without: (
            Severity::Critical,
            "an attempt may be logged twice, and reading the attempts of a job reads all attempts",
        ),
    },
    ExpectedIndex {
        name: "children_failed",
        definition: "CREATE INDEX children_failed ON redrive.children USING btree (parent, branch, id) WHERE (stage = 2)",
        without: (Severity::Warning, "each end of a child reads the failed children of all jobs"),
    },
    ExpectedIndex {
        name: "children_live",
        definition: "CREATE UNIQUE INDEX children_live ON redrive.children USING btree (parent, branch, id) WHERE (stage < 2)",
        without: (Severity::Critical, "each end of a child and each cancel reads the children of all jobs"),
    },
    ExpectedIndex {
        name: "claims_leases",
        definition: "CREATE INDEX claims_leases ON redrive.claims USING btree (lease_until)",
        without: (Severity::Warning, "each search for expired leases reads all claims"),
    },
    ExpectedIndex {
        name: "claims_pkey",
        definition: "CREATE UNIQUE INDEX claims_pkey ON redrive.claims USING btree (claim, part)",
        without: (Severity::Critical, "each settlement and each heartbeat reads all claims"),
    },
    ExpectedIndex {
        name: "closing_pkey",
        definition: "CREATE UNIQUE INDEX closing_pkey ON redrive.closing USING btree (tree, mark)",
        without: (Severity::Warning, "each cancel of a job with children reads the marks of all others"),
    },
    ExpectedIndex {
        name: "counts_running",
        definition: "CREATE INDEX counts_running ON redrive.counts USING btree (lane) WHERE (state = 2)",
        without: (Severity::Warning, "each claim from a queue with limits reads all counts"),
    },
    ExpectedIndex {
        name: "ended_dead",
        definition: "CREATE INDEX ended_dead ON redrive.ended USING btree (id) WHERE (state = 5)",
        without: (Severity::Warning, "listing dead letters reads every ended job"),
    },
    ExpectedIndex {
        name: "ended_finished",
        definition: "CREATE INDEX ended_finished ON redrive.ended USING btree (state, finished_at, id)",
        without: (Severity::Warning, "removing old jobs reads every ended job"),
    },
    ExpectedIndex {
        name: "ended_pkey",
        definition: "CREATE UNIQUE INDEX ended_pkey ON redrive.ended USING btree (id)",
        without: (Severity::Critical, "settlements fail, and reading a job reads every ended job"),
    },
    ExpectedIndex {
        name: "jobs_keys",
        definition: "CREATE UNIQUE INDEX jobs_keys ON redrive.jobs USING btree (tenant, key) WHERE (key IS NOT NULL)",
        without: (Severity::Critical, "an idempotency key no longer keeps a job from being enqueued twice"),
    },
    ExpectedIndex {
        name: "jobs_pkey",
        definition: "CREATE UNIQUE INDEX jobs_pkey ON redrive.jobs USING btree (id)",
        without: (Severity::Critical, "an id may be enqueued twice, and each claim reads every job"),
    },
    ExpectedIndex {
        name: "lanes_pkey",
        definition: "CREATE UNIQUE INDEX lanes_pkey ON redrive.lanes USING btree (lane)",
        without: (Severity::Warning, "a lane may get a number twice"),
    },
    ExpectedIndex {
        name: "lanes_queue_kind_priority_key",
        definition: "CREATE UNIQUE INDEX lanes_queue_kind_priority_key ON redrive.lanes USING btree (queue, kind, priority)",
        without: (Severity::Critical, "enqueues to new queues fail or add lanes twice"),
    },
    ExpectedIndex {
        name: "ordered_pkey",
        definition: "CREATE UNIQUE INDEX ordered_pkey ON redrive.ordered USING btree (partition, id)",
        without: (Severity::Critical, "each claim of a job in strict order reads all jobs in strict order"),
    },
    ExpectedIndex {
        name: "progress_pkey",
        definition: "CREATE UNIQUE INDEX progress_pkey ON redrive.progress USING btree (id)",
        without: (Severity::Critical, "settlements fail"),
    },
    ExpectedIndex {
        name: "ready_partitions",
        definition: "CREATE INDEX ready_partitions ON redrive.ready USING btree (partition, due) WHERE (partition IS NOT NULL)",
        without: (Severity::Warning, "each end of a job with a partition key reads every ready job"),
    },
    ExpectedIndex {
        name: "ready_pkey",
        definition: "CREATE UNIQUE INDEX ready_pkey ON redrive.ready USING btree (lane, due, id)",
        without: (Severity::Critical, "each claim reads every ready job"),
    },
    ExpectedIndex {
        name: "records_pkey",
        definition: "CREATE UNIQUE INDEX records_pkey ON redrive.records USING btree (kind, id)",
        without: (Severity::Critical, "writes of policies, pauses and keys fail"),
    },
    ExpectedIndex {
        name: "records_removed",
        definition: "CREATE INDEX records_removed ON redrive.records USING btree (kind) WHERE (value IS NULL)",
        without: (Severity::Warning, "the removal of a record reads all records of its kind"),
    },
    ExpectedIndex {
        name: "schema_pkey",
        definition: "CREATE UNIQUE INDEX schema_pkey ON redrive.schema USING btree (version)",
        without: (Severity::Warning, "a migration could be recorded twice"),
    },
    ExpectedIndex {
        name: "signals_pkey",
        definition: "CREATE UNIQUE INDEX signals_pkey ON redrive.signals USING btree (job, id)",
        without: (Severity::Critical, "signals fail"),
    },
    ExpectedIndex {
        name: "signals_untaken",
        definition: "CREATE INDEX signals_untaken ON redrive.signals USING btree (job, name, seq) WHERE (NOT taken)",
        without: (Severity::Warning, "reading a signal reads all signals that its job ever had"),
    },
    ExpectedIndex {
        name: "slots_pkey",
        definition: "CREATE UNIQUE INDEX slots_pkey ON redrive.slots USING btree (partition, id)",
        without: (
            Severity::Critical,
            "each claim and each end of a job with a partition key reads the running jobs of all keys",
        ),
    },
    ExpectedIndex {
        name: "starts_at",
        definition: "CREATE INDEX starts_at ON redrive.starts USING btree (at)",
        without: (Severity::Warning, "removing old starts reads them all"),
    },
    ExpectedIndex {
        name: "starts_scope",
        definition: "CREATE INDEX starts_scope ON redrive.starts USING btree (scope, at)",
        without: (Severity::Warning, "each claim under a rate limit reads all starts"),
    },
    ExpectedIndex {
        name: "steps_pkey",
        definition: "CREATE UNIQUE INDEX steps_pkey ON redrive.steps USING btree (job, place)",
        without: (
            Severity::Critical,
            "a step may be stored twice, and reading the steps of a job reads all steps",
        ),
    },
    ExpectedIndex {
        name: "uniques_gone",
        definition: "CREATE INDEX uniques_gone ON redrive.uniques USING btree (until) WHERE gone",
        without: (Severity::Warning, "removing old unique keys reads them all"),
    },
    ExpectedIndex {
        name: "uniques_job",
        definition: "CREATE INDEX uniques_job ON redrive.uniques USING btree (job)",
        without: (Severity::Warning, "removing old jobs reads every unique key"),
    },
    ExpectedIndex {
        name: "uniques_pkey",
        definition: "CREATE UNIQUE INDEX uniques_pkey ON redrive.uniques USING btree (tenant, kind, key)",
        without: (Severity::Critical, "enqueues with a unique key fail"),
    },
    ExpectedIndex {
        name: "waiting_for_slots",
        definition: "CREATE INDEX waiting_for_slots ON redrive.waiting USING btree (partition, lane, due, id) WHERE ((awaits = 3) AND (NOT strict))",
        without: (Severity::Critical, "each end of a job with a partition key reads every waiting job"),
    },
    ExpectedIndex {
        name: "waiting_pkey",
        definition: "CREATE UNIQUE INDEX waiting_pkey ON redrive.waiting USING btree (id)",
        without: (Severity::Critical, "claims under limits fail, and each resume reads every waiting job"),
    },
];

/// An index with more bytes per row is bloated. The largest index of redrive needs about 60 bytes per row.
const BYTES_PER_ROW_MAX: i64 = 500;

pub(super) async fn indexes(context: &DoctorContext<'_>) -> Result<Vec<Finding>> {
    let rows = context.pool.query(&INDEXES, &[]).await?;
    let found = rows.iter().map(Index::read).collect::<Result<Vec<_>, _>>()?;
    let mut findings: Vec<Finding> =
        EXPECTED.iter().filter_map(|expected| compare(expected, &found)).collect();
    let least = context.thresholds.index_bytes_min;
    findings.extend(found.iter().filter_map(|index| index.bloated(least)));
    if findings.is_empty() {
        let bytes: i64 = found.iter().map(|index| index.bytes).sum();
        let evidence = format!("{} indexes, {} in total", EXPECTED.len(), text::bytes(bytes.unsigned_abs()));
        findings.push(Finding::ok(
            "indexes",
            "every index exists, is finished and has the expected definition",
            evidence,
        ));
    }
    Ok(findings)
}

/// An index in the database.
#[derive(Debug)]
struct Index {
    name: String,
    valid: bool,
    definition: String,
    bytes: i64,
    /// Live rows of its table.
    rows: i64,
    /// The table whose constraint needs it.
    constrained: Option<String>,
}

impl Index {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            name: row.try_get("name")?,
            valid: row.try_get("valid")?,
            definition: row.try_get("definition")?,
            bytes: row.try_get("bytes")?,
            rows: row.try_get("rows")?,
            constrained: row.try_get("constrained")?,
        })
    }

    /// The statements that replace this index with the expected one without a gap. If a constraint needs the index, the constraint is
    /// replaced too.
    fn replace_sql(&self, expected: &ExpectedIndex) -> String {
        let name = expected.name;
        let new = format!("{name}_new");
        let drop_sql = match &self.constrained {
            Some(table) => format!("ALTER TABLE redrive.{table} DROP CONSTRAINT {name}"),
            None => format!("DROP INDEX CONCURRENTLY redrive.{name}"),
        };
        let rename_sql = expected.primary_key_sql(&new);
        let rename_sql = rename_sql.unwrap_or_else(|| format!("ALTER INDEX redrive.{new} RENAME TO {name}"));
        format!("{}; {drop_sql}; {rename_sql}", expected.create_sql(&new))
    }

    fn bloated(&self, bytes_min: i64) -> Option<Finding> {
        let Self { name, bytes, rows, .. } = self;
        if *bytes < bytes_min || *bytes / (*rows).max(1) < BYTES_PER_ROW_MAX {
            return None;
        }
        let what = format!("the index redrive.{name} is large for the rows of its table");
        let evidence = format!("{} for {rows} rows", text::bytes(bytes.unsigned_abs()));
        let remedy = format!("if claims or lists are slow: REINDEX INDEX CONCURRENTLY redrive.{name}");
        Some(Finding::new(Severity::Note, "indexes", what, evidence, remedy))
    }
}

fn compare(expected: &ExpectedIndex, found: &[Index]) -> Option<Finding> {
    let ExpectedIndex { name, definition, without: (severity, consequence) } = expected;
    let (what, evidence, remedy) = match found.iter().find(|index| index.name == *name) {
        None => {
            let statements = [Some(expected.create_sql(name)), expected.primary_key_sql(name)];
            let remedy = statements.into_iter().flatten().collect::<Vec<_>>().join("; ");
            ("is missing", "it is not in the catalog".to_owned(), remedy)
        }
        Some(index) if !index.valid => (
            "is unfinished and not used",
            "pg_index says that it is not valid: its creation was interrupted, or still runs".to_owned(),
            format!("REINDEX INDEX CONCURRENTLY redrive.{name}"),
        ),
        Some(index) if index.definition != *definition => (
            "differs from the one that redrive creates",
            format!("its definition is {}", index.definition),
            index.replace_sql(expected),
        ),
        Some(_) => return None,
    };
    let what = format!("the index redrive.{name} {what}: {consequence}");
    Some(Finding::new(*severity, "indexes", what, evidence, remedy))
}
