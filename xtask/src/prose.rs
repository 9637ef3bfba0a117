//! Finds phrases that readers have to read twice, in comments, messages, documents and pages.

use std::path::Path;

use anyhow::Context as _;
use regex::Regex;

use crate::run::root;
use crate::tidy::walk;

/// Phrases to avoid, as case-insensitive regular expressions, each with a better wording.
const PHRASES: [(&str, &str); 35] = [
    (r"\bwhat (came|comes|became|becomes) of\b", "write \"the result of\""),
    (
        r"\bat most so many\b|\bso many (jobs|tasks|attempts|times|items|of|at|a|in|per|ms|s)\b",
        "name the number",
    ),
    (r"\bwhose turn\b|\b(its|their) turn (has|is|comes)\b", "say who waits for which slot"),
    (r"\b(who|whoever) hears\b|\bhears? of (it|them|this)\b", "say who is notified"),
    (r"\bgo(es)? by (its|their|the|what|that|this|a|it)\b", "write \"uses\" or \"follows\""),
    (r"\b(is|are|was|were) told\b|\btells? (it|them|whoever)\b", "say who notifies whom"),
    (r"\b(is|are|too|very|as|while they are) dear\b", "write \"expensive\""),
    (r"\bas is\b", "write \"unchanged\""),
    (r"\bof late\b", "write \"recently\""),
    (r"\bfor all that match\b", "add the noun: \"for all jobs that match\""),
    (
        r"\bdrives? (it|them|a job|jobs|a dead job|dead jobs) again\b|\b(driven|drive) again\b",
        "write \"redrive\"",
    ),
    (r"\bbeyond help\b", "say what a person can do"),
    (r"\bgiven up\b", "write \"dead\" or \"failed\""),
    (r"\bparked?\b", "write \"held\" (by a gate) or \"paused\" (by an operator)"),
    (r"\bin the making\b", "say when it is complete"),
    (
        r"\b(it|that|this|}) is no (number|span|time|name|state|uuid|address|policy|url|port)\b",
        "write \"is not a …\"",
    ),
    (r"\bby itself alone\b|\bby themselves alone\b", "write \"alone\""),
    (r"\bwhat is wrong now\b", "write \"current problems\""),
    (r"\bbegins? so\b|\bstarts? so\b", "write \"starts with this text\""),
    (r"\bcalled so\b", "write \"with this name\""),
    (r"\bworth another try\b", "write \"can be retried\""),
    (r"\bfor want of\b", "write \"because … is missing\""),
    (r"\bwhoever\b", "name the actor: \"the worker that\", \"the caller that\""),
    (
        r"\b(to|can|cannot|must|may|would|should|it|they) (bear|mend)\b|\bmended\b",
        "write \"tolerate\" or \"repair\"",
    ),
    (r"\bby way of\b", "write \"through\" or \"with\""),
    (r"\bstands? still\b", "write \"stops\" or \"does not advance\""),
    (r"\b(is|are|was|were|be) (left|let) alone\b", "write \"is not called\" or \"is not changed\""),
    (r"\bunder way\b", "write \"running\" (a job) or \"in progress\" (a call)"),
    (r"\b(taken|takes|take) for dead\b", "write \"considered dead\""),
    (r"\bin good order\b", "write \"cleanly\""),
    (r"\btroubles?\b", "write \"problem\""),
    (r"\b(open|closed) gate\b|\bgate (is|was|stays) (open|closed)\b", "write \"passing\" or \"blocked\""),
    (r"\bgoes on (after|when|where|with|behind|until|from|there)\b", "write \"continues\" or \"resumes\""),
    (r"\bhalf within\b|\bin 100 within\b", "write p50, p99"),
    (r"\bset aside\b", "write \"postponed\", \"skipped\" or \"waiting\""),
];

/// Where prose is checked.
const FOLDERS: [&str; 6] = ["crates", "apps", "bench", "docs", "deploy", "xtask"];
const PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"];
/// Files that quote the phrases.
const EXEMPT: [&str; 2] = ["docs/glossary.md", "xtask/src/prose.rs"];

pub(crate) fn check(problems: &mut Vec<String>) -> anyhow::Result<()> {
    let phrases = compile()?;
    let mut visit = |path: &Path| -> anyhow::Result<()> {
        let shown = path.strip_prefix(root()).unwrap_or(path).to_string_lossy().into_owned();
        let Some(format) = Format::of(path).filter(|_| !EXEMPT.contains(&shown.as_str())) else {
            return Ok(());
        };
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        for (index, line) in text.lines().enumerate() {
            for (found, advice) in find(&phrases, &format.prose(line)) {
                problems.push(format!("{shown}:{}: \"{found}\": {advice}", index + 1));
            }
        }
        Ok(())
    };
    for page in PAGES {
        visit(&root().join(page))?;
    }
    for folder in FOLDERS {
        walk(&root().join(folder), &mut visit)?;
    }
    Ok(())
}

fn compile() -> anyhow::Result<Vec<(Regex, &'static str)>> {
    let compile =
        |(phrase, advice): &(&str, &'static str)| Ok((Regex::new(&format!("(?i){phrase}"))?, *advice));
    PHRASES.iter().map(compile).collect()
}

fn find<'a>(phrases: &'a [(Regex, &'static str)], prose: &str) -> Vec<(String, &'a str)> {
    let found = |(phrase, advice): &'a (Regex, &'static str)| {
        phrase.find(prose).map(|found| (found.as_str().to_owned(), *advice))
    };
    phrases.iter().filter_map(found).collect()
}

/// Decides which parts of a file are prose.
#[derive(Clone, Copy)]
enum Format {
    /// Comments and string literals are prose.
    Rust,
    /// Comments are prose.
    Sql,
    /// Everything is prose.
    Page,
}

impl Format {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "rs" => Some(Self::Rust),
            "sql" | "lua" => Some(Self::Sql),
            "md" | "html" | "txt" => Some(Self::Page),
            _ => None,
        }
    }

    /// The prose of a line.
    fn prose(self, line: &str) -> String {
        match self {
            Self::Page => line.to_owned(),
            Self::Sql => line.split_once("--").map_or(String::new(), |(_, comment)| comment.to_owned()),
            Self::Rust => {
                let (code, comment) = line.split_once("//").unwrap_or((line, ""));
                let strings = code.split('"').skip(1).step_by(2);
                strings.chain([comment]).collect::<Vec<_>>().join(" | ")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_in_comments_and_strings_but_not_in_code() {
        let phrases = compile().unwrap();
        let found = |format: Format, line: &str| !find(&phrases, &format.prose(line)).is_empty();
        assert!(found(Format::Rust, "/// What came of a cancel."));
        assert!(found(Format::Rust, r#"    bail!("it was given up after 3 attempts");"#));
        assert!(!found(Format::Rust, "let parked = driver.park();"));
        assert!(found(Format::Sql, "-- At most so many jobs."));
        assert!(!found(Format::Sql, "SELECT parked FROM cars"));
        assert!(found(Format::Page, "Tasks are parked."));
        assert!(!found(Format::Page, "Tasks are held by the gate."));
    }
}
