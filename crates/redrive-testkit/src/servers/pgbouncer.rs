//! A private PgBouncer, which pools connections to Postgres by transaction.

use std::fs::File;
use std::process::Child;

use super::folder::Folder;
use super::postgres::Postgres;
use super::process::{WAIT_MAX, dependent_command, find_program, free_port, poll, spawn};

/// A private PgBouncer in front of a [`Postgres`], on a free port of loopback. It ends with this value.
///
/// It pools by transaction and serves every database. The user `redrive` needs no password, and may use the admin
/// console, the database `pgbouncer`.
pub struct PgBouncer {
    folder: Folder,
    port: u16,
    running: Option<Child>,
}

impl PgBouncer {
    /// Starts it and waits until it accepts connections.
    pub fn start(postgres: &Postgres) -> Self {
        Self::start_with(postgres, &[])
    }

    /// Starts it with settings, such as `("default_pool_size", "1")`.
    pub fn start_with(postgres: &Postgres, settings: &[(&str, &str)]) -> Self {
        let folder = Folder::create("pgbouncer", &std::env::temp_dir());
        let mut server = Self { folder, port: 0, running: None };
        let started = (0..10).any(|_| {
            server.port = free_port();
            server.configure(postgres, settings);
            server.launch()
        });
        assert!(started, "every port is taken as soon as it is chosen:\n{}", server.log());
        server
    }

    /// The URL of the database `redrive` through PgBouncer.
    pub fn address(&self) -> String {
        self.address_of("redrive")
    }

    /// The URL of a database through PgBouncer.
    pub fn address_of(&self, database: &str) -> String {
        format!("postgres://redrive@127.0.0.1:{}/{database}", self.port)
    }

    /// Its log.
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
        written.expect("the configuration can be written");
    }

    /// Starts it and waits until it accepts connections; false if its port is in use.
    fn launch(&mut self) -> bool {
        let program = find_program("pgbouncer").expect("PgBouncer is missing: run `cargo xtask setup`");
        let log = File::create(self.folder.join("log")).expect("the log can be created");
        // PgBouncer has no data that a kill could lose.
        let mut bouncer = dependent_command(&program, "KILL");
        bouncer.arg(self.folder.join("pgbouncer.ini"));
        bouncer.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        self.running = Some(spawn(bouncer));
        let listening = format!("listening on 127.0.0.1:{}", self.port);
        let is_listening = poll(WAIT_MAX, || {
            if self.log().contains(&listening) {
                return Some(true);
            }
            let ended = self.running.as_mut().is_none_or(|process| !matches!(process.try_wait(), Ok(None)));
            ended.then_some(false)
        });
        if is_listening != Some(true) {
            self.kill();
            let log = self.log();
            assert!(
                log.to_lowercase().contains("address already in use"),
                "PgBouncer does not start:\n{log}"
            );
        }
        is_listening == Some(true)
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.running.take() {
            // Both calls fail only if the process has ended already.
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
