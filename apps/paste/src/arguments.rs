//! The command line arguments.

use std::net::SocketAddr;
use std::time::Duration;

/// A paste site: content in an object store, everything else in one database
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "paste", version)]
pub struct Arguments {
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1:7400")]
    pub listen: SocketAddr,
    /// `sqlite:FILE` for one process, or `postgres://…` for any number of them
    #[arg(long, default_value = "sqlite:paste.db")]
    pub database: String,
    /// `file:FOLDER`, or `s3://BUCKET` with the usual AWS variables
    #[arg(long, default_value = "file:paste-objects")]
    pub objects: String,
    /// The roles of this process
    #[arg(long, value_enum, value_delimiter = ',', default_value = "app,worker")]
    pub roles: Vec<Role>,
    /// Uploads that run at once
    #[arg(long, default_value_t = 32)]
    pub uploads: usize,
    /// Seconds that one attempt to upload may take
    #[arg(long, value_name = "SECONDS", default_value = "8", value_parser = seconds)]
    pub upload_timeout: Duration,
    /// Seconds without a heartbeat after which other workers take over the uploads of a worker
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub lease: Duration,
}

/// A role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Answer requests
    App,
    /// Upload, remove and sweep
    Worker,
}

impl Arguments {
    /// Whether this process has a role.
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// Rejects combinations that cannot work.
    pub fn check(&self) -> anyhow::Result<()> {
        let both = self.has(Role::App) && self.has(Role::Worker);
        anyhow::ensure!(
            both || !self.database.starts_with("sqlite:"),
            "only one process can use a SQLite file, and it needs every role; leave out --roles, or use --database postgres://…"
        );
        Ok(())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if duration < Duration::from_millis(100) { Err("must be at least 0.1".to_owned()) } else { Ok(duration) }
}
