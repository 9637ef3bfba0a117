//! Checks the links and the table of contents.

use std::collections::BTreeSet;
use std::path::Path;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::pages::{Page, read_pages, repository_root};

struct Outline {
    links: Vec<String>,
    /// The anchors of the headings.
    anchors: BTreeSet<String>,
}

fn outline(page: &Page) -> Outline {
    let mut outline = Outline { links: Vec::new(), anchors: BTreeSet::new() };
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(&page.text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                outline.links.push(dest_url.to_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                outline.anchors.extend(heading.take().map(|heading| anchor(&heading)));
            }
            _ => {}
        }
    }
    outline
}

/// The anchor that mdBook and code hosts give to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn is_external(link: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| link.starts_with(scheme))
}

#[test]
fn every_link_has_a_target() {
    let pages = read_pages();
    let mut problems = Vec::new();
    for page in &pages {
        for link in outline(page).links.into_iter().filter(|link| !is_external(link)) {
            let (path, wanted) = link.split_once('#').unwrap_or((&link, ""));
            let folder = Path::new(&page.path).parent().unwrap();
            let root = repository_root();
            let target = if path.is_empty() { root.join(&page.path) } else { root.join(folder).join(path) };
            let Ok(target) = target.canonicalize() else {
                problems.push(format!("{}: {link} does not exist", page.path));
                continue;
            };
            let linked = pages.iter().find(|other| root.join(&other.path) == target);
            let has_heading = linked.is_none_or(|page| outline(page).anchors.contains(wanted));
            if !wanted.is_empty() && !has_heading {
                problems.push(format!("{}: {link}: the page has no such heading", page.path));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn the_table_of_contents_lists_every_page_once() {
    let pages = read_pages();
    let summary = pages.iter().find(|page| page.path == "docs/SUMMARY.md").expect("docs/SUMMARY.md");
    let mut listed: Vec<String> =
        outline(summary).links.into_iter().map(|link| format!("docs/{link}")).collect();
    listed.sort();
    let mut existing: Vec<&str> = pages.iter().map(|page| page.path.as_str()).collect();
    existing.retain(|path| path.starts_with("docs/") && *path != "docs/SUMMARY.md");
    assert_eq!(listed, existing);
}

#[test]
fn a_heading_has_the_anchor_that_mdbook_gives_it() {
    assert_eq!(anchor("Find problems: redrive doctor"), "find-problems-redrive-doctor");
    assert_eq!(anchor("Redis, `everysec`"), "redis-everysec");
}
