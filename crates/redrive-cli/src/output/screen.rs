//! The alternate screen of the terminal. The terminal is restored however the command ends.

use std::io::{self, Write as _};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyModifiers};
use crossterm::style::Print;
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue};
use futures_util::StreamExt as _;

/// The alternate screen, with the keyboard in raw mode: keys arrive one by one and are not echoed, and Ctrl-C is a key
/// instead of a signal.
pub(crate) struct Screen {
    keys: EventStream,
}

impl Screen {
    pub(crate) fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        // From here on, dropping the value restores the terminal.
        let screen = Self { keys: EventStream::new() };
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Draws the lines of a page over the previous page.
    pub(crate) fn draw(&self, page: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        for (row, line) in (0..).zip(page.lines()) {
            queue!(out, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        out.flush()
    }

    /// Waits for the user to press q or Ctrl-C. Other keys and events are ignored.
    pub(crate) async fn quit_key(&mut self) {
        loop {
            match self.keys.next().await {
                Some(Ok(Event::Key(key))) if is_quit(key) => return,
                Some(Ok(_)) => {}
                // Without a keyboard, only a signal ends the command.
                Some(Err(_)) | None => std::future::pending().await,
            }
        }
    }
}

fn is_quit(key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        KeyCode::Char('q' | 'Q') => true,
        _ => false,
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// The width and height of the terminal; 80 by 24 if it does not say.
pub(crate) fn size() -> (usize, usize) {
    let known = terminal::size().ok().filter(|(width, height)| *width > 0 && *height > 0);
    let (width, height) = known.unwrap_or((80, 24));
    (width.into(), height.into())
}
