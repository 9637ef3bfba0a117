//! The state machine of jobs: which event leads from which state to which. It exists only here.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum State {
    /// Due at `next_run_at`. No attempt of this run has failed since it last became pending.
    Pending = 0,
    /// Due at `next_run_at`, after a failed attempt.
    Retrying = 1,
    /// Leased by a worker.
    Running = 2,
    /// Waits for a signal, its children, a free slot or the end of a pause.
    Waiting = 3,
    /// Ended with success.
    Succeeded = 4,
    /// Failed for good. An operator can redrive or discard it.
    Dead = 5,
    /// Ended because someone cancelled it.
    Cancelled = 6,
}

/// An event in the life of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A worker takes the lease.
    Claim,
    /// The lease ran out, and another worker takes it over.
    Reclaim,
    /// The attempt succeeded.
    Complete,
    /// The attempt failed and another one is planned.
    Retry,
    /// The handler asks to run again later.
    Snooze,
    /// A gate holds the job back until later.
    Hold,
    /// The worker hands the lease back.
    Release,
    /// The handler waits for a signal or its children.
    Wait,
    /// The wait is over.
    Resume,
    /// An operator pauses the job.
    Pause,
    /// The attempt failed for good.
    DeadLetter,
    /// Someone cancels the job.
    Cancel,
    /// An operator gives a dead job a new run.
    Redrive,
}

/// The state that follows `state` when `event` happens.
pub fn transition(state: State, event: Event) -> Result<State, IllegalTransition> {
    use Event::{
        Cancel, Claim, Complete, DeadLetter, Hold, Pause, Reclaim, Redrive, Release, Resume, Retry, Snooze,
        Wait,
    };
    use State::{Cancelled, Dead, Pending, Retrying, Running, Succeeded, Waiting};
    match (state, event) {
        (Pending | Retrying, Claim) | (Running, Reclaim) => Ok(Running),
        (Running, Complete) => Ok(Succeeded),
        (Running, Retry) => Ok(Retrying),
        (Running, Snooze | Hold | Release) | (Waiting, Resume) | (Dead, Redrive) => Ok(Pending),
        (Running, Wait) | (Pending | Retrying, Pause) => Ok(Waiting),
        (Running, DeadLetter) => Ok(Dead),
        (Pending | Retrying | Waiting | Running, Cancel) => Ok(Cancelled),
        (
            Pending | Retrying,
            Reclaim | Complete | Retry | Snooze | Hold | Release | Wait | Resume | DeadLetter | Redrive,
        )
        | (Running, Claim | Resume | Pause | Redrive)
        | (
            Waiting,
            Claim | Reclaim | Complete | Retry | Snooze | Hold | Release | Wait | Pause | DeadLetter
            | Redrive,
        )
        | (Succeeded | Cancelled, _)
        | (
            Dead,
            Claim | Reclaim | Complete | Retry | Snooze | Hold | Release | Wait | Resume | Pause | DeadLetter
            | Cancel,
        ) => Err(IllegalTransition { state, event }),
    }
}

/// An event that is not allowed in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {state} cannot {event:?}")]
pub struct IllegalTransition {
    /// The state of the job.
    pub state: State,
    /// The event.
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

    /// Whether a claim may take the job once it is due.
    pub fn is_claimable(self) -> bool {
        matches!(self, Self::Pending | Self::Retrying)
    }

    /// Whether the job has ended. Its retention starts then.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Dead | Self::Cancelled)
    }

    /// The number that stores write. It never changes its meaning.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The state with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The name in the API, the command line and the console.
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
        Self::Hold,
        Self::Release,
        Self::Wait,
        Self::Resume,
        Self::Pause,
        Self::DeadLetter,
        Self::Cancel,
        Self::Redrive,
    ];
}

/// The state machine as a Mermaid diagram, with one arrow for each allowed transition. `docs/lifecycle.md` contains it.
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
    /// The label of an arrow. A job leaves `running` only by a settlement under its lease.
    fn label(self, from: State) -> String {
        let settles = from == State::Running && self != Self::Reclaim;
        if settles { format!("settle({self:?})") } else { format!("{self:?}").to_lowercase() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_enters_running_only_by_a_claim_and_leaves_a_final_state_only_by_a_redrive() {
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
    fn codes_and_names_convert_back_to_their_state() {
        for state in State::ALL {
            assert_eq!(State::from_code(state.code()), Some(state));
            assert_eq!(state.name().parse(), Ok(state));
        }
        assert_eq!(State::from_code(7), None);
        assert_eq!("gone".parse::<State>().unwrap_err().field, "state");
    }

    /// `UPDATE_DOCS=1 cargo test` writes the current diagram into the page.
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
            "docs/lifecycle.md is out of date: run UPDATE_DOCS=1 cargo test -p redrive-core"
        );
    }
}
