//! A paper's claims, checked against rows: the rows that contradict each claim, by name.
//!
//! A page counts its own rows; the index counts those of all pages, each row once, as several figures share rows. Only the
//! claims are typed in: the contradictions are worked out from the rows.

use crate::table::percent;
use std::collections::BTreeMap;

/// Most rows that are named for a claim.
const NAMED_ROWS: usize = 3;

/// A claim of a paper, and the rows that it was checked against.
pub struct Claim {
    /// The claim in the paper's sense, with the place.
    pub words: String,
    /// By name: `true` if the row contradicts the claim. A name has the numbers that show it.
    pub rows: BTreeMap<String, bool>,
    /// Reason for the contradictions, as far as these rows show it.
    why: Option<String>,
}

/// Claims of a page or of all pages, in order of first use.
#[derive(Default)]
pub struct Claims(Vec<Claim>);

impl Claims {
    /// Records one row, and if it is as claimed.
    pub fn hold(&mut self, words: &str, row: impl Into<String>, as_claimed: bool) {
        let known = self.0.iter().position(|claim| claim.words == words);
        let at = known.unwrap_or_else(|| {
            self.0.push(Claim { words: words.to_owned(), rows: BTreeMap::new(), why: None });
            self.0.len() - 1
        });
        let row = row.into();
        let before = self.0[at].rows.insert(row.clone(), !as_claimed);
        assert_ne!(before, Some(as_claimed), "{words}: {row} has two verdicts");
    }

    /// Records a share, compared with the published one to 5 points.
    pub fn near(&mut self, words: &str, of: &str, ours: f64, published: f64) {
        let row = format!("{of} ({} for {})", percent(ours), percent(published));
        self.hold(words, row, (ours - published).abs() <= 0.05);
    }

    /// Records why rows of a page contradict a claim, if any do.
    pub fn explain(&mut self, words: &str, why: impl Into<String>) {
        let claim = self.0.iter_mut().find(|claim| claim.words == words);
        if let Some(claim) = claim.filter(|claim| claim.rows.values().any(|against| *against)) {
            claim.why = Some(why.into());
        }
    }

    /// Adds the claims of a page.
    pub fn join(&mut self, page: &Claims) {
        for claim in &page.0 {
            for (row, contradicts) in &claim.rows {
                self.hold(&claim.words, row.as_str(), !contradicts);
            }
        }
    }

    /// Returns a text item for each claim, with the names of the contradicting rows and the reason, or only their number.
    pub fn words(&self, named: bool) -> Vec<String> {
        self.0.iter().map(|claim| claim.words(named)).collect()
    }
}

impl Claim {
    fn words(&self, named: bool) -> String {
        let against: Vec<&str> =
            self.rows.iter().filter(|(_, against)| **against).map(|(row, _)| row.as_str()).collect();
        let rows = |count: usize| if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
        let verdict = match (against.len(), self.rows.len()) {
            (0, 1) => "the one row agrees".to_owned(),
            (0, all) => format!("all {} agree", rows(all)),
            (1, all) => format!("1 of {} contradicts it", rows(all)),
            (some, all) => format!("{some} of {} contradict it", rows(all)),
        };
        let more = against.len().saturating_sub(NAMED_ROWS);
        let mut names = String::new();
        if named && !against.is_empty() {
            names = format!(": {}", against[..against.len() - more].join("; "));
            names += &if more == 0 { String::new() } else { format!("; and {more} more") };
        }
        let why = self.why.iter().filter(|_| named).map(|why| format!(" Why: {why}.")).collect::<String>();
        format!("{}: {verdict}{names}.{why}", self.words)
    }
}
