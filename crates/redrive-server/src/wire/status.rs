//! Where a task is in its life, in the service's words.

use redrive_core::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Waits for its next attempt.
    Pending,
    /// An attempt is under way.
    InFlight,
    /// Delivered.
    Succeeded,
    /// Given up; a dead letter.
    Exhausted,
    /// Ended by request.
    Cancelled,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::InFlight, Self::Succeeded, Self::Exhausted, Self::Cancelled];

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::InFlight => "IN_FLIGHT",
            Self::Succeeded => "SUCCEEDED",
            Self::Exhausted => "EXHAUSTED",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// The engine's states behind it.
    pub fn states(self) -> &'static [State] {
        match self {
            Self::Pending => &[State::Pending, State::Retrying, State::Waiting],
            Self::InFlight => &[State::Running],
            Self::Succeeded => &[State::Succeeded],
            Self::Exhausted => &[State::Dead],
            Self::Cancelled => &[State::Cancelled],
        }
    }
}

impl From<State> for Status {
    fn from(state: State) -> Self {
        match state {
            State::Pending | State::Retrying | State::Waiting => Self::Pending,
            State::Running => Self::InFlight,
            State::Succeeded => Self::Succeeded,
            State::Dead => Self::Exhausted,
            State::Cancelled => Self::Cancelled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_one_status() {
        for state in State::ALL {
            let homes: Vec<_> =
                Status::ALL.into_iter().filter(|status| status.states().contains(&state)).collect();
            assert_eq!(homes, [Status::from(state)]);
        }
        for status in Status::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
    }
}
