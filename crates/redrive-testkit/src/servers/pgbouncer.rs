//! A private PgBouncer, which gives a connection to Postgres to whoever has a transaction open.

use std::fs::File;
use std::process::Child;

use super::folder::Folder;
use super::postgres::Postgres;
use super::process::{PATIENCE, find_program, free_port, look, mortal_command, spawn};

/// A PgBouncer of its own in front of a [`Postgres`], on a free port of loopback; it ends with this value.
///
/// It pools by transaction and knows every database there. The user `redrive` needs no password, and has its console,
/// the database `pgbouncer`.
pub struct PgBouncer {
    folder: Folder,
    port: u16,
    running: Option<Child>,
}

impl PgBouncer {
    /// Starts one and waits until it takes connections.
    pub fn start(postgres: &Postgres) -> Self {
        Self::start_with(postgres, &[])
    }

    /// Starts one with more settings, such as `("default_pool_size", "1")`.
    pub fn start_with(postgres: &Postgres, settings: &[(&str, &str)]) -> Self {
        let folder = Folder::create("pgbouncer", &std::env::temp_dir());
        let mut server = Self { folder, port: 0, running: None };
        let begun = (0..10).any(|_| {
            server.port = free_port();
            server.configure(postgres, settings);
            server.launch()
        });
        assert!(begun, "every port is taken as soon as it is chosen:\n{}", server.log());
        server
    }

    /// The URL of the database `redrive` through it.
    pub fn address(&self) -> String {
        self.address_of("redrive")
    }

    /// The URL of a database through it.
    pub fn address_of(&self, database: &str) -> String {
        format!("postgres://redrive@127.0.0.1:{}/{database}", self.port)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn configure(&self, postgres: &Postgres, settings: &[(&str, &str)]) {
        let (port, server_port) = (self.port, postgres.port());
        let users = self.folder.join("users");
        let own = format!(
            "[databases]\n* = host=127.0.0.1 port={server_port}\n\
             [pgbouncer]\npool_mode = transaction\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {}\nadmin_users = redrive\n\
             ignore_startup_parameters = extra_float_digits\n",
            users.display()
        );
        let more = settings.iter().map(|(name, value)| format!("{name} = {value}\n"));
        let written = std::fs::write(self.folder.join("pgbouncer.ini"), own + &more.collect::<String>())
            .and_then(|()| std::fs::write(users, "\"redrive\" \"\"\n"));
        written.expect("a folder of our own takes files");
    }

    /// Starts it and waits until it takes connections; false if its port is taken.
    fn launch(&mut self) -> bool {
        let program = find_program("pgbouncer").expect("PgBouncer is missing: run `cargo xtask setup`");
        let log = File::create(self.folder.join("log")).expect("a folder of our own takes a file");
        // It has nothing to lose.
        let mut bouncer = mortal_command(&program, "KILL");
        bouncer.arg(self.folder.join("pgbouncer.ini"));
        bouncer.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        self.running = Some(spawn(bouncer));
        let listening = format!("listening on 127.0.0.1:{}", self.port);
        let seen = look(PATIENCE, || {
            if self.log().contains(&listening) {
                return Some(true);
            }
            let ended = self.running.as_mut().is_none_or(|process| !matches!(process.try_wait(), Ok(None)));
            ended.then_some(false)
        });
        if seen != Some(true) {
            self.kill();
            let log = self.log();
            assert!(
                log.to_lowercase().contains("address already in use"),
                "PgBouncer does not start:\n{log}"
            );
        }
        seen == Some(true)
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.running.take() {
            // Both fail only when it has ended before.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.kill();
    }
}
