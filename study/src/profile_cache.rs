//! What was measured earlier, in whatever study: journals that are complete, under the user's cache folder.
//!
//! A measurement is known by its journal's header: network, optimizer, device, driver and libraries, threads, pace of the
//! link, budget, batch sizes, version and commit. The same measurement in another study begins with a copy of the journal, and
//! so is done at once; a journal whose header differs is refused where it is opened, so that no wrong one can be taken.
//!
//! What this file does not do: keep what a build with uncommitted changes measured, since its name does not tell one
//! build from the next.

use crate::error::Error;
use crate::files;
use plimsoll_profiler::ProfileRequest;
use plimsoll_runtime::cuda::user_cache;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Finds and keeps journals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileCache {
    folder: Option<PathBuf>,
}

impl ProfileCache {
    /// The user's: `$XDG_CACHE_HOME/plimsoll/profiles`, or below `~/.cache` where that is not set. Without a home, or with
    /// uncommitted changes in this build, there is none, and nothing is found or kept.
    pub fn of_user() -> ProfileCache {
        let known = !crate::COMMIT.is_some_and(|commit| commit.ends_with("-dirty"));
        let caches = if known { user_cache() } else { None };
        ProfileCache { folder: caches.map(|caches| caches.join("profiles")) }
    }

    /// One in a folder.
    pub fn at(folder: &Path) -> ProfileCache {
        ProfileCache { folder: Some(folder.to_owned()) }
    }

    /// The folder.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Copies the journal of the same measurement to where the request wants its own; gives how long ago it was made.
    ///
    /// # Errors
    ///
    /// The study's folder cannot be written to. A cache that cannot be read holds nothing.
    pub fn find(&self, request: &ProfileRequest) -> Result<Option<Duration>, Error> {
        let Some(path) = self.entry(request) else { return Ok(None) };
        let Ok(journal) = std::fs::read(&path) else { return Ok(None) };
        let made = std::fs::metadata(&path).and_then(|data| data.modified()).ok();
        let age = made.and_then(|made| SystemTime::now().duration_since(made).ok()).unwrap_or_default();
        files::write_bytes(&request.journal, &journal)?;
        Ok(Some(age))
    }

    /// Keeps a request's journal, which is complete.
    ///
    /// # Errors
    ///
    /// The cache cannot be written to. The study has all the same what was measured.
    pub fn keep(&self, request: &ProfileRequest) -> Result<(), Error> {
        let Some(path) = self.entry(request) else { return Ok(()) };
        let folder = path.parent().expect("it lies in the cache's folder");
        let journal = std::fs::create_dir_all(folder).and_then(|()| std::fs::read(&request.journal));
        files::write_bytes(&path, &journal.map_err(|error| Error::io(folder, "keep a profile in", &error))?)
    }

    fn entry(&self, request: &ProfileRequest) -> Option<PathBuf> {
        let name = format!("{}-{}.journal.jsonl", request.network.name, request.key());
        self.folder.as_ref().map(|folder| folder.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_ir::network::NetworkSpec;
    use plimsoll_ir::profile::Machine;
    use plimsoll_ir::{Bytes, Optimizer};
    use plimsoll_profiler::Effort;
    use std::fs;

    fn request(folder: &Path, budget: u64) -> ProfileRequest {
        let machine = Machine {
            device: "a device".to_owned(),
            threads: 1,
            paced: None,
            system: "a driver".to_owned(),
            plimsoll: "1".to_owned(),
            unix_seconds: budget,
            health: None,
            modelled: false,
            modelled_error: None,
            precision: None,
        };
        let network = NetworkSpec { name: "net".to_owned(), image: [8, 8], channels: 1, classes: 2 };
        ProfileRequest {
            network,
            optimizer: Optimizer::Sgd,
            machine,
            budget: Bytes(budget),
            batches: vec![1, 2],
            effort: Effort::default(),
            journal: folder.join("profile.journal.jsonl"),
            fresh: false,
        }
    }

    #[test]
    fn the_same_measurement_is_found_and_no_other() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        for study in [&first, &second] {
            fs::create_dir(study).expect("a folder");
        }
        let cache = ProfileCache::at(&folder.path().join("cache"));
        let known = request(&first, 100);
        fs::write(&known.journal, "what was measured").expect("a file");
        assert_eq!(cache.find(&request(&second, 100)).expect("it can be asked"), None);
        cache.keep(&known).expect("the cache can be written");
        assert_eq!(cache.find(&request(&second, 101)).expect("it can be asked"), None);
        assert!(!second.join("profile.journal.jsonl").exists());
        let mut later = request(&second, 100);
        later.machine.unix_seconds += 60;
        assert!(cache.find(&later).expect("it can be asked").is_some_and(|age| age.as_secs() < 3600));
        let copied = fs::read_to_string(&later.journal).expect("it was copied");
        assert_eq!(copied, "what was measured");
        let mut other = request(&second, 100);
        other.machine.system = "another driver".to_owned();
        assert_eq!(cache.find(&other).expect("it can be asked"), None);
        let other = ProfileRequest { optimizer: Optimizer::Adamw, ..request(&second, 100) };
        assert_eq!(cache.find(&other).expect("it can be asked"), None);
    }
}
