//! Links and the table of contents: every page is in the book, and every link leads somewhere.

use std::collections::BTreeSet;
use std::path::Path;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::pages::{Page, pages, root};

struct Content {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

fn content(page: &Page) -> Content {
    let mut content = Content { links: Vec::new(), anchors: BTreeSet::new() };
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(&page.text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                content.links.push(dest_url.to_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                content.anchors.extend(heading.take().map(|heading| anchor(&heading)));
            }
            _ => {}
        }
    }
    content
}

/// The anchor of a heading, as mdBook and code hosts make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn is_outside(link: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| link.starts_with(scheme))
}

#[test]
fn every_link_leads_somewhere() {
    let all = pages();
    let mut problems = Vec::new();
    for page in &all {
        for link in content(page).links.into_iter().filter(|link| !is_outside(link)) {
            let (path, wanted) = link.split_once('#').unwrap_or((&link, ""));
            let folder = Path::new(&page.path).parent().unwrap();
            let target =
                if path.is_empty() { root().join(&page.path) } else { root().join(folder).join(path) };
            let Ok(target) = target.canonicalize() else {
                problems.push(format!("{}: {link} does not exist", page.path));
                continue;
            };
            let same = |other: &&Page| root().join(&other.path) == target;
            let found = all.iter().find(same).map(|page| content(page).anchors);
            if !wanted.is_empty() && found.is_some_and(|anchors| !anchors.contains(wanted)) {
                problems.push(format!("{}: {link} has no such heading", page.path));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn the_table_of_contents_has_every_page_once() {
    let all = pages();
    let summary = all.iter().find(|page| page.path == "docs/SUMMARY.md").expect("docs/SUMMARY.md");
    let mut listed: Vec<String> =
        content(summary).links.into_iter().map(|link| format!("docs/{link}")).collect();
    listed.sort();
    let mut written: Vec<&str> = all.iter().map(|page| page.path.as_str()).collect();
    written.retain(|path| path.starts_with("docs/") && *path != "docs/SUMMARY.md");
    assert_eq!(listed, written);
}

#[test]
fn a_heading_has_the_anchor_that_mdbook_gives_it() {
    assert_eq!(anchor("What would hurt: redrive doctor"), "what-would-hurt-redrive-doctor");
    assert_eq!(anchor("Redis, `everysec`"), "redis-everysec");
}
