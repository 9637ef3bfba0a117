//! The number of files that this process may have open: raised as far as allowed, since each connection is a file.

/// What became of the soft limit of open files.
pub(crate) enum FileLimit {
    /// It was raised to the hard limit.
    Raised(RaisedLimit),
    /// It was as high as it may be.
    Highest,
    /// The system did not let it be raised.
    Kept(std::io::Error),
}

impl FileLimit {
    /// Raises the soft limit of open files to the hard limit.
    pub(crate) fn raise() -> Self {
        match platform::raise() {
            Some(Ok(raised)) => Self::Raised(raised),
            Some(Err(error)) => Self::Kept(error),
            None => Self::Highest,
        }
    }

    /// Logs the result.
    pub(crate) fn log(&self) {
        match self {
            Self::Raised(RaisedLimit { from, to }) => {
                tracing::info!(from = shown(*from), to = shown(*to), "limit of open files raised");
            }
            Self::Highest => tracing::info!(open_files = shown(current()), "limit of open files"),
            Self::Kept(error) => {
                tracing::warn!(%error, open_files = shown(current()), "the limit of open files cannot be raised");
            }
        }
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
pub(crate) struct RaisedLimit {
    from: Option<u64>,
    to: Option<u64>,
}

#[cfg(unix)]
mod platform {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::RaisedLimit;

    /// None where the soft limit is as high as it may be.
    pub(super) fn raise() -> Option<std::io::Result<RaisedLimit>> {
        let limit = getrlimit(Resource::Nofile);
        if limit.current == limit.maximum {
            return None;
        }
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let done = setrlimit(Resource::Nofile, raised).map_err(Into::into);
        Some(done.map(|()| RaisedLimit { from: limit.current, to: limit.maximum }))
    }

    pub(super) fn current() -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }
}

#[cfg(not(unix))]
mod platform {
    use super::RaisedLimit;

    pub(super) fn raise() -> Option<std::io::Result<RaisedLimit>> {
        None
    }

    pub(super) fn current() -> Option<u64> {
        None
    }
}
