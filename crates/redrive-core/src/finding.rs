//! The results of the checks of `redrive doctor`.

use serde::Serialize;

/// The severity of a [`Finding`], the lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Checked, without a problem.
    Ok,
    /// Worth knowing, or could not be checked.
    Note,
    /// May become a problem, or is a small one now.
    Warning,
    /// Loses jobs or stops work, now or soon.
    Critical,
}

impl Severity {
    /// The name that people see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// The result of one check. Texts are lower case without a full stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How serious the finding is.
    pub severity: Severity,
    /// The name of the check: one word that stays the same between versions.
    pub check: &'static str,
    /// What the check found.
    pub what: String,
    /// The numbers and names that prove it.
    pub evidence: String,
    /// What to do, if anything.
    pub remedy: Option<String>,
}

impl Finding {
    /// A check without a problem.
    pub fn ok(check: &'static str, what: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self { severity: Severity::Ok, check, what: what.into(), evidence: evidence.into(), remedy: None }
    }

    /// A finding with a remedy.
    pub fn new(
        severity: Severity,
        check: &'static str,
        what: impl Into<String>,
        evidence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { severity, check, what: what.into(), evidence: evidence.into(), remedy: Some(remedy.into()) }
    }

    /// Sorts by severity, the highest first. Findings of the same severity keep their order.
    pub fn sort(findings: &mut [Self]) {
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn critical_findings_come_first_and_equal_ones_keep_their_order() {
        let new = |severity, what: &str| Finding::new(severity, "x", what, "", "");
        let mut findings = [
            Finding::ok("x", "a", ""),
            new(Severity::Warning, "b"),
            new(Severity::Critical, "c"),
            new(Severity::Note, "d"),
            new(Severity::Warning, "e"),
        ];
        Finding::sort(&mut findings);
        assert_eq!(findings.map(|finding| finding.what).join(""), "cbeda");
    }
}
