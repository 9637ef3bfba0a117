//! One gate per origin: how many calls may be under way, and when to leave a struggling origin alone.
//!
//! A [`Gates`] registry holds them, in memory and for this node only. The rules of one gate are pure: the time and
//! [`redrive_core::Chance`] are arguments.
//!
//! - The limit starts at [`LIMIT_START`], grows while calls succeed and the limit is really used, and is halved when
//!   a window of calls mostly fails. At most one halving per window; calls begun before a halving do not count again.
//! - At the floor, after [`CLOSE_AFTER_FAILURES`] failures without an answer in between, the gate closes. One probe
//!   goes after [`PROBE_FIRST`], then after twice as long, up to [`PROBE_LONGEST`].
//! - After it opened again the limit starts at one and at most doubles in each [`RAMP_PERIOD`].
//! - A path that fails beside paths that work is that path's trouble: the origin counts as struggling only when most
//!   of its paths fail.

mod limit;
mod origin;
mod registry;
#[cfg(test)]
mod simulation;
mod waiting;
mod window;

use std::time::Duration;

pub use registry::{Gates, Permit};

/// The limit of an origin that nobody has called yet, unless the highest one is lower.
pub const LIMIT_START: u32 = 16;
/// The highest limit of an origin, unless configured.
pub const ORIGIN_CONCURRENCY: u32 = 64;
/// Failures without one answer in between that close a gate at its floor.
pub const CLOSE_AFTER_FAILURES: u32 = 20;
/// How long a gate is closed before its first probe.
pub const PROBE_FIRST: Duration = Duration::from_secs(1);
/// The longest time between two probes.
pub const PROBE_LONGEST: Duration = Duration::from_secs(60);
/// How long an origin may hold itself shut with one `Retry-After`: a bad header must not shut it for a year.
pub const HOLD_LONGEST: Duration = Duration::from_secs(60 * 60);
/// The time in which a limit at most doubles after its origin struggled.
pub const RAMP_PERIOD: Duration = Duration::from_secs(1);
/// Origins remembered; beyond, those that were unused for longest are forgotten.
pub const ORIGINS_MAX: usize = 10_000;

/// What a gate is told to keep to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRules {
    /// The highest number of calls under way to one origin; at least one.
    pub origin_concurrency: u32,
    /// How many origins are remembered.
    pub origins_max: usize,
}

impl Default for GateRules {
    /// [`ORIGIN_CONCURRENCY`] calls and [`ORIGINS_MAX`] origins.
    fn default() -> Self {
        Self { origin_concurrency: ORIGIN_CONCURRENCY, origins_max: ORIGINS_MAX }
    }
}

impl GateRules {
    /// With another highest limit per origin.
    pub fn with_origin_concurrency(mut self, calls: u32) -> Self {
        self.origin_concurrency = calls.max(1);
        self
    }
}

/// Whether a task comes for the first time or again after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Its first attempt.
    First,
    /// An attempt after a failed one.
    Retry,
}

/// What an attempt says about its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// It works.
    Success,
    /// It answers, though not with success: it is neither slowed down nor sped up.
    Alive,
    /// It struggles; it may ask to be left alone for a while.
    Struggle(Option<Duration>),
}

impl Signal {
    /// What an HTTP status says. `Retry-After` counts with a 429 or a 503 alone.
    pub fn of_status(status: u16, retry_after: Option<Duration>) -> Self {
        match status {
            200..=299 => Self::Success,
            429 | 503 => Self::Struggle(retry_after),
            408 | 500.. => Self::Struggle(None),
            0..=199 | 300..=407 | 409..=428 | 430..=499 => Self::Alive,
        }
    }

    /// What a gRPC code says: unknown, deadline exceeded, resource exhausted, internal, unavailable and data loss
    /// are what 5xx and 429 are in HTTP.
    pub fn of_grpc(code: u16, pushback: Option<Duration>) -> Self {
        match code {
            0 => Self::Success,
            8 | 14 => Self::Struggle(pushback),
            2 | 4 | 13 | 15 => Self::Struggle(None),
            1 | 3 | 5..=7 | 9..=12 | 16.. => Self::Alive,
        }
    }
}

/// Whether a call may go now.
#[derive(Debug)]
pub enum Admission {
    /// It may; give the permit back with what came of it.
    Go(Permit),
    /// It may not: come back later.
    Park {
        /// When to come back; chosen so that those who wait come back spread out.
        wait: Duration,
        /// Why.
        hold: Hold,
    },
}

/// Why a gate holds calls back, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The cause.
    pub kind: HoldKind,
    /// The time until it may end, from now.
    pub opens_in: Duration,
}

/// Why a gate holds calls back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldKind {
    /// The origin failed too often and is left alone.
    Closed,
    /// The origin asked to be left alone.
    RetryAfter,
    /// As many calls as it bears are under way.
    Full,
    /// One call is finding out whether it works again.
    Probing,
    /// First attempts are waiting, and retries have their half.
    RetriesYield,
}

/// Where a gate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OriginState {
    /// Calls go, up to the limit.
    Open,
    /// No calls go.
    Closed,
    /// One call goes, to find out whether the origin works again.
    Probing,
    /// The origin asked to be left alone.
    Held,
}

/// What is known of one origin. Times are spans from now, since a gate knows no wall clock.
#[derive(Debug, Clone, PartialEq)]
pub struct OriginStatus {
    /// The origin.
    pub origin: String,
    /// Where its gate stands.
    pub state: OriginState,
    /// How many calls may be under way.
    pub limit: u32,
    /// How many are.
    pub in_flight: u32,
    /// Tasks that were parked and are expected back, as an estimate.
    pub waiting: u64,
    /// Answers in the current and the last window.
    pub answered: u32,
    /// Failures in the current and the last window.
    pub failed: u32,
    /// The smoothed duration of recent calls, if there were any.
    pub latency: Option<Duration>,
    /// How long it has been closed, if it is.
    pub closed_for: Option<Duration>,
    /// When calls may go again, if none may now.
    pub opens_in: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_how_the_origin_is() {
        let wait = Some(Duration::from_secs(5));
        for (status, signal) in [
            (200, Signal::Success),
            (204, Signal::Success),
            (302, Signal::Alive),
            (404, Signal::Alive),
            (408, Signal::Struggle(None)),
            (425, Signal::Alive),
            (429, Signal::Struggle(wait)),
            (500, Signal::Struggle(None)),
            (503, Signal::Struggle(wait)),
            (504, Signal::Struggle(None)),
        ] {
            assert_eq!(Signal::of_status(status, wait), signal, "{status}");
        }
        for (code, signal) in [
            (0, Signal::Success),
            (3, Signal::Alive),
            (4, Signal::Struggle(None)),
            (14, Signal::Struggle(wait)),
            (16, Signal::Alive),
        ] {
            assert_eq!(Signal::of_grpc(code, wait), signal, "{code}");
        }
    }
}
