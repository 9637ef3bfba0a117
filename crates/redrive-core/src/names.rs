//! Names that users choose: of bounded length, printable, cheap to clone.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::limits::{KEY_BYTES_MAX, NAME_BYTES_MAX};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $field:literal, $shortest:literal..=$longest:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Accepts a name of a valid length without control characters.
            pub fn new(name: impl Into<Arc<str>>) -> Result<Self, Invalid> {
                let name = name.into();
                check($field, &name, $shortest, $longest)?;
                Ok(Self(name))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = Invalid;
            fn from_str(name: &str) -> Result<Self, Invalid> {
                Self::new(name)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;
            fn try_from(name: String) -> Result<Self, Invalid> {
                Self::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }
    };
}

name!(
    /// The name of a queue.
    Queue, "queue", 1..=NAME_BYTES_MAX
);
name!(
    /// The kind of a job. It selects the handler.
    Kind, "kind", 1..=NAME_BYTES_MAX
);
name!(
    /// The tenant that a job belongs to. Installations with a single tenant use the empty name.
    Tenant, "tenant", 0..=NAME_BYTES_MAX
);
name!(
    /// Makes a repeated enqueue of the same tenant return the first job.
    IdempotencyKey, "idempotencyKey", 1..=KEY_BYTES_MAX
);
name!(
    /// At most one job of a tenant and kind holds this key. [`crate::UniqueRule`] says for how long.
    UniqueKey, "uniqueKey", 1..=KEY_BYTES_MAX
);
name!(
    /// Jobs of a queue with the same partition key share limits, and possibly an order.
    PartitionKey, "partition", 1..=KEY_BYTES_MAX
);
name!(
    /// The name of a step of a durable job.
    StepName, "step", 1..=NAME_BYTES_MAX
);
name!(
    /// The name of a signal that a durable job waits for.
    SignalName, "signal", 1..=NAME_BYTES_MAX
);
name!(
    /// The name of a policy, without its version.
    PolicyName, "policyId", 1..=NAME_BYTES_MAX
);
name!(
    /// The name of a worker, for people. Fencing never uses it.
    WorkerId, "worker", 1..=NAME_BYTES_MAX
);

impl Default for Queue {
    fn default() -> Self {
        Self("default".into())
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self("".into())
    }
}

fn check(field: &'static str, name: &str, shortest: usize, longest: usize) -> Result<(), Invalid> {
    if name.len() < shortest {
        return Err(Invalid::new(field, "must not be empty"));
    }
    if name.len() > longest {
        return Err(Invalid::new(
            field,
            format!("is {} bytes long, at most {longest} are allowed", name.len()),
        ));
    }
    if name.chars().any(char::is_control) {
        return Err(Invalid::new(field, "must not contain control characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_name_is_rejected_with_its_field_and_the_reason() {
        for (name, problem) in [
            (String::new(), "must not be empty"),
            ("x".repeat(129), "is 129 bytes long, at most 128 are allowed"),
            ("a\nb".into(), "must not contain control characters"),
        ] {
            assert_eq!(Queue::new(name).unwrap_err(), Invalid::new("queue", problem));
        }
        assert!(Tenant::new("").is_ok());
    }
}
