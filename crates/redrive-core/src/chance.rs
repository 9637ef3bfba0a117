//! Where randomness comes from: the caller hands it in, so that a seed replays a run.

/// A source of uniform numbers.
pub trait Chance {
    /// The next number, uniform in `0.0..1.0`.
    fn unit(&mut self) -> f64;
}

impl<F: FnMut() -> f64> Chance for F {
    fn unit(&mut self) -> f64 {
        self()
    }
}
