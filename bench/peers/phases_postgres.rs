//! What the PostgreSQL peers share beyond the phases: what the database says of itself.

#[path = "phases_server.rs"]
mod phases_server;

use anyhow::{Result, ensure};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

pub use phases_server::{Args, Load, Peer, measure};

/// A connection beside the peer's own, which asks the database; the database must be empty.
pub async fn open_reader(url: &str) -> Result<PgPool> {
    let reader = PgPoolOptions::new().max_connections(1).connect(url).await?;
    let sql = "SELECT count(*) FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$|public$)'";
    let schemas: i64 = sqlx::query_scalar(sql).fetch_one(&reader).await?;
    let sql = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
    let relations: i64 = sqlx::query_scalar(sql).fetch_one(&reader).await?;
    ensure!(schemas + relations == 0, "the database must be empty: leftovers would be drained as well");
    Ok(reader)
}

impl phases_server::Database for PgPool {
    /// No peer here turns any of these down for its own sessions, nor uses unlogged tables.
    async fn durability(&self) -> Result<String> {
        let sql = "SELECT format('fsync %s, synchronous_commit %s, full_page_writes %s', \
                   current_setting('fsync'), current_setting('synchronous_commit'), \
                   current_setting('full_page_writes'))";
        Ok(sqlx::query_scalar(sql).fetch_one(self).await?)
    }

    /// Autovacuum would within a minute. Until then the planner may believe in a backlog that is
    /// gone: apalis-postgres then joins by reading its whole table, and a pickup takes 50 ms.
    async fn settle_down(&self) -> Result<()> {
        sqlx::query("VACUUM ANALYZE").execute(self).await?;
        Ok(())
    }
}
