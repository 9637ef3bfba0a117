//! How far long work is, on standard error and only on a terminal.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often a spinner turns.
const TURN_EVERY: Duration = Duration::from_millis(120);

/// Says what is waited for.
pub(crate) struct Spinner(Option<ProgressBar>);

impl Spinner {
    /// A spinner, where someone can see it.
    pub(crate) fn new() -> Self {
        Self(io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(TURN_EVERY);
            bar
        }))
    }

    /// What is waited for now.
    pub(crate) fn say(&self, text: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(text.to_owned());
        }
    }

    /// Prints something while the spinner is out of the way.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Takes it away.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.end();
    }
}

/// Says how much of something is done.
pub(crate) struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar, where someone can see it.
    pub(crate) fn new(what: &'static str) -> Self {
        Self(io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg:>10} {wide_bar} {human_pos}/{human_len} {eta}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style).with_message(what)
        }))
    }

    /// So much of so much.
    pub(crate) fn at(&self, done: u64, total: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(total.max(done));
            bar.set_position(done);
        }
    }

    /// Takes it away.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end();
    }
}
