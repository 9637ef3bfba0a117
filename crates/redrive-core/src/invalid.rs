//! The error for a value from outside that does not construct: it names the field and what is wrong with it.

/// A value was refused. `field` is the name a user wrote; `problem` says which limit it broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The field as the user knows it, for instance `maxAttempts`.
    pub field: &'static str,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl Invalid {
    /// Names a field and its problem.
    pub fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}
