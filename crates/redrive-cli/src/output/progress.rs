//! Progress on standard error. Nothing is drawn unless standard error is a terminal.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const SPINNER_INTERVAL: Duration = Duration::from_millis(120);

/// A spinner with a message.
pub(crate) struct Spinner(Option<ProgressBar>);

impl Spinner {
    pub(crate) fn new() -> Self {
        Self(io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(SPINNER_INTERVAL);
            bar
        }))
    }

    pub(crate) fn set_message(&self, text: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(text.to_owned());
        }
    }

    /// Prints something while the spinner is hidden.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A bar that shows how much is done.
pub(crate) struct Bar(Option<ProgressBar>);

impl Bar {
    pub(crate) fn new(message: &'static str) -> Self {
        Self(io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg:>10} {wide_bar} {human_pos}/{human_len} {eta}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style).with_message(message)
        }))
    }

    /// Whether the bar is drawn.
    pub(crate) fn is_visible(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn set_message(&self, text: &'static str) {
        if let Some(bar) = &self.0 {
            bar.set_message(text);
        }
    }

    pub(crate) fn set(&self, done: u64, total: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(total.max(done));
            bar.set_position(done);
        }
    }

    /// Prints a line above the bar, or to standard error if there is no bar.
    pub(crate) fn print_line(&self, text: &str) {
        match &self.0 {
            Some(bar) => bar.println(text),
            None => super::note(text),
        }
    }

    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}
