//! The number of files that this process may have open: raised as far as allowed, since each connection is a file.

/// Raises the soft limit of open files to the hard limit and logs the result.
pub(crate) fn raise() {
    match platform::raise() {
        Some(Ok(raised)) => {
            tracing::info!(from = shown(raised.from), to = shown(raised.to), "limit of open files raised");
        }
        Some(Err(error)) => {
            tracing::warn!(%error, open_files = shown(current()), "the limit of open files cannot be raised");
        }
        None => tracing::info!(open_files = shown(current()), "limit of open files"),
    }
}

/// The number of files that this process may have open now; none where there is no limit.
pub(crate) fn current() -> Option<u64> {
    platform::current()
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

/// A soft limit before and after it was raised.
#[cfg_attr(not(unix), expect(dead_code, reason = "only Unix has such limits"))]
struct Raised {
    from: Option<u64>,
    to: Option<u64>,
}

#[cfg(unix)]
mod platform {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::Raised;

    /// None where the soft limit is as high as it may be.
    pub(super) fn raise() -> Option<std::io::Result<Raised>> {
        let limit = getrlimit(Resource::Nofile);
        if limit.current == limit.maximum {
            return None;
        }
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let done = setrlimit(Resource::Nofile, raised).map_err(Into::into);
        Some(done.map(|()| Raised { from: limit.current, to: limit.maximum }))
    }

    pub(super) fn current() -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }
}

#[cfg(not(unix))]
mod platform {
    use super::Raised;

    pub(super) fn raise() -> Option<std::io::Result<Raised>> {
        None
    }

    pub(super) fn current() -> Option<u64> {
        None
    }
}
