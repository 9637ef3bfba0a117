//! Proves stores and workers: a reference model, the conformance suite every store passes, and a manual clock.

pub mod checks;
pub mod damage;
mod epoch_translator;
pub mod exercise;
pub mod faulty_store;
pub mod history;
pub mod interleave;
pub mod model;
pub mod model_store;
pub mod mutant_store;
mod pages;
pub mod recording_store;
#[cfg(feature = "servers")]
pub mod servers;
pub mod simulation;
pub mod state_machine;

pub use damage::{check_damaged_rows, enqueue_rows_to_damage};
pub use exercise::exercise;
pub use faulty_store::FaultyStore;
pub use history::History;
pub use interleave::{interleave, interleave_all};
pub use model::Model;
pub use model_store::ModelStore;
pub use recording_store::RecordingStore;
pub use redrive_core::manual_clock as clock;
pub use redrive_core::manual_clock::ManualClock;
pub use simulation::simulate;
pub use state_machine::check_against_model;
