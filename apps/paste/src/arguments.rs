//! What the program can be told.

use std::net::SocketAddr;
use std::time::Duration;

/// A paste site: content in an object store, everything else in one database
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "paste", version)]
pub struct Arguments {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:7400")]
    pub listen: SocketAddr,
    /// `sqlite:FILE` for one process, or `postgres://…` for any number of them
    #[arg(long, default_value = "sqlite:paste.db")]
    pub database: String,
    /// `file:FOLDER`, or `s3://BUCKET` with the usual AWS variables
    #[arg(long, default_value = "file:paste-objects")]
    pub objects: String,
    /// What this process does
    #[arg(long, value_enum, value_delimiter = ',', default_value = "app,worker")]
    pub roles: Vec<Role>,
    /// Uploads at once
    #[arg(long, default_value_t = 32)]
    pub uploads: usize,
    /// Seconds that one attempt to upload may take
    #[arg(long, value_name = "SECONDS", default_value = "8", value_parser = seconds)]
    pub upload_timeout: Duration,
    /// Seconds without a sign of life after which a worker's uploads are taken over
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub lease: Duration,
}

/// What a process can do.
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

    /// Refuses what could not work, saying what would.
    pub fn check(&self) -> anyhow::Result<()> {
        let both = self.has(Role::App) && self.has(Role::Worker);
        anyhow::ensure!(
            both || !self.database.starts_with("sqlite:"),
            "a SQLite file is for one process, which has every role; leave --roles out, or use --database postgres://…"
        );
        Ok(())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let whole: f64 = text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?;
    let span = Duration::try_from_secs_f64(whole).map_err(|error| error.to_string())?;
    if span < Duration::from_millis(100) { Err("at least 0.1 is needed".to_owned()) } else { Ok(span) }
}
