//! The tasks of a running worker. All of them end with this value, wherever they are: dropping it is a crash.

use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;

use crate::claim::Attempts;
use crate::engine::Engine;
use crate::heartbeat::Heartbeat;
use crate::hold::lock;
use crate::settle::Lane;
use crate::worker::WorkerError;
use crate::{claim, prune, reclaim, seal};

/// Every task that works for one run of a worker.
pub(crate) struct Crew {
    pub(crate) engine: Arc<Engine>,
    /// Claim, reclaim, prune and the look at seals: they end when the shutdown begins.
    pub(crate) intake: JoinSet<()>,
    /// Settle, a task for each lane: they end when everything is flushed.
    pub(crate) settle: JoinSet<()>,
    pub(crate) heartbeat: Heartbeat,
    attempts: Arc<Attempts>,
}

impl Crew {
    /// Sets every task to work.
    pub(crate) fn start(engine: Arc<Engine>, lanes: Vec<Lane>) -> Result<Self, WorkerError> {
        let heartbeat = Heartbeat::start(&engine).map_err(WorkerError::Heartbeat)?;
        let attempts = Arc::new(Mutex::new(Some(JoinSet::new())));
        let mut settle = JoinSet::new();
        for lane in lanes {
            settle.spawn(lane.run(engine.clone()));
        }
        let mut intake = JoinSet::new();
        intake.spawn(reclaim::run(engine.clone()));
        intake.spawn(claim::run(engine.clone(), attempts.clone()));
        intake.spawn(prune::run(engine.clone()));
        intake.spawn(seal::run(engine.clone()));
        Ok(Self { engine, intake, settle, heartbeat, attempts })
    }

    /// Returns when a part has ended that never should before a shutdown.
    pub(crate) async fn died(&mut self) -> WorkerError {
        tokio::select! {
            biased;
            _ = self.intake.join_next() => WorkerError::Died("claim, reclaim or prune"),
            _ = self.settle.join_next() => WorkerError::Died("settle"),
            () = self.heartbeat.ended() => WorkerError::Died("heartbeat"),
        }
    }
}

impl Drop for Crew {
    /// The claim task may be at work on another thread: taking the set away keeps it from adding to it.
    fn drop(&mut self) {
        drop(lock(&self.attempts).take());
        self.engine.held.abandon_results();
    }
}
