//! Raises the limit of open files as far as allowed, because every connection is a file.

/// The result of raising the soft limit of open files.
pub(crate) enum FileLimit {
    /// The soft limit was raised to the hard limit.
    Raised(RaisedLimit),
    /// The soft limit was already as high as allowed.
    Highest,
    /// The system did not allow the process to raise the soft limit.
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
                tracing::info!(
                    from = limit_text(*from),
                    to = limit_text(*to),
                    "raised the limit of open files"
                );
            }
            Self::Highest => tracing::info!(open_files = limit_text(current()), "limit of open files"),
            Self::Kept(error) => {
                let open_files = limit_text(current());
                tracing::warn!(%error, open_files, "cannot raise the limit of open files");
            }
        }
    }
}

/// The current limit of open files. `None` means unlimited.
pub(crate) fn current() -> Option<u64> {
    platform::current()
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

/// The soft limit before and after.
#[cfg_attr(not(unix), expect(dead_code, reason = "only Unix has such limits"))]
pub(crate) struct RaisedLimit {
    from: Option<u64>,
    to: Option<u64>,
}

#[cfg(unix)]
mod platform {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::RaisedLimit;

    /// `None` if the soft limit is already as high as allowed.
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
