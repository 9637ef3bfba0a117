//! What a look at a store found: something that hurts or will, or that nothing does.

use serde::Serialize;

/// How much a [`Finding`] matters, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Gravity {
    /// Looked at, and in order.
    Fine,
    /// Worth knowing, or could not be looked at.
    Note,
    /// Hurts later, or a little now.
    Warning,
    /// Loses jobs or stops work, now or soon.
    Grave,
}

impl Gravity {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Grave => "grave",
        }
    }
}

/// One thing that was found. Texts are lower case without a full stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How much it matters.
    pub gravity: Gravity,
    /// What was looked at, in one word that stays the same between versions.
    pub check: &'static str,
    /// What is the case.
    pub what: String,
    /// The numbers and names that show it.
    pub evidence: String,
    /// What to do; nothing where nothing need be done.
    pub remedy: Option<String>,
}

impl Finding {
    /// Looked at, and in order.
    pub fn fine(check: &'static str, what: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self { gravity: Gravity::Fine, check, what: what.into(), evidence: evidence.into(), remedy: None }
    }

    /// Something to do something about.
    pub fn new(
        gravity: Gravity,
        check: &'static str,
        what: impl Into<String>,
        evidence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { gravity, check, what: what.into(), evidence: evidence.into(), remedy: Some(remedy.into()) }
    }

    /// The order in which a person wants to read them: the gravest first, else as they were found.
    pub fn sort(findings: &mut [Self]) {
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.gravity));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_come_first_and_equals_keep_their_order() {
        let new = |gravity, what: &str| Finding::new(gravity, "x", what, "", "");
        let mut findings = [
            Finding::fine("x", "a", ""),
            new(Gravity::Warning, "b"),
            new(Gravity::Grave, "c"),
            new(Gravity::Note, "d"),
            new(Gravity::Warning, "e"),
        ];
        Finding::sort(&mut findings);
        assert_eq!(findings.map(|finding| finding.what).join(""), "cbeda");
    }
}
