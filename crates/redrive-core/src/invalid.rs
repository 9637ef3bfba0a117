//! The error for an invalid value: it names the field and the problem.

/// An invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The field as the user knows it, for example `maxAttempts`.
    pub field: &'static str,
    /// What is wrong, and which values are valid.
    pub problem: String,
}

impl Invalid {
    /// An invalid value of `field`.
    pub fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}
