//! Limits of queues and partition keys, and strict order.
//!
//! The scripts count; core decides ([`redrive_core::capacity`]).

mod claim;
mod slots;

pub(crate) use claim::claim_limited;
pub(crate) use slots::{SlotWait, grant_free_slots};
