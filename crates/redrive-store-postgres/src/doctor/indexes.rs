//! Indexes that are missing, unfinished, other than they should be, or far too large.

use redrive_core::{Finding, Gravity, StoreError};
use tokio_postgres::Row;

use super::{Patient, size};
use crate::error::Sorted;

/// An index that the migrations make.
struct Expected {
    name: &'static str,
    /// As the server writes it down.
    definition: &'static str,
    /// What suffers without it, and how much.
    without: (Gravity, &'static str),
}

impl Expected {
    /// The statement that makes it under a name, without keeping anyone from writing.
    fn make(&self, name: &str) -> String {
        self.definition.replacen(self.name, name, 1).replacen("INDEX ", "INDEX CONCURRENTLY ", 1)
    }

    /// The statement that makes an index of that name the primary key, if this is one; it is renamed by that.
    fn primary_key(&self, index: &str) -> Option<String> {
        let (name, table) = (self.name, self.name.strip_suffix("_pkey")?);
        Some(format!("ALTER TABLE redrive.{table} ADD CONSTRAINT {name} PRIMARY KEY USING INDEX {index}"))
    }
}

/// All of them, in the order of their names; a test holds them against freshly made tables.
const EXPECTED: [Expected; 26] = [
    Expected {
        name: "attempts_pkey",
        definition: "CREATE UNIQUE INDEX attempts_pkey ON redrive.attempts USING btree (job, epoch)",
        without: (Gravity::Grave, "an attempt may be logged twice, and reading a log reads them all"),
    },
    Expected {
        name: "closing_pkey",
        definition: "CREATE UNIQUE INDEX closing_pkey ON redrive.closing USING btree (tree, mark)",
        without: (Gravity::Warning, "each cancel of a job with children reads the marks of all others"),
    },
    Expected {
        name: "counts_running",
        definition: "CREATE INDEX counts_running ON redrive.counts USING btree (lane) WHERE (state = 2)",
        without: (Gravity::Warning, "each claim from a queue with a quota reads all counts"),
    },
    Expected {
        name: "jobs_awaiting",
        definition: "CREATE INDEX jobs_awaiting ON redrive.jobs USING btree (id) WHERE (awaits IS NOT NULL)",
        without: (Gravity::Grave, "each sweep for jobs that wait reads every job"),
    },
    Expected {
        name: "jobs_children",
        definition: "CREATE INDEX jobs_children ON redrive.jobs USING btree (parent, branch, state) WHERE (parent IS NOT NULL)",
        without: (Gravity::Grave, "each end of a child reads every job, and so does each cancel"),
    },
    Expected {
        name: "jobs_dead",
        definition: "CREATE INDEX jobs_dead ON redrive.jobs USING btree (id) WHERE (state = 5)",
        without: (Gravity::Warning, "listing dead letters reads every job"),
    },
    Expected {
        name: "jobs_due",
        definition: "CREATE INDEX jobs_due ON redrive.jobs USING btree (lane, next_run_at, id) WHERE (state < 2)",
        without: (Gravity::Grave, "each claim reads every job"),
    },
    Expected {
        name: "jobs_finished",
        definition: "CREATE INDEX jobs_finished ON redrive.jobs USING btree (state, finished_at, id) WHERE (state > 3)",
        without: (Gravity::Warning, "removing old jobs reads every job"),
    },
    Expected {
        name: "jobs_keys",
        definition: "CREATE UNIQUE INDEX jobs_keys ON redrive.jobs USING btree (tenant, key) WHERE (key IS NOT NULL)",
        without: (Gravity::Grave, "a key no longer keeps a job from being enqueued twice"),
    },
    Expected {
        name: "jobs_leases",
        definition: "CREATE INDEX jobs_leases ON redrive.jobs USING btree (lease_until, id) WHERE (state = 2)",
        without: (Gravity::Grave, "each look for lost leases reads every job"),
    },
    Expected {
        name: "jobs_partitions",
        definition: "CREATE INDEX jobs_partitions ON redrive.jobs USING btree (partition, state, next_run_at) WHERE ((partition IS NOT NULL) AND (state < 3))",
        without: (Gravity::Grave, "each claim and end of a job with a partition reads every job"),
    },
    Expected {
        name: "jobs_pkey",
        definition: "CREATE UNIQUE INDEX jobs_pkey ON redrive.jobs USING btree (id)",
        without: (Gravity::Grave, "an id may be enqueued twice, and each settlement reads every job"),
    },
    Expected {
        name: "jobs_strict",
        definition: "CREATE INDEX jobs_strict ON redrive.jobs USING btree (partition, id) WHERE (strict AND (state < 4))",
        without: (Gravity::Grave, "each claim of a job in strict order reads every job"),
    },
    Expected {
        name: "jobs_turns",
        definition: "CREATE INDEX jobs_turns ON redrive.jobs USING btree (partition, lane, next_run_at, id) WHERE ((awaits = 3) AND (NOT strict))",
        without: (Gravity::Grave, "each end of a job with a partition reads every job that waits"),
    },
    Expected {
        name: "lanes_pkey",
        definition: "CREATE UNIQUE INDEX lanes_pkey ON redrive.lanes USING btree (lane)",
        without: (Gravity::Warning, "a lane's number is not kept unique"),
    },
    Expected {
        name: "lanes_queue_kind_priority_key",
        definition: "CREATE UNIQUE INDEX lanes_queue_kind_priority_key ON redrive.lanes USING btree (queue, kind, priority)",
        without: (Gravity::Grave, "enqueues to new queues fail or make lanes twice"),
    },
    Expected {
        name: "records_pkey",
        definition: "CREATE UNIQUE INDEX records_pkey ON redrive.records USING btree (kind, id)",
        without: (Gravity::Grave, "writes of policies, pauses and keys fail"),
    },
    Expected {
        name: "schema_pkey",
        definition: "CREATE UNIQUE INDEX schema_pkey ON redrive.schema USING btree (version)",
        without: (Gravity::Warning, "a migration could be noted twice"),
    },
    Expected {
        name: "signals_pkey",
        definition: "CREATE UNIQUE INDEX signals_pkey ON redrive.signals USING btree (job, id)",
        without: (Gravity::Grave, "signals fail"),
    },
    Expected {
        name: "signals_untaken",
        definition: "CREATE INDEX signals_untaken ON redrive.signals USING btree (job, name, seq) WHERE (NOT taken)",
        without: (Gravity::Warning, "a look for a signal reads all that its job ever had"),
    },
    Expected {
        name: "starts_at",
        definition: "CREATE INDEX starts_at ON redrive.starts USING btree (at)",
        without: (Gravity::Warning, "removing old starts reads them all"),
    },
    Expected {
        name: "starts_scope",
        definition: "CREATE INDEX starts_scope ON redrive.starts USING btree (scope, at)",
        without: (Gravity::Warning, "each claim under a rate reads all starts"),
    },
    Expected {
        name: "steps_pkey",
        definition: "CREATE UNIQUE INDEX steps_pkey ON redrive.steps USING btree (job, place)",
        without: (Gravity::Grave, "a step may be remembered twice, and recalling reads them all"),
    },
    Expected {
        name: "uniques_gone",
        definition: "CREATE INDEX uniques_gone ON redrive.uniques USING btree (until) WHERE gone",
        without: (Gravity::Warning, "removing old unique keys reads them all"),
    },
    Expected {
        name: "uniques_job",
        definition: "CREATE INDEX uniques_job ON redrive.uniques USING btree (job)",
        without: (Gravity::Warning, "removing old jobs reads every unique key"),
    },
    Expected {
        name: "uniques_pkey",
        definition: "CREATE UNIQUE INDEX uniques_pkey ON redrive.uniques USING btree (tenant, kind, key)",
        without: (Gravity::Grave, "enqueues with a unique key fail"),
    },
];

/// More for each row of its table is no index any more: the largest of ours has some 60 bytes for each.
const BYTES_PER_ROW_MAX: i64 = 500;

pub(super) async fn indexes(patient: &Patient<'_>) -> Result<Vec<Finding>, StoreError> {
    let rows = patient.pool.query(include_str!("../../sql/doctor_indexes.sql"), &[]).await?;
    let found = rows.iter().map(Index::read).collect::<Result<Vec<_>, _>>()?;
    let mut findings: Vec<Finding> =
        EXPECTED.iter().filter_map(|expected| compare(expected, &found)).collect();
    let least = patient.thresholds.index_bytes_min;
    findings.extend(found.iter().filter_map(|index| index.bloated(least)));
    if findings.is_empty() {
        let bytes = found.iter().map(|index| index.bytes).sum();
        let evidence = format!("{} of them, {} together", EXPECTED.len(), size(bytes));
        findings.push(Finding::fine(
            "indexes",
            "every index is there, finished and as it should be",
            evidence,
        ));
    }
    Ok(findings)
}

/// An index that is there.
#[derive(Debug)]
struct Index {
    name: String,
    valid: bool,
    definition: String,
    bytes: i64,
    /// Live rows of its table.
    rows: i64,
    /// The table with the constraint that it is for.
    constrained: Option<String>,
}

impl Index {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            name: row.try_get("name").sorted()?,
            valid: row.try_get("valid").sorted()?,
            definition: row.try_get("definition").sorted()?,
            bytes: row.try_get("bytes").sorted()?,
            rows: row.try_get("rows").sorted()?,
            constrained: row.try_get("constrained").sorted()?,
        })
    }

    /// The statements that put the right one in its place, which is never empty. One that a constraint needs goes with it.
    fn replace(&self, expected: &Expected) -> String {
        let name = expected.name;
        let new = format!("{name}_new");
        let gone = match &self.constrained {
            Some(table) => format!("ALTER TABLE redrive.{table} DROP CONSTRAINT {name}"),
            None => format!("DROP INDEX CONCURRENTLY redrive.{name}"),
        };
        let named = expected.primary_key(&new);
        let named = named.unwrap_or_else(|| format!("ALTER INDEX redrive.{new} RENAME TO {name}"));
        format!("{}; {gone}; {named}", expected.make(&new))
    }

    fn bloated(&self, bytes_min: i64) -> Option<Finding> {
        let Self { name, bytes, rows, .. } = self;
        if *bytes < bytes_min || *bytes / (*rows).max(1) < BYTES_PER_ROW_MAX {
            return None;
        }
        let what = format!("the index redrive.{name} is large for what is in its table");
        let evidence = format!("{} for {rows} rows", size(*bytes));
        let remedy = format!("if claims or lists are slow: REINDEX INDEX CONCURRENTLY redrive.{name}");
        Some(Finding::new(Gravity::Note, "indexes", what, evidence, remedy))
    }
}

fn compare(expected: &Expected, found: &[Index]) -> Option<Finding> {
    let Expected { name, definition, without: (gravity, suffers) } = expected;
    let (what, evidence, remedy) = match found.iter().find(|index| index.name == *name) {
        None => {
            let statements = [Some(expected.make(name)), expected.primary_key(name)];
            let remedy = statements.into_iter().flatten().collect::<Vec<_>>().join("; ");
            ("is missing", "it is not in the catalog".to_owned(), remedy)
        }
        Some(index) if !index.valid => (
            "is unfinished and not used",
            "pg_index says that it is not valid: making it was interrupted, or goes on".to_owned(),
            format!("REINDEX INDEX CONCURRENTLY redrive.{name}"),
        ),
        Some(index) if index.definition != *definition => {
            ("is not as redrive made it", format!("it is {}", index.definition), index.replace(expected))
        }
        Some(_) => return None,
    };
    let what = format!("the index redrive.{name} {what}: {suffers}");
    Some(Finding::new(*gravity, "indexes", what, evidence, remedy))
}
