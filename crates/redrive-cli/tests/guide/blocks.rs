//! Parses the fenced blocks of a page, and checks the blocks that are not run.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use yaml_rust2::YamlLoader;

use super::pages::{Page, read_pages, repository_root};

/// A fenced block. Its info string is a language, followed by attributes:
///
/// - `output`: the block is the output of the block before it; `approximate`: numbers, ids and widths may differ.
/// - `fresh`: the block runs in a new folder, without the service of the blocks before it.
/// - `file=PATH`: the block is part of this file.
/// - `write=NAME`: the block is written to this file instead of being run.
/// - `not-run="reason"`: the block cannot run in a test.
pub(crate) struct Block {
    /// The page and the line where the block begins.
    pub(crate) location: String,
    pub(crate) language: String,
    attributes: Vec<(String, String)>,
    pub(crate) text: String,
}

const ATTRIBUTES: [&str; 6] = ["output", "approximate", "fresh", "file", "write", "not-run"];

impl Block {
    /// The value of an attribute, empty if it has none.
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(attribute, _)| attribute == name).map(|(_, value)| value.as_str())
    }

    /// Whether the block is run, or written to a file for blocks that are run.
    pub(crate) fn is_run(&self) -> bool {
        let is_program = ["sh", "python", "js", "sql"].contains(&self.language.as_str());
        self.attribute("not-run").is_none() && (is_program || self.attribute("write").is_some())
    }
}

pub(crate) fn parse_blocks(page: &Page) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut current: Option<Block> = None;
    for (event, range) in Parser::new_ext(&page.text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let line = page.text[..range.start].lines().count() + 1;
                let info =
                    if let CodeBlockKind::Fenced(info) = kind { info.to_string() } else { String::new() };
                current = Some(parse_info(&info, format!("{}:{line}", page.path)));
            }
            Event::Text(text) => {
                if let Some(block) = &mut current {
                    block.text.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => blocks.extend(current.take()),
            _ => {}
        }
    }
    blocks
}

fn parse_info(info: &str, location: String) -> Block {
    let end = info.find([' ', ',']).unwrap_or(info.len());
    let (language, mut rest) = (info[..end].to_owned(), &info[end..]);
    let mut attributes = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if rest.is_empty() {
            return Block { location, language, attributes, text: String::new() };
        }
        let name_end = rest.find(['=', ' ', ',']).unwrap_or(rest.len());
        let name = rest[..name_end].to_owned();
        rest = &rest[name_end..];
        let value = if let Some(quoted) = rest.strip_prefix("=\"") {
            let (value, after) = quoted.split_once('"').expect("a closing quote");
            rest = after;
            value
        } else if let Some(bare) = rest.strip_prefix('=') {
            let end = bare.find([' ', ',']).unwrap_or(bare.len());
            rest = &bare[end..];
            &bare[..end]
        } else {
            ""
        };
        attributes.push((name, value.to_owned()));
    }
}

/// Raising this number needs a good reason: blocks that are not run become wrong unnoticed.
const NOT_RUN_MAX: usize = 8;

#[test]
fn every_block_is_run_or_checked() {
    let mut problems = Vec::new();
    let mut not_run = Vec::new();
    for block in read_pages().iter().flat_map(parse_blocks) {
        if let Some(reason) = block.attribute("not-run") {
            assert!(reason.len() > 5, "{}: give the reason in not-run=\"…\"", block.location);
            not_run.push(format!("{}: {reason}", block.location));
        } else if let Err(problem) = check_syntax(&block) {
            problems.push(format!("{}: {problem}", block.location));
        }
        let unknown = block.attributes.iter().find(|(name, _)| !ATTRIBUTES.contains(&name.as_str()));
        if let Some((name, _)) = unknown {
            problems.push(format!("{}: unknown attribute {name:?}", block.location));
        }
    }
    println!("blocks that are not run:\n{}", not_run.join("\n"));
    assert!(not_run.len() <= NOT_RUN_MAX, "too many blocks are not run:\n{}", not_run.join("\n"));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Checks what can be checked without running the block.
fn check_syntax(block: &Block) -> Result<(), String> {
    if let Some(path) = block.attribute("file") {
        return check_is_part_of(block, path);
    }
    match block.language.as_str() {
        "" => Err("the block has no language".to_owned()),
        "rust" => Err("a Rust block must name the example that contains it: file=PATH".to_owned()),
        "toml" => toml::from_str::<toml::Table>(&block.text).map(drop).map_err(|error| error.to_string()),
        "json" => serde_json::from_str::<serde_json::Value>(&block.text)
            .map(drop)
            .map_err(|error| error.to_string()),
        "yaml" => YamlLoader::load_from_str(&block.text).map(drop).map_err(|error| error.to_string()),
        "sh" | "python" | "js" | "sql" | "text" | "mermaid" => Ok(()),
        other => Err(format!("no check for the language {other}: use another language, or file=PATH")),
    }
}

/// Checks that the file contains the lines of the block, at any indentation.
fn check_is_part_of(block: &Block, path: &str) -> Result<(), String> {
    let file =
        std::fs::read_to_string(repository_root().join(path)).map_err(|error| format!("{path}: {error}"))?;
    let lines = |text: &str| -> Vec<String> { text.trim_end().lines().map(str::to_owned).collect() };
    let (part, whole) = (lines(&block.text), lines(&file));
    let found = whole.windows(part.len()).any(|window| unindent(window) == unindent(&part));
    if found { Ok(()) } else { Err(format!("{path} does not contain these lines")) }
}

fn unindent(lines: &[String]) -> Vec<&str> {
    let indents = lines.iter().filter(|line| !line.trim().is_empty());
    let least = indents.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    lines.iter().map(|line| line.get(least..).unwrap_or("").trim_end()).collect()
}

/// The module that runs the examples of the library.
const EXAMPLE_TESTS: &str = "crates/redrive/tests/library/examples.rs";

#[test]
fn every_example_in_the_guide_is_run_by_a_test() {
    let tests = std::fs::read_to_string(repository_root().join(EXAMPLE_TESTS)).unwrap();
    for block in read_pages().iter().flat_map(parse_blocks).filter(|block| block.language == "rust") {
        let path = block.attribute("file").unwrap_or_default();
        let name = path.strip_prefix("crates/redrive/examples/").and_then(|name| name.strip_suffix(".rs"));
        let name =
            name.unwrap_or_else(|| panic!("{}: {path} is not an example of the library", block.location));
        let is_run = tests.contains(&format!("Example::start(\"{name}\""));
        assert!(is_run, "{}: no test runs {path}", block.location);
    }
}

#[test]
fn an_info_string_is_parsed_into_attributes() {
    let block = parse_info("sh fresh write=a.toml not-run=\"needs docker, and more\"", String::new());
    assert_eq!(block.language, "sh");
    assert_eq!(block.attribute("fresh"), Some(""));
    assert_eq!(block.attribute("write"), Some("a.toml"));
    assert_eq!(block.attribute("not-run"), Some("needs docker, and more"));
    assert_eq!(block.attribute("file"), None);
    assert!(!block.is_run());
}
