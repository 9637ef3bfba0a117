//! The site as a whole: the state that its parts share, and the process that runs them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::serve::ListenerExt as _;
use redrive::{Redrive, Settings, TaskWorker, shutdown_signal};
use tokio::net::TcpListener;

use crate::arguments::{Arguments, Role};
use crate::database::{self, Database};
use crate::objects::Objects;
use crate::read::ContentReader;
use crate::{remove, routes, sweep, upload};

/// The time between two searches for uploads whose worker died.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(2);

/// The state that requests and jobs share.
pub struct Site {
    /// The jobs.
    pub redrive: Redrive,
    /// The rows, in the same database.
    pub database: Arc<dyn Database>,
    /// The content.
    pub objects: Objects,
    /// Reads content, with a cache and a breaker.
    pub reader: ContentReader,
}

impl Site {
    /// Opens the database and the object store, and creates missing tables.
    pub async fn open(arguments: &Arguments) -> anyhow::Result<Arc<Self>> {
        let objects = Objects::open(&arguments.objects, arguments.upload_timeout)?;
        let redrive = Redrive::open(&arguments.database).await?;
        let database = database::open(&redrive, &arguments.database);
        database.prepare().await.context("cannot create the tables of the site")?;
        Ok(Arc::new(Self { redrive, database, objects, reader: ContentReader::default() }))
    }

    /// A worker that uploads, removes and sweeps.
    pub fn worker(self: &Arc<Self>, arguments: &Arguments) -> TaskWorker {
        let settings = Settings::default()
            .with_concurrency(arguments.uploads)
            .with_lease(arguments.lease)
            .with_reclaim_every(RECLAIM_INTERVAL.min(arguments.lease));
        let worker = self.redrive.worker().settings(settings).state(self.clone());
        self.database.end_uploads(worker.on(upload::upload)).on(remove::remove).on(sweep::sweep)
    }
}

/// Runs the roles of a process until it gets a signal to stop.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    arguments.check()?;
    let site = Site::open(&arguments).await?;
    let (serving, working) = tokio::join!(
        run_if(arguments.has(Role::App), serve(site.clone(), &arguments)),
        run_if(arguments.has(Role::Worker), work(site.clone(), &arguments)),
    );
    serving.and(working)
}

async fn run_if(condition: bool, run: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    if condition { run.await } else { Ok(()) }
}

async fn serve(site: Arc<Site>, arguments: &Arguments) -> anyhow::Result<()> {
    let listener = TcpListener::bind(arguments.listen).await.with_context(|| {
        format!("cannot listen on {}; choose another address with --listen", arguments.listen)
    })?;
    let address = listener.local_addr()?;
    let (database, objects) = (redrive::mask_password(&arguments.database), &arguments.objects);
    println!("paste listens on http://{address} with {database} and {objects}");
    let listener = listener.tap_io(|stream| {
        // Small responses are sent without delay.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, routes::router(site)).with_graceful_shutdown(shutdown_signal()).await?;
    Ok(())
}

async fn work(site: Arc<Site>, arguments: &Arguments) -> anyhow::Result<()> {
    sweep::schedule(&site.redrive).await?;
    if !arguments.has(Role::App) {
        println!("paste works on {} with {}", redrive::mask_password(&arguments.database), arguments.objects);
    }
    site.worker(arguments).run_until(shutdown_signal()).await?;
    Ok(())
}
