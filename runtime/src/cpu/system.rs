//! Facts that the system reports: its memory, that of the control groups of this process, and its name.
//!
//! A container gets less memory than the machine has and is ended when it exceeds it; the machine's memory table does not
//! show that, nor the process's own limit of address space. So all are read, and the smallest counts.

use crate::limits::{address_space, address_space_taken};
use plimsoll_ir::Bytes;
use std::fs::{File, read_to_string};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::Path;

/// A limit beyond this means unlimited.
const UNLIMITED: u64 = 1 << 60;

/// Memory available now; `None` if the system does not report it.
pub fn available_bytes() -> Option<Bytes> {
    let groups = own_groups().into_iter().map(|group| Bytes(group.limit.saturating_sub(group.used)));
    let addresses = address_space().map(|limit| limit.saturating_sub(address_space_taken()));
    groups.chain(meminfo("MemAvailable:")).chain(addresses).min()
}

/// Largest memory that this process may ever have; `None` if the system does not report it.
pub fn machine_bytes() -> Option<Bytes> {
    let groups = own_groups().into_iter().map(|group| Bytes(group.limit));
    groups.chain(meminfo("MemTotal:")).chain(address_space()).min()
}

/// Largest amount of memory that can be pinned while `left` bytes of the machine's stay with the system; `None` if there is
/// no limit. Memory in use now does not count: it may be freed.
pub fn pinnable_bytes(left: Bytes) -> Option<Bytes> {
    let groups = own_groups().into_iter().map(|group| group.limit).min().map(Bytes);
    pinnable(groups, meminfo("MemTotal:"), address_space(), left)
}

/// Smallest of the limits of control groups, the machine and the process's address space.
fn pinnable(
    groups: Option<Bytes>,
    machine: Option<Bytes>,
    addresses: Option<Bytes>,
    left: Bytes,
) -> Option<Bytes> {
    let machine = machine.map(|machine| machine.saturating_sub(left));
    [groups, machine, addresses].into_iter().flatten().min()
}

/// Value in the system's memory table.
fn meminfo(key: &str) -> Option<Bytes> {
    let text = read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(Bytes(kibibytes * 1024))
}

/// A control group that limits memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    limit: u64,
    /// Excludes memory that the system would reclaim when needed.
    used: u64,
}

fn own_groups() -> Vec<Group> {
    let own = read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups(Path::new("/sys/fs/cgroup"), &own)
}

/// Groups with a limit, among those of a process and all above them. Of either version: `0::/path` in the tree itself,
/// `N:memory:/path` in its folder `memory`. In a container a path may be one of the machine's, which does not exist there;
/// the tree's root is then the container's own group.
fn groups(tree: &Path, own: &str) -> Vec<Group> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next(), parts.next().unwrap_or_default(), parts.next());
        let Some(path) = path.and_then(|path| path.strip_prefix('/')) else { continue };
        let (root, files) = match controllers {
            "" => (tree.to_owned(), ["memory.max", "memory.current", "inactive_file "]),
            "memory" => (
                tree.join(controllers),
                ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "],
            ),
            _ => continue,
        };
        for folder in Path::new(path).ancestors() {
            found.extend(group(&root.join(folder), files));
        }
    }
    found
}

fn group(folder: &Path, [limit, used, inactive]: [&str; 3]) -> Option<Group> {
    let number = |file: &str| read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    let limit = number(limit).filter(|limit| *limit < UNLIMITED)?;
    let stat = read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let inactive = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok());
    let used = number(used).unwrap_or(0).saturating_sub(inactive.unwrap_or(0));
    Some(Group { limit, used })
}

/// Gives a file its length and allocates all of its blocks.
pub(crate) fn allocate_blocks(file: &File, bytes: Bytes) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes.0).map_err(|_| ErrorKind::FileTooLarge)?;
    loop {
        // SAFETY: the descriptor is open for writing for the whole call.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => return file.set_len(bytes.0),
            // A signal, such as Ctrl-C, which is handled between iterations.
            libc::EINTR => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Model of the processor, and operating system.
pub(crate) fn system_name() -> String {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split_once(':'));
    let model = model.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{model}, {}", std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the groups of a process in a tree made of these files.
    fn check(files: &[(&str, &str)], own: &str, expected: &[(u64, u64)]) {
        let tree = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = tree.path().join(path);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let found: Vec<(u64, u64)> = groups(tree.path(), own).iter().map(|g| (g.limit, g.used)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn every_group_above_a_process_limits_it() {
        let two = [
            ("memory.max", "max\n"),
            ("a/memory.max", "8000\n"),
            ("a/memory.current", "5000\n"),
            ("a/memory.stat", "anon 1\ninactive_file 1000\n"),
            ("a/b/memory.max", "3000\n"),
        ];
        check(&two, "0::/a/b\n", &[(3000, 0), (8000, 4000)]);
        check(&two, "0::/\n", &[]);
        // A container sees its own group as the root, and its path is one of the machine's.
        check(&[("memory.max", "700"), ("memory.current", "70")], "0::/../x\n", &[(700, 70)]);
        let one = [
            ("memory/memory.limit_in_bytes", "9223372036854771712"),
            ("memory/a/memory.limit_in_bytes", "9000"),
            ("memory/a/memory.usage_in_bytes", "600"),
            ("memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 100"),
        ];
        check(&one, "5:cpu:/a\n4:memory:/a\n0::/\n", &[(9000, 500)]);
        check(&one, "nonsense\n::\n", &[]);
    }

    #[test]
    fn what_can_be_pinned_is_what_the_tightest_limit_allows() {
        let check =
            |groups: Option<u64>, machine: Option<u64>, addresses: Option<u64>, expected: Option<u64>| {
                let found = pinnable(groups.map(Bytes), machine.map(Bytes), addresses.map(Bytes), Bytes(2));
                assert_eq!(found, expected.map(Bytes), "{groups:?} {machine:?} {addresses:?}");
            };
        check(None, Some(10), None, Some(8));
        // A group's limit bounds the group alone; no part of it stays with the system.
        check(Some(8), Some(10), None, Some(8));
        check(Some(5), Some(10), None, Some(5));
        check(Some(9), Some(10), Some(4), Some(4));
        check(None, Some(1), None, Some(0));
        check(None, None, None, None);
    }

    #[test]
    fn this_machine_has_some_memory() {
        let (all, now) = (machine_bytes().expect("Linux says"), available_bytes().expect("Linux says"));
        assert!(now <= all && now > Bytes::ZERO, "{now} of {all}");
    }
}
