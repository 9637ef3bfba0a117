//! `redrive dead export`: writes dead letters as JSON, and continues an interrupted export.

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use redrive::shutdown_signal;
use serde::{Deserialize, Serialize};

use super::{dead_letters, list_of};
use crate::client::Client;
use crate::exit::ExitStatus;
use crate::filter::FilterOptions;
use crate::output;
use crate::output::list::{Pages, Paging};
use crate::output::progress::Spinner;

#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    filter: FilterOptions,
    /// The file to write to; the default is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Continue at this cursor, which an interrupted export to standard output prints
    #[arg(long, value_name = "CURSOR", conflicts_with = "output")]
    cursor: Option<String>,
}

pub(super) async fn run(client: &Client, arguments: &Arguments) -> anyhow::Result<ExitStatus> {
    let (path, query) = list_of(&arguments.filter);
    let mut target = ExportTarget::open(arguments, &query)?;
    let paging = Paging::all().starting_at(target.cursor());
    let mut pages = Pages::new(client, &[path], query, &paging);
    let spinner = Spinner::new();
    let mut written = 0;
    let outcome = tokio::select! {
        outcome = copy(&mut pages, &mut target, &spinner, &mut written) => outcome,
        () = shutdown_signal() => Err(ExitStatus::Interrupted.error("interrupted")),
    };
    spinner.clear();
    match outcome {
        Ok(()) => {
            target.finish()?;
            output::note(&format!("wrote {}", dead_letters(written)));
            Ok(ExitStatus::Success)
        }
        Err(error) => Err(error.context(target.interrupted_text(written))),
    }
}

async fn copy(
    pages: &mut Pages<'_>,
    target: &mut ExportTarget,
    spinner: &Spinner,
    written: &mut u64,
) -> anyhow::Result<()> {
    while let Some(page) = pages.read().await? {
        let lines: String = page.items.iter().map(|item| output::one_line(item.get())).collect();
        spinner.suspend(|| target.write(&lines, page.next_cursor.as_deref()))?;
        *written += page.items.len() as u64;
        spinner.set_message(&dead_letters(*written));
    }
    Ok(())
}

/// Where an export is written to, and its progress.
enum ExportTarget {
    Stdout { cursor: Option<String> },
    File { file: File, path: PathBuf, progress: Progress },
}

/// The progress of an export, stored in a file with the suffix `.part` until the export is complete.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    /// The filter of the export. An export with another filter must not continue in this file.
    query: Vec<(String, String)>,
    /// The cursor of the next page.
    cursor: Option<String>,
    /// The length of the file up to that cursor.
    bytes: u64,
}

impl ExportTarget {
    fn open(arguments: &Arguments, query: &[(String, String)]) -> anyhow::Result<Self> {
        let Some(path) = &arguments.output else {
            return Ok(Self::Stdout { cursor: arguments.cursor.clone() });
        };
        let progress = match read_progress(path)? {
            Some(progress) if progress.query == query => progress,
            Some(_) => anyhow::bail!(
                "{} belongs to an unfinished export with another filter: finish that export, or remove {}",
                path.display(),
                part_file(path).display()
            ),
            None if path.exists() => {
                let text = format!("{} exists already: choose another file, or remove it", path.display());
                return Err(ExitStatus::Rejected.error(text));
            }
            None => Progress { query: query.to_vec(), ..Progress::default() },
        };
        let unwritable = || format!("cannot write {}", path.display());
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .with_context(unwritable)?;
        // Drops what was written after the last complete page.
        file.set_len(progress.bytes).with_context(unwritable)?;
        file.seek(SeekFrom::End(0)).with_context(unwritable)?;
        if progress.bytes > 0 {
            output::note(&format!("continues after {} bytes", progress.bytes));
        }
        let target = Self::File { file, path: path.clone(), progress };
        target.save()?;
        Ok(target)
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
                output::text(lines)?;
                *cursor = next.map(str::to_owned);
                Ok(())
            }
            Self::File { file, path, progress } => {
                file.write_all(lines.as_bytes())
                    .and_then(|()| file.sync_data())
                    .with_context(|| format!("cannot write {}", path.display()))?;
                progress.bytes += lines.len() as u64;
                progress.cursor = next.map(str::to_owned);
                self.save()
            }
        }
    }

    /// Replaces the progress file as a whole, so that a crash leaves either the old or the new one.
    fn save(&self) -> anyhow::Result<()> {
        let Self::File { path, progress, .. } = self else { return Ok(()) };
        let (to, fresh) = (part_file(path), part_file(&part_file(path)));
        let written = std::fs::write(&fresh, serde_json::to_vec(progress)?);
        let replaced = written.and_then(|()| std::fs::rename(&fresh, &to));
        replaced.with_context(|| format!("cannot write {}", to.display()))
    }

    fn finish(&self) -> anyhow::Result<()> {
        let Self::File { path, .. } = self else { return Ok(()) };
        let progress = part_file(path);
        std::fs::remove_file(&progress).with_context(|| format!("cannot remove {}", progress.display()))
    }

    fn interrupted_text(&self, written: u64) -> String {
        let remedy = match self {
            Self::File { .. } => "run the same command again to continue".to_owned(),
            Self::Stdout { cursor: Some(cursor) } => format!("add --cursor {cursor} to continue"),
            Self::Stdout { cursor: None } => "run it again".to_owned(),
        };
        format!("the export was interrupted after {}: {remedy}", dead_letters(written))
    }
}

fn read_progress(path: &Path) -> anyhow::Result<Option<Progress>> {
    let part_file = part_file(path);
    match std::fs::read(&part_file) {
        Ok(json) => {
            let wrong = || format!("{} is damaged: remove it and {}", part_file.display(), path.display());
            serde_json::from_slice(&json).map(Some).with_context(wrong)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", part_file.display())),
    }
}

fn part_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}
