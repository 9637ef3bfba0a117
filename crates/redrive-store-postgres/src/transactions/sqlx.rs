//! Enqueues in a transaction of sqlx.

use redrive_core::store::{EnqueueResult, check_batch};
use redrive_core::{NewJob, StoreError};
use redrive_sql::Statement;
use sqlx_core::query::{Query, query};
use sqlx_core::row::Row as _;
use sqlx_postgres::{PgArguments, PgConnection, PgRow, Postgres};

use crate::PostgresStore;
use crate::error::{Error, Result};
use crate::lifecycle::enqueue::{
    self, ExistingJob, ExistingQuery, FIND_EXISTING, HorizonCheck, INSERT, INSERT_UNIQUE, InsertResult,
    JobInserter, UniqueInsertResult,
};
use crate::row::insert::{NewJobColumns, UniqueJobColumns};
use crate::sql;

static NOTIFY: Statement = sql::WAKE.statement("notify");

impl PostgresStore {
    /// Adds jobs in a transaction of sqlx, which must be on this store's database: pass `&mut *transaction`. The jobs become visible to
    /// workers, and wake them, when the transaction commits. If it is rolled back, the jobs never existed.
    pub async fn enqueue_in_sqlx(
        &self,
        transaction: &mut PgConnection,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<EnqueueResult>, StoreError> {
        check_batch(jobs.len())?;
        enqueue::check(&jobs)?;
        let lanes = self.inner.use_lanes(&jobs).await?;
        self.inner.lower_positions(&jobs);
        let mut caller = CallerTransaction(transaction);
        let enqueued = enqueue::add_all(&mut caller, &lanes, self.inner.manual_now(), &jobs).await?;
        let notify = query(NOTIFY.text()).bind("");
        notify.execute(&mut *caller.0).await.map_err(Error::from)?;
        Ok(enqueued)
    }
}

struct CallerTransaction<'a>(&'a mut PgConnection);

impl JobInserter for CallerTransaction<'_> {
    async fn insert(&mut self, horizon: &HorizonCheck, columns: &NewJobColumns<'_>) -> Result<InsertResult> {
        let statement = bind_horizon(query(INSERT.text()), horizon).bind(columns.ids.len() as i64);
        let row = bind_jobs(statement, columns).fetch_one(&mut *self.0).await?;
        Ok(InsertResult {
            late: row.try_get("late")?,
            added: row.try_get("added")?,
            ids: row.try_get("ids")?,
        })
    }

    async fn find(&mut self, existing: &ExistingQuery<'_>) -> Result<Vec<ExistingJob>> {
        let statement =
            query(FIND_EXISTING.text()).bind(&existing.ids).bind(&existing.tenants).bind(&existing.keys);
        let rows = statement.fetch_all(&mut *self.0).await?;
        let found = |row: &PgRow| {
            Ok(ExistingJob {
                place: row.try_get("place")?,
                by_id: row.try_get("by_id")?,
                by_key: row.try_get("by_key")?,
                fingerprint: row.try_get("fingerprint")?,
            })
        };
        rows.iter().map(found).collect()
    }

    async fn insert_unique(
        &mut self,
        horizon: &HorizonCheck,
        columns: &UniqueJobColumns<'_>,
    ) -> Result<Vec<UniqueInsertResult>> {
        let statement = bind_jobs(bind_horizon(query(INSERT_UNIQUE.text()), horizon), &columns.jobs)
            .bind(&columns.kinds)
            .bind(&columns.keys)
            .bind(&columns.rules)
            .bind(&columns.spans);
        let rows = statement.fetch_all(&mut *self.0).await?;
        let decided = |row: &PgRow| {
            Ok(UniqueInsertResult {
                late: row.try_get("late")?,
                place: row.try_get("place")?,
                created: row.try_get("created")?,
                existing: row.try_get("existing")?,
                replaced: row.try_get("replaced")?,
            })
        };
        rows.iter().map(decided).collect()
    }
}

type BoundQuery<'q> = Query<'q, Postgres, PgArguments>;

fn bind_horizon<'q>(statement: BoundQuery<'q>, horizon: &HorizonCheck) -> BoundQuery<'q> {
    statement.bind(horizon.now).bind(horizon.horizon).bind(horizon.latest)
}

fn bind_jobs<'q>(statement: BoundQuery<'q>, columns: &'q NewJobColumns<'_>) -> BoundQuery<'q> {
    statement
        .bind(&columns.ids)
        .bind(&columns.lanes)
        .bind(&columns.at)
        .bind(&columns.after)
        .bind(&columns.timeouts)
        .bind(&columns.leases)
        .bind(&columns.tenants)
        .bind(&columns.policies)
        .bind(&columns.keys)
        .bind(&columns.fingerprints)
        .bind(&columns.targets)
        .bind(&columns.metadata)
        .bind(&columns.payloads)
        .bind(&columns.parents)
        .bind(&columns.branches)
        .bind(&columns.partitions)
        .bind(&columns.stricts)
        .bind(&columns.detached)
}

/// Only the caller can retry its transaction, so few cases are distinguished.
impl From<sqlx_core::Error> for Error {
    fn from(error: sqlx_core::Error) -> Self {
        let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
        Self(match code.as_deref() {
            Some("40P01" | "40001" | "55P03" | "57014") => StoreError::Busy(Box::new(error)),
            Some("53100") => StoreError::Full(Box::new(error)),
            Some(_) => StoreError::Failed(Box::new(error)),
            None => StoreError::Unavailable(Box::new(error)),
        })
    }
}
