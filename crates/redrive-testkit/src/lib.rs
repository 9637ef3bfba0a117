//! Proves stores and workers: a reference model, the conformance suite every store passes, and a manual clock.

pub mod checks;
pub mod clock;
pub mod damage;
pub mod exercise;
pub mod faulty;
pub mod history;
pub mod interleave;
mod look_through;
pub mod model;
pub mod model_store;
pub mod mutant;
pub mod recorded;
#[cfg(feature = "servers")]
pub mod servers;
pub mod simulation;
pub mod statemachine;

pub use clock::ManualClock;
pub use damage::{check_damaged_rows, enqueue_rows_to_damage};
pub use exercise::exercise;
pub use faulty::FaultyStore;
pub use history::History;
pub use interleave::{interleave, interleave_all};
pub use model::Model;
pub use model_store::ModelStore;
pub use recorded::Recorded;
pub use simulation::simulate;
pub use statemachine::check_against_model;
