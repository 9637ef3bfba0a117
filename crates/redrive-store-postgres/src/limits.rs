//! Limits of queues and of partition keys: claims that respect them, and slots that become free.

pub(crate) mod claim;
pub(crate) mod locks;
pub(crate) mod slots;
pub(crate) mod usage;
