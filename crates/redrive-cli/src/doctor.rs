//! `redrive doctor`: what would hurt, the gravest first.

use std::process::ExitCode;

use anyhow::Context as _;
use redrive_core::{Finding, Gravity};

use crate::config::Place;
use crate::serve::runtime;

/// What to look at, and for whom.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: Place,
    /// JSON for programs instead of text for people
    #[arg(long)]
    json: bool,
}

/// Says what was found; fails when something is grave.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let store = redrive::shown(&arguments.place.store);
    let looked = runtime()?.block_on(redrive::doctor(&arguments.place.store));
    let findings = looked.with_context(|| format!("{store} cannot be looked at"))?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&json(&store, &findings))?);
    } else {
        print!("{}", text(&store, &findings));
    }
    Ok(if worst(&findings) == Gravity::Grave { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn worst(findings: &[Finding]) -> Gravity {
    findings.iter().map(|finding| finding.gravity).max().unwrap_or(Gravity::Fine)
}

fn json(store: &str, findings: &[Finding]) -> serde_json::Value {
    serde_json::json!({ "store": store, "gravity": worst(findings), "findings": findings })
}

fn text(store: &str, findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        text += &format!("{:<8} {}: {}\n", finding.gravity.name(), finding.check, finding.what);
        text += &format!("         {}\n", finding.evidence);
        if let Some(remedy) = &finding.remedy {
            text += &format!("      -> {remedy}\n");
        }
    }
    text + &format!("{store}: {}\n", tally(findings))
}

/// How many there are of each gravity, in words.
fn tally(findings: &[Finding]) -> String {
    let count = |gravity| findings.iter().filter(|finding| finding.gravity == gravity).count();
    let each = [Gravity::Grave, Gravity::Warning, Gravity::Note, Gravity::Fine];
    let parts = each.map(|gravity| match (gravity, count(gravity)) {
        (Gravity::Warning | Gravity::Note, one @ 1) => format!("{one} {}", gravity.name()),
        (Gravity::Warning | Gravity::Note, many) => format!("{many} {}s", gravity.name()),
        (Gravity::Grave | Gravity::Fine, many) => format!("{many} {}", gravity.name()),
    });
    parts.join(", ")
}
