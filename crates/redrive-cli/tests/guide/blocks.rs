//! The fenced blocks of a page, and what each has to be held against.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use yaml_rust2::YamlLoader;

use crate::pages::{Page, pages, root};

/// A fenced block. Its info string is a language, then words: `output`, `about`, `fresh`, `file=PATH`, `write=NAME`,
/// `not-run="reason"`.
pub(crate) struct Block {
    /// Where it begins, for people.
    pub(crate) place: String,
    pub(crate) language: String,
    words: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Block {
    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        self.words.iter().find(|(word, _)| word == name).map(|(_, value)| value.as_str())
    }

    /// Whether a page is performed with it: commands and programs, and files for them.
    pub(crate) fn is_performed(&self) -> bool {
        let program = ["sh", "python", "js", "sql"].contains(&self.language.as_str());
        self.word("not-run").is_none() && (program || self.word("write").is_some())
    }
}

pub(crate) fn blocks(page: &Page) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (event, range) in Parser::new_ext(&page.text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let line = page.text[..range.start].lines().count() + 1;
                let info =
                    if let CodeBlockKind::Fenced(info) = kind { info.to_string() } else { String::new() };
                open = Some(read_info(&info, format!("{}:{line}", page.path)));
            }
            Event::Text(text) => {
                if let Some(block) = &mut open {
                    block.text.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => blocks.extend(open.take()),
            _ => {}
        }
    }
    blocks
}

fn read_info(info: &str, place: String) -> Block {
    let end = info.find([' ', ',']).unwrap_or(info.len());
    let (language, mut rest) = (info[..end].to_owned(), &info[end..]);
    let mut words = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if rest.is_empty() {
            return Block { place, language, words, text: String::new() };
        }
        let name_end = rest.find(['=', ' ', ',']).unwrap_or(rest.len());
        let name = rest[..name_end].to_owned();
        rest = &rest[name_end..];
        let value = if let Some(quoted) = rest.strip_prefix("=\"") {
            let (value, after) = quoted.split_once('"').expect("a quote ends");
            rest = after;
            value
        } else if let Some(bare) = rest.strip_prefix('=') {
            let end = bare.find([' ', ',']).unwrap_or(bare.len());
            rest = &bare[end..];
            &bare[..end]
        } else {
            ""
        };
        words.push((name, value.to_owned()));
    }
}

/// Blocks that cannot be run here may stay as few as they are.
const NOT_RUN_MAX: usize = 8;

#[test]
fn every_block_is_run_or_held_against_something() {
    let mut problems = Vec::new();
    let mut not_run = Vec::new();
    for block in pages().iter().flat_map(blocks) {
        if let Some(reason) = block.word("not-run") {
            assert!(reason.len() > 5, "{}: say why it is not run", block.place);
            not_run.push(format!("{}: {reason}", block.place));
        } else if let Err(problem) = hold(&block) {
            problems.push(format!("{}: {problem}", block.place));
        }
        let known = ["output", "about", "fresh", "file", "write", "not-run"];
        if let Some((word, _)) = block.words.iter().find(|(word, _)| !known.contains(&word.as_str())) {
            problems.push(format!("{}: {word:?} is no word of an info string here", block.place));
        }
    }
    println!("not run here:\n{}", not_run.join("\n"));
    assert!(not_run.len() <= NOT_RUN_MAX, "too many blocks are not run:\n{}", not_run.join("\n"));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// What can be said of a block without running it; those that are performed have their own test.
fn hold(block: &Block) -> Result<(), String> {
    if let Some(path) = block.word("file") {
        return is_part_of(block, path);
    }
    match block.language.as_str() {
        "" => Err("a block has a language".to_owned()),
        "rust" => Err("a Rust block names the example it is part of: file=PATH".to_owned()),
        "toml" => toml::from_str::<toml::Table>(&block.text).map(drop).map_err(|error| error.to_string()),
        "json" => serde_json::from_str::<serde_json::Value>(&block.text)
            .map(drop)
            .map_err(|error| error.to_string()),
        "yaml" => YamlLoader::load_from_str(&block.text).map(drop).map_err(|error| error.to_string()),
        "sh" | "python" | "js" | "sql" | "text" | "mermaid" => Ok(()),
        other => {
            Err(format!("nothing here knows what {other} is; take a language that is run, or file=PATH"))
        }
    }
}

/// Whether the text stands in the file, line by line, indented or not.
fn is_part_of(block: &Block, path: &str) -> Result<(), String> {
    let file = std::fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))?;
    let lines = |text: &str| -> Vec<String> { text.trim_end().lines().map(str::to_owned).collect() };
    let (shown, whole) = (lines(&block.text), lines(&file));
    let found = whole.windows(shown.len()).any(|part| outdented(part) == outdented(&shown));
    if found { Ok(()) } else { Err(format!("{path} does not have these lines")) }
}

fn outdented(lines: &[String]) -> Vec<&str> {
    let indents = lines.iter().filter(|line| !line.trim().is_empty());
    let least = indents.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    lines.iter().map(|line| line.get(least..).unwrap_or("").trim_end()).collect()
}

/// Every example that the guide shows is one that a test runs.
#[test]
fn every_example_that_is_shown_is_run() {
    let tests = ["crates/redrive/tests/examples.rs", "crates/redrive/tests/readme.rs"]
        .map(|path| std::fs::read_to_string(root().join(path)).unwrap())
        .concat();
    for block in pages().iter().flat_map(blocks).filter(|block| block.language == "rust") {
        let path = block.word("file").unwrap_or_default();
        let name = path.strip_prefix("crates/redrive/examples/").and_then(|name| name.strip_suffix(".rs"));
        let name = name.unwrap_or_else(|| panic!("{}: {path} is no example of redrive's", block.place));
        let run = tests.contains(&format!("\"{name}\"")) || tests.contains(&format!("examples/{name}\""));
        assert!(run, "{}: no test runs {path}", block.place);
    }
}

#[test]
fn an_info_string_is_read_word_by_word() {
    let block = read_info("sh fresh write=a.toml not-run=\"needs docker, and more\"", String::new());
    assert_eq!(block.language, "sh");
    assert_eq!(block.word("fresh"), Some(""));
    assert_eq!(block.word("write"), Some("a.toml"));
    assert_eq!(block.word("not-run"), Some("needs docker, and more"));
    assert_eq!(block.word("file"), None);
    assert!(!block.is_performed());
}
