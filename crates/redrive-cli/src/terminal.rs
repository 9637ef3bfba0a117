//! A terminal that is taken over for a while, and given back as it was however the command ends.

use std::io::{self, Read as _, Write as _};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The other screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// The screen as it was.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// A terminal that shows frames and gives keys.
pub(crate) struct Screen {
    /// Dropped after the screen was left.
    _keys: Option<unbuffered::Keys>,
    pressed: UnboundedReceiver<u8>,
}

impl Screen {
    /// Takes the terminal over.
    pub(crate) fn open() -> io::Result<Self> {
        let keys = unbuffered::Keys::take();
        let (press, pressed) = unbounded_channel();
        if keys.is_some() {
            // It ends with the process: a read cannot be called off.
            std::thread::spawn(move || {
                let mut key = [0];
                while io::stdin().read(&mut key).is_ok_and(|bytes| bytes > 0) && press.send(key[0]).is_ok() {}
            });
        }
        write(ENTER)?;
        Ok(Self { _keys: keys, pressed })
    }

    /// Shows a frame in place of the last one.
    pub(crate) fn draw(&self, frame: &str) -> io::Result<()> {
        let lines: String = frame.lines().map(|line| format!("{line}\x1b[K\r\n")).collect();
        write(&format!("\x1b[H{}\x1b[J", lines.trim_end_matches("\r\n")))
    }

    /// The next key; never comes where there is no keyboard.
    pub(crate) async fn key(&mut self) -> u8 {
        match self.pressed.recv().await {
            Some(key) => key,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = write(LEAVE);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Columns and lines of the terminal.
pub(crate) fn size() -> (usize, usize) {
    let size = terminal_size::terminal_size();
    size.map_or((80, 24), |(width, height)| (usize::from(width.0), usize::from(height.0)))
}

/// Keys as they are pressed, without waiting for the end of a line and without showing them.
#[cfg(unix)]
mod unbuffered {
    use std::io;

    use rustix::termios::{
        LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr,
    };

    /// No key stops the command in the background with the screen half taken over.
    const NONE: u8 = 0;

    /// The keyboard's settings from before.
    pub(super) struct Keys(Termios);

    impl Keys {
        /// Takes the keyboard, where there is one. Ctrl-C stays a signal.
        pub(super) fn take() -> Option<Self> {
            let stdin = io::stdin();
            let before = isatty(&stdin).then(|| tcgetattr(&stdin).ok()).flatten()?;
            let mut keys = before.clone();
            keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            keys.special_codes[SpecialCodeIndex::VSUSP] = NONE;
            tcsetattr(&stdin, OptionalActions::Now, &keys).ok()?;
            Some(Self(before))
        }
    }

    impl Drop for Keys {
        fn drop(&mut self) {
            // A terminal that is gone needs nothing back.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
        }
    }
}

/// Elsewhere Ctrl-C is the only key.
#[cfg(not(unix))]
mod unbuffered {
    pub(super) struct Keys;

    impl Keys {
        pub(super) fn take() -> Option<Self> {
            None
        }
    }
}
