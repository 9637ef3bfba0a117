//! The only state machine: which state follows which, and by what event.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum State {
    /// Due at `next_run_at` for an attempt that follows no failure.
    Pending = 0,
    /// Due at `next_run_at` for an attempt that follows a failure.
    Retrying = 1,
    /// Leased by a worker.
    Running = 2,
    /// Set aside by its handler until something resumes it.
    Waiting = 3,
    /// Ended well.
    Succeeded = 4,
    /// Beyond help until someone drives it again.
    Dead = 5,
    /// Ended by request.
    Cancelled = 6,
}

/// What happens to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A worker takes the lease.
    Claim,
    /// The lease ran out and another worker takes it over.
    Reclaim,
    /// The attempt succeeded.
    Complete,
    /// The attempt failed and another one is planned.
    Retry,
    /// The handler asked to be run later.
    Snooze,
    /// Something holds the handler back until later.
    Park,
    /// The worker hands the lease back.
    Release,
    /// The handler waits for something outside.
    Wait,
    /// What it waited for has come.
    Resume,
    /// An operator sets it aside.
    Hold,
    /// The attempt failed for good.
    DeadLetter,
    /// Someone asked for an end.
    Cancel,
    /// An operator drives a dead job again.
    Redrive,
}

/// The state that follows `state` when `event` happens.
pub fn transition(state: State, event: Event) -> Result<State, IllegalTransition> {
    use Event::{
        Cancel, Claim, Complete, DeadLetter, Hold, Park, Reclaim, Redrive, Release, Resume, Retry, Snooze,
        Wait,
    };
    use State::{Cancelled, Dead, Pending, Retrying, Running, Succeeded, Waiting};
    match (state, event) {
        (Pending | Retrying, Claim) | (Running, Reclaim) => Ok(Running),
        (Running, Complete) => Ok(Succeeded),
        (Running, Retry) => Ok(Retrying),
        (Running, Snooze | Park | Release) | (Waiting, Resume) | (Dead, Redrive) => Ok(Pending),
        (Running, Wait) | (Pending | Retrying, Hold) => Ok(Waiting),
        (Running, DeadLetter) => Ok(Dead),
        (Pending | Retrying | Waiting | Running, Cancel) => Ok(Cancelled),
        (
            Pending | Retrying,
            Reclaim | Complete | Retry | Snooze | Park | Release | Wait | Resume | DeadLetter | Redrive,
        )
        | (Running, Claim | Resume | Hold | Redrive)
        | (
            Waiting,
            Claim | Reclaim | Complete | Retry | Snooze | Park | Release | Wait | Hold | DeadLetter | Redrive,
        )
        | (Succeeded | Cancelled, _)
        | (
            Dead,
            Claim | Reclaim | Complete | Retry | Snooze | Park | Release | Wait | Resume | Hold | DeadLetter
            | Cancel,
        ) => Err(IllegalTransition { state, event }),
    }
}

/// An event that cannot happen in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {state} cannot {event:?}")]
pub struct IllegalTransition {
    /// The state the job is in.
    pub state: State,
    /// The event that was refused.
    pub event: Event,
}

impl State {
    /// Every state, in the order of their codes.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Retrying,
        Self::Running,
        Self::Waiting,
        Self::Succeeded,
        Self::Dead,
        Self::Cancelled,
    ];

    /// Whether a claim may take it once it is due.
    pub fn is_claimable(self) -> bool {
        matches!(self, Self::Pending | Self::Retrying)
    }

    /// Whether it has ended; retention counts from then.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Dead | Self::Cancelled)
    }

    /// The number that stores keep; it never changes meaning.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The state with that number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The name that people read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Retrying => "retrying",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Succeeded => "succeeded",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for State {
    type Err = Invalid;
    fn from_str(name: &str) -> Result<Self, Invalid> {
        let known = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|state| state.name() == name)
            .ok_or_else(|| Invalid::new("state", format!("must be one of {}, is {name:?}", known())))
    }
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 13] = [
        Self::Claim,
        Self::Reclaim,
        Self::Complete,
        Self::Retry,
        Self::Snooze,
        Self::Park,
        Self::Release,
        Self::Wait,
        Self::Resume,
        Self::Hold,
        Self::DeadLetter,
        Self::Cancel,
        Self::Redrive,
    ];
}

/// The state machine as a Mermaid diagram, one arrow for each legal transition; `docs/lifecycle.md` holds it.
pub fn diagram() -> String {
    let mut lines = vec!["stateDiagram-v2".to_owned(), "    [*] --> pending: enqueue".to_owned()];
    for state in State::ALL {
        for event in Event::ALL {
            if let Ok(next) = transition(state, event) {
                lines.push(format!("    {state} --> {next}: {}", event.label(state)));
            }
        }
    }
    lines.push("    dead --> [*]: discard".to_owned());
    lines.extend(State::ALL.iter().filter(|s| s.is_final()).map(|s| format!("    {s} --> [*]: prune")));
    lines.join("\n") + "\n"
}

impl Event {
    /// The arrow's label: a job leaves `running` only by a settlement, under its lease.
    fn label(self, from: State) -> String {
        let settles = from == State::Running && self != Self::Reclaim;
        if settles { format!("settle({self:?})") } else { format!("{self:?}").to_lowercase() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_leaves_running_only_by_a_settlement_and_a_final_state_only_by_redrive() {
        for state in State::ALL {
            for event in Event::ALL {
                let Ok(next) = transition(state, event) else {
                    continue;
                };
                if state.is_final() {
                    assert_eq!((state, event, next), (State::Dead, Event::Redrive, State::Pending));
                }
                if next == State::Running {
                    assert!(matches!(event, Event::Claim | Event::Reclaim), "{state} {event:?}");
                }
            }
        }
    }

    #[test]
    fn codes_and_names_lead_back() {
        for state in State::ALL {
            assert_eq!(State::from_code(state.code()), Some(state));
            assert_eq!(state.name().parse(), Ok(state));
        }
        assert_eq!(State::from_code(7), None);
        assert_eq!("gone".parse::<State>().unwrap_err().field, "state");
    }

    /// The guide's picture is the code's: `UPDATE_DOCS=1 cargo test` writes it anew.
    #[test]
    fn the_diagram_in_the_docs_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lifecycle.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once("```mermaid\n").expect("docs/lifecycle.md has a mermaid block");
        let (_, after) = rest.split_once("```").expect("the mermaid block ends");
        let current = format!("{before}```mermaid\n{}```{after}", diagram());
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &current).unwrap();
        }
        assert!(
            page == current,
            "docs/lifecycle.md has drifted: run UPDATE_DOCS=1 cargo test -p redrive-core"
        );
    }
}
