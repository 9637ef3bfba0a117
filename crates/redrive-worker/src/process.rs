//! The leases that all workers of this process hold in one store, so that none of them takes a job from another.
//!
//! A store compares leases with its clock. After a suspend, or when that clock is moved, every lease may seem to have run out
//! although its attempt goes on here.

use std::sync::{Arc, Mutex, Weak};

use redrive_core::Lease;
use redrive_core::store::Backend;

use crate::hold::{Held, lock};

static WORKERS: Mutex<Vec<Member>> = Mutex::new(Vec::new());

struct Member {
    store: usize,
    held: Weak<Held>,
}

/// What the workers of this process hold in one store.
pub(crate) struct ProcessLeases {
    store: usize,
}

impl ProcessLeases {
    /// Adds a worker on `backend`. It is a member for as long as `held` is in use.
    ///
    /// Workers share a store if they share the `Arc`. The address stays theirs alone, because each keeps the store in use.
    pub(crate) fn join(backend: &Arc<dyn Backend>, held: &Arc<Held>) -> Self {
        let store = Arc::as_ptr(backend).cast::<()>().addr();
        let mut workers = lock(&WORKERS);
        // Workers that are gone.
        workers.retain(|member| member.held.strong_count() > 0);
        workers.push(Member { store, held: Arc::downgrade(held) });
        Self { store }
    }

    /// Every lease that a worker of this process holds in the store.
    pub(crate) fn all(&self) -> Vec<Lease> {
        let workers = lock(&WORKERS);
        let here = workers.iter().filter(|member| member.store == self.store);
        let here: Vec<Arc<Held>> = here.filter_map(|member| member.held.upgrade()).collect();
        drop(workers);
        here.iter().flat_map(|held| held.leases()).collect()
    }
}
