//! The code that the PostgreSQL peers share: the connection that checks the database and reads its settings.

#[path = "phases_server.rs"]
mod phases_server;

use anyhow::{Result, ensure};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

pub use phases_server::{Args, Load, Peer, measure};

/// Opens a connection that reads the state of the database. Fails if the database is not empty.
pub async fn open_reader(url: &str) -> Result<PgPool> {
    let reader = PgPoolOptions::new().max_connections(1).connect(url).await?;
    let sql = "SELECT count(*) FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$|public$)'";
    let schemas: i64 = sqlx::query_scalar(sql).fetch_one(&reader).await?;
    let sql = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
    let relations: i64 = sqlx::query_scalar(sql).fetch_one(&reader).await?;
    ensure!(
        schemas + relations == 0,
        "the database must be empty, because existing jobs would be drained too"
    );
    Ok(reader)
}

impl phases_server::Database for PgPool {
    /// The settings of the server. No peer here lowers them for its own sessions or uses unlogged tables.
    async fn durability(&self) -> Result<String> {
        let sql = "SELECT format('fsync %s, synchronous_commit %s, full_page_writes %s', \
                   current_setting('fsync'), current_setting('synchronous_commit'), \
                   current_setting('full_page_writes'))";
        Ok(sqlx::query_scalar(sql).fetch_one(self).await?)
    }

    /// Autovacuum would do this within a minute. Until then the statistics of the planner still include the drained backlog:
    /// apalis-postgres reads its whole table for a join, and a pickup takes 50 ms.
    async fn refresh_statistics(&self) -> Result<()> {
        sqlx::query("VACUUM ANALYZE").execute(self).await?;
        Ok(())
    }
}
