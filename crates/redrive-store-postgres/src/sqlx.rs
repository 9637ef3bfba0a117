//! Enqueues inside a transaction of sqlx's.

use redrive_core::store::{Enqueued, check_batch};
use redrive_core::{NewJob, StoreError};
use sqlx_core::Error;
use sqlx_core::query::{Query, query};
use sqlx_core::row::Row as _;
use sqlx_postgres::{PgArguments, PgConnection, PgRow, Postgres};

use crate::PostgresStore;
use crate::columns::{Columns, UniqueColumns};
use crate::enqueue::{self, Decided, FIND, Found, INSERT, INSERT_UNIQUE, Inserted, Limit, Sink, Wanted};

impl PostgresStore {
    /// Adds jobs in a transaction of sqlx's, which must be one on this store's database: pass `&mut *transaction`. They
    /// become visible to workers, and wake them, when it commits; when it is rolled back they were never there.
    pub async fn enqueue_in_sqlx(
        &self,
        transaction: &mut PgConnection,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Enqueued>, StoreError> {
        check_batch(jobs.len())?;
        enqueue::check(&jobs)?;
        let lanes = self.inner.lanes.with(&self.inner.pool, &jobs).await?;
        self.inner.expect(&jobs);
        let mut within = Within(transaction);
        let enqueued = enqueue::add_all(&mut within, &lanes, self.inner.manual_now(), &jobs).await?;
        let notify = query(include_str!("../sql/notify.sql")).bind("");
        notify.execute(&mut *within.0).await.map_err(sort)?;
        Ok(enqueued)
    }
}

struct Within<'a>(&'a mut PgConnection);

impl Sink for Within<'_> {
    async fn insert(&mut self, limit: &Limit, columns: &Columns<'_>) -> Result<Inserted, StoreError> {
        let asked = bind_limit(query(INSERT), limit).bind(columns.ids.len() as i64);
        let row = bind_jobs(asked, columns).fetch_one(&mut *self.0).await.map_err(sort)?;
        Ok(Inserted {
            late: row.try_get("late").map_err(sort)?,
            added: row.try_get("added").map_err(sort)?,
            ids: row.try_get("ids").map_err(sort)?,
        })
    }

    async fn find(&mut self, wanted: &Wanted<'_>) -> Result<Vec<Found>, StoreError> {
        let asked = query(FIND).bind(&wanted.ids).bind(&wanted.tenants).bind(&wanted.keys);
        let rows = asked.fetch_all(&mut *self.0).await.map_err(sort)?;
        let found = |row: &PgRow| {
            Ok(Found {
                place: row.try_get("place").map_err(sort)?,
                by_id: row.try_get("by_id").map_err(sort)?,
                by_key: row.try_get("by_key").map_err(sort)?,
                fingerprint: row.try_get("fingerprint").map_err(sort)?,
            })
        };
        rows.iter().map(found).collect()
    }

    async fn insert_unique(
        &mut self,
        limit: &Limit,
        columns: &UniqueColumns<'_>,
    ) -> Result<Vec<Decided>, StoreError> {
        let asked = bind_jobs(bind_limit(query(INSERT_UNIQUE), limit), &columns.jobs)
            .bind(&columns.kinds)
            .bind(&columns.keys)
            .bind(&columns.rules)
            .bind(&columns.spans);
        let rows = asked.fetch_all(&mut *self.0).await.map_err(sort)?;
        let decided = |row: &PgRow| {
            Ok(Decided {
                late: row.try_get("late").map_err(sort)?,
                place: row.try_get("place").map_err(sort)?,
                created: row.try_get("created").map_err(sort)?,
                existing: row.try_get("existing").map_err(sort)?,
                replaced: row.try_get("replaced").map_err(sort)?,
            })
        };
        rows.iter().map(decided).collect()
    }
}

type Asked<'q> = Query<'q, Postgres, PgArguments>;

fn bind_limit<'q>(asked: Asked<'q>, limit: &Limit) -> Asked<'q> {
    asked.bind(limit.now).bind(limit.horizon).bind(limit.latest)
}

fn bind_jobs<'q>(asked: Asked<'q>, columns: &'q Columns<'_>) -> Asked<'q> {
    asked
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
        .bind(&columns.subjects)
        .bind(&columns.metadata)
        .bind(&columns.payloads)
        .bind(&columns.parents)
        .bind(&columns.branches)
        .bind(&columns.partitions)
        .bind(&columns.stricts)
        .bind(&columns.detached)
}

/// The caller's transaction is the caller's to try again, so little is told apart.
fn sort(error: Error) -> StoreError {
    let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
    match code.as_deref() {
        Some("40P01" | "40001" | "55P03" | "57014") => StoreError::Busy(Box::new(error)),
        Some("53100") => StoreError::Full(Box::new(error)),
        Some(_) => StoreError::Failed(Box::new(error)),
        None => StoreError::Unavailable(Box::new(error)),
    }
}
