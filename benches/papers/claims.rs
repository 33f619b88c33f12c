//! What a paper claims, held against rows: which of them contradict it, by name.
//!
//! A page counts its own rows; the index counts those of all pages, each row once, as several figures share rows. Nothing here
//! is typed in but the claim: what contradicts it is worked out from the rows.

use std::collections::BTreeMap;

/// So many rows that contradict a claim are named at most.
const NAMED_ROWS: usize = 3;

/// A claim of a paper, and the rows that it was held against.
pub struct Claim {
    /// In the paper's sense, with the place.
    pub words: String,
    /// By name: whether the row contradicts it. A name has the numbers that say so.
    pub rows: BTreeMap<String, bool>,
    /// Why rows contradict it, as far as these rows show.
    why: Option<String>,
}

/// The claims of a page or of all, in the order in which they came up.
#[derive(Default)]
pub struct Claims(Vec<Claim>);

impl Claims {
    /// Notes whether one row is as claimed.
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

    /// Says why rows of a page contradict a claim; nothing where none does.
    pub fn explain(&mut self, words: &str, why: impl Into<String>) {
        let claim = self.0.iter_mut().find(|claim| claim.words == words);
        if let Some(claim) = claim.filter(|claim| claim.rows.values().any(|against| *against)) {
            claim.why = Some(why.into());
        }
    }

    /// Adds those of a page.
    pub fn join(&mut self, page: &Claims) {
        for claim in &page.0 {
            for (row, contradicts) in &claim.rows {
                self.hold(&claim.words, row.as_str(), !contradicts);
            }
        }
    }

    /// In words, an item for each claim; with the rows' names and why they contradict it, or only how many they are.
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
