//! One gate per origin. It limits concurrent calls, and blocks calls while the origin fails.
//!
//! [`Gates`] holds the gates of this node, in memory. The rules of one gate are pure: time and random numbers
//! ([`redrive_core::RandomSource`]) are arguments.
//!
//! - The limit starts at [`LIMIT_START`]. It grows while calls succeed and the limit is reached, and is halved when most calls of a
//!   window fail. It is halved at most once per window; calls that started before a halving do not count again.
//! - At a limit of one call, after [`BLOCK_AFTER_FAILURES`] failures without an answer in between, the gate blocks. It sends a probe
//!   after [`PROBE_FIRST`], then after twice that time, and so on up to [`PROBE_LONGEST`].
//! - When a probe succeeds, the limit starts at one call and at most doubles in each [`RAMP_PERIOD`].
//! - If one path fails while others work, the origin is fine: it counts as struggling only when most of its paths fail.

mod expected_returns;
mod limit;
mod origin;
mod registry;
#[cfg(test)]
mod simulation;
mod window;

use std::time::Duration;

pub use registry::{Gates, Permit};

/// The limit of an origin before its first call, unless the highest limit is lower.
pub const LIMIT_START: u32 = 16;
/// The highest limit of an origin unless configured otherwise.
pub const ORIGIN_CONCURRENCY: u32 = 64;
/// The number of failures, without an answer in between, after which a gate at its lowest limit blocks.
pub const BLOCK_AFTER_FAILURES: u32 = 20;
/// The time from blocking to the first probe.
pub const PROBE_FIRST: Duration = Duration::from_secs(1);
/// The longest time between two probes.
pub const PROBE_LONGEST: Duration = Duration::from_secs(60);
/// The longest hold by one `Retry-After`: a wrong header must not stop calls for a year.
pub const HOLD_LONGEST: Duration = Duration::from_secs(60 * 60);
/// The time in which a limit at most doubles after its origin has struggled.
pub const RAMP_PERIOD: Duration = Duration::from_secs(1);
/// The most origins in memory. Beyond it, the least recently used ones are dropped.
pub const ORIGINS_MAX: usize = 10_000;

/// The settings of gates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRules {
    /// The highest number of concurrent calls to one origin; at least one.
    pub origin_concurrency: u32,
    /// The most origins in memory.
    pub origins_max: usize,
}

impl Default for GateRules {
    /// [`ORIGIN_CONCURRENCY`] calls and [`ORIGINS_MAX`] origins.
    fn default() -> Self {
        Self { origin_concurrency: ORIGIN_CONCURRENCY, origins_max: ORIGINS_MAX }
    }
}

impl GateRules {
    /// With this highest limit per origin.
    pub fn with_origin_concurrency(mut self, calls: u32) -> Self {
        self.origin_concurrency = calls.max(1);
        self
    }
}

/// Whether an attempt is the first one of its task or a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptKind {
    /// The first attempt of its task.
    First,
    /// An attempt after a failed one.
    Retry,
}

/// How an origin behaved in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginHealth {
    /// The call succeeded.
    Working,
    /// The origin answered, but not with success. Its limit neither grows nor shrinks.
    Answering,
    /// The origin failed or is overloaded. It may ask for a pause of this length with `Retry-After`.
    Struggling(Option<Duration>),
}

impl OriginHealth {
    /// Classifies an HTTP status. `Retry-After` is honoured only with 429 and 503.
    pub fn of_status(status: u16, retry_after: Option<Duration>) -> Self {
        match status {
            200..=299 => Self::Working,
            429 | 503 => Self::Struggling(retry_after),
            408 | 500.. => Self::Struggling(None),
            0..=199 | 300..=407 | 409..=428 | 430..=499 => Self::Answering,
        }
    }

    /// Classifies a gRPC code. Unknown, deadline exceeded, resource exhausted, internal, unavailable and data loss
    /// correspond to 5xx and 429 in HTTP.
    pub fn of_grpc(code: u16, pushback: Option<Duration>) -> Self {
        match code {
            0 => Self::Working,
            8 | 14 => Self::Struggling(pushback),
            2 | 4 | 13 | 15 => Self::Struggling(None),
            1 | 3 | 5..=7 | 9..=12 | 16.. => Self::Answering,
        }
    }
}

/// Whether a call may be sent now.
#[derive(Debug)]
pub enum EnterResult {
    /// The call may be sent. The caller reports its result with the permit.
    Admitted(Permit),
    /// The call may not be sent now.
    Held {
        /// When the task should try again, from now. Waits are spread, so that held tasks do not return all at once.
        wait: Duration,
        /// Why the call is held.
        hold: Hold,
    },
}

/// Why a gate holds calls back, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The cause.
    pub kind: HoldKind,
    /// The earliest time at which the hold may end, from now.
    pub ends_in: Duration,
}

/// Why a gate holds calls back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldKind {
    /// The origin failed too often, and the gate blocks calls.
    Blocked,
    /// The origin asked for a pause, with `Retry-After`.
    RetryAfter,
    /// The number of calls in progress has reached the limit.
    Full,
    /// A probe is in progress.
    Probing,
    /// First attempts wait, and retries already use their half of the limit.
    RetriesYield,
}

/// The state of an origin's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OriginState {
    /// Calls go through, up to the limit.
    Passing,
    /// The origin asked for a pause, with `Retry-After`.
    Held,
    /// No calls go through, because the origin failed too often.
    Blocked,
    /// One call goes through, to test whether the origin works again.
    Probing,
}

/// The current state of one origin. Times are spans from now, since a gate knows no wall clock.
#[derive(Debug, Clone, PartialEq)]
pub struct OriginStatus {
    /// The origin.
    pub origin: String,
    /// The state of its gate.
    pub state: OriginState,
    /// How many calls may run at once.
    pub limit: u32,
    /// How many calls run now.
    pub in_flight: u32,
    /// An estimate of the number of held tasks that will come back.
    pub waiting: u64,
    /// Answers in the current and the last window.
    pub answered: u32,
    /// Failures in the current and the last window.
    pub failed: u32,
    /// The smoothed duration of recent calls, if there were any.
    pub latency: Option<Duration>,
    /// How long the gate has been blocked, if it is blocked or probing.
    pub blocked_for: Option<Duration>,
    /// When the next call may be sent, if none may be sent now.
    pub next_call_in: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_classified_by_its_status() {
        let wait = Some(Duration::from_secs(5));
        for (status, health) in [
            (200, OriginHealth::Working),
            (204, OriginHealth::Working),
            (302, OriginHealth::Answering),
            (404, OriginHealth::Answering),
            (408, OriginHealth::Struggling(None)),
            (425, OriginHealth::Answering),
            (429, OriginHealth::Struggling(wait)),
            (500, OriginHealth::Struggling(None)),
            (503, OriginHealth::Struggling(wait)),
            (504, OriginHealth::Struggling(None)),
        ] {
            assert_eq!(OriginHealth::of_status(status, wait), health, "{status}");
        }
        for (code, health) in [
            (0, OriginHealth::Working),
            (3, OriginHealth::Answering),
            (4, OriginHealth::Struggling(None)),
            (14, OriginHealth::Struggling(wait)),
            (16, OriginHealth::Answering),
        ] {
            assert_eq!(OriginHealth::of_grpc(code, wait), health, "{code}");
        }
    }
}
