//! Complete journals of earlier measurements in any study, under the user's cache directory.
//!
//! A journal's header identifies a measurement: network, optimizer, device, driver and libraries, threads, pace of the link,
//! budget, batch sizes, version and commit. The same measurement in a different study starts with a copy of the journal, and so
//! finishes at once. Opening a journal with a different header fails, so a wrong one cannot be used.
//!
//! This file does not keep measurements of a build with uncommitted changes, since two such builds can have the same name.

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
    /// Returns the user's cache: `$XDG_CACHE_HOME/plimsoll/profiles`, or below `~/.cache` if that is not set. Without a home
    /// directory, or if this build has uncommitted changes, the cache finds and keeps nothing.
    pub fn of_user() -> ProfileCache {
        let known = !crate::COMMIT.is_some_and(|commit| commit.ends_with("-dirty"));
        let caches = if known { user_cache() } else { None };
        ProfileCache { folder: caches.map(|caches| caches.join("profiles")) }
    }

    /// Returns the cache's directory.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Copies the journal of the same measurement to the request's path, and returns its age.
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

    /// Keeps a request's complete journal.
    ///
    /// # Errors
    ///
    /// The cache cannot be written to. The study keeps the measurements all the same.
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
        let cache = ProfileCache { folder: Some(folder.path().join("cache")) };
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
