//! `redrive dead export`: a stream of documents that goes on where it was cut off.

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use redrive::shutdown_signal;
use serde::{Deserialize, Serialize};

use super::letters;
use crate::call::Service;
use crate::exit::Exit;
use crate::filter::DeadLetters;
use crate::list::{Pages, Paging};
use crate::print;
use crate::progress::Spinner;

/// What to write, and where.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    filter: DeadLetters,
    /// A file to write to, instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Go on at this place, as an export to standard output names it when it is cut off
    #[arg(long, value_name = "CURSOR", conflicts_with = "output")]
    cursor: Option<String>,
}

pub(super) async fn run(service: &Service, arguments: &Arguments) -> anyhow::Result<Exit> {
    let (path, query) = arguments.filter.listed();
    let mut sink = Sink::open(arguments, &query)?;
    let paging = Paging::all().from(sink.cursor());
    let mut pages = Pages::new(service, &[path], query, &paging);
    let spinner = Spinner::new();
    let mut written = 0;
    let outcome = tokio::select! {
        outcome = copy(&mut pages, &mut sink, &spinner, &mut written) => outcome,
        () = shutdown_signal() => Err(Exit::Interrupted.because("interrupted")),
    };
    spinner.end();
    match outcome {
        Ok(()) => {
            sink.finish()?;
            let verb = if written == 1 { "was" } else { "were" };
            print::note(&format!("{} {verb} written", letters(written)));
            Ok(Exit::Done)
        }
        Err(error) => Err(error.context(sink.cut_off(written))),
    }
}

async fn copy(
    pages: &mut Pages<'_>,
    sink: &mut Sink,
    spinner: &Spinner,
    written: &mut u64,
) -> anyhow::Result<()> {
    while let Some(page) = pages.read().await? {
        let lines: String = page.items.iter().map(|item| print::one_line(item.get())).collect();
        spinner.aside(|| sink.write(&lines, page.next_cursor.as_deref()))?;
        *written += page.items.len() as u64;
        spinner.say(&letters(*written));
    }
    Ok(())
}

/// Where an export goes, and how far it is.
enum Sink {
    Stdout { cursor: Option<String> },
    File { file: File, path: PathBuf, progress: Progress },
}

/// Kept beside the file until the export is complete.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    /// What is exported: another export must not go on in this one's file.
    query: Vec<(String, String)>,
    /// Where the next page begins.
    cursor: Option<String>,
    /// Bytes of the file up to there.
    bytes: u64,
}

impl Sink {
    fn open(arguments: &Arguments, query: &[(String, String)]) -> anyhow::Result<Self> {
        let Some(path) = &arguments.output else {
            return Ok(Self::Stdout { cursor: arguments.cursor.clone() });
        };
        let progress = match begun(path)? {
            Some(progress) if progress.query == query => progress,
            Some(_) => anyhow::bail!(
                "{} holds the beginning of another export; finish that one, or remove {}",
                path.display(),
                beside(path).display()
            ),
            None if path.exists() => {
                let text = format!("{} exists already; choose another file, or remove it", path.display());
                return Err(Exit::Refused.because(text));
            }
            None => Progress { query: query.to_vec(), ..Progress::default() },
        };
        let unwritable = || format!("{} cannot be written", path.display());
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(unwritable)?;
        // What was written after the last complete page is written again.
        file.set_len(progress.bytes).with_context(unwritable)?;
        file.seek(SeekFrom::End(0)).with_context(unwritable)?;
        if progress.bytes > 0 {
            print::note(&format!("goes on after {} bytes", progress.bytes));
        }
        let sink = Self::File { file, path: path.clone(), progress };
        sink.save()?;
        Ok(sink)
    }

    fn cursor(&self) -> Option<String> {
        match self {
            Self::Stdout { cursor } => cursor.clone(),
            Self::File { progress, .. } => progress.cursor.clone(),
        }
    }

    fn write(&mut self, lines: &str, next: Option<&str>) -> anyhow::Result<()> {
        match self {
            Self::Stdout { cursor } => {
                print::text(lines)?;
                *cursor = next.map(str::to_owned);
                Ok(())
            }
            Self::File { file, path, progress } => {
                file.write_all(lines.as_bytes())
                    .and_then(|()| file.sync_data())
                    .with_context(|| format!("{} cannot be written", path.display()))?;
                progress.bytes += lines.len() as u64;
                progress.cursor = next.map(str::to_owned);
                self.save()
            }
        }
    }

    /// Replaces the progress as a whole, so that a crash leaves the old one or the new one.
    fn save(&self) -> anyhow::Result<()> {
        let Self::File { path, progress, .. } = self else { return Ok(()) };
        let (to, fresh) = (beside(path), beside(&beside(path)));
        let written = std::fs::write(&fresh, serde_json::to_vec(progress)?);
        let replaced = written.and_then(|()| std::fs::rename(&fresh, &to));
        replaced.with_context(|| format!("{} cannot be written", to.display()))
    }

    fn finish(&self) -> anyhow::Result<()> {
        let Self::File { path, .. } = self else { return Ok(()) };
        let progress = beside(path);
        std::fs::remove_file(&progress).with_context(|| format!("{} cannot be removed", progress.display()))
    }

    fn cut_off(&self, written: u64) -> String {
        let go_on = match self {
            Self::File { .. } => "run the same command again and it goes on".to_owned(),
            Self::Stdout { cursor: Some(cursor) } => format!("--cursor {cursor} goes on from there"),
            Self::Stdout { cursor: None } => "run it again".to_owned(),
        };
        format!("the export was cut off after {}; {go_on}", letters(written))
    }
}

fn begun(path: &Path) -> anyhow::Result<Option<Progress>> {
    let beside = beside(path);
    match std::fs::read(&beside) {
        Ok(json) => {
            let wrong = || format!("{} is damaged; remove it and {}", beside.display(), path.display());
            serde_json::from_slice(&json).map(Some).with_context(wrong)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", beside.display())),
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}
