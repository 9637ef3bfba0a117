//! The source of random numbers. The caller passes it in, so that a seed reproduces a run.

/// A source of uniformly distributed numbers.
pub trait RandomSource {
    /// The next number, uniform in `0.0..1.0`.
    fn unit(&mut self) -> f64;
}

impl<F: FnMut() -> f64> RandomSource for F {
    fn unit(&mut self) -> f64 {
        self()
    }
}
