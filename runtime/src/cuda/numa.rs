//! The host's NUMA node nearest to a device, on machines with several.
//!
//! A slab on the other socket is copied at about half the rate. The system reports the node of a device. The mapping's
//! pages are requested there, and come from elsewhere if that node is full. Nothing is guessed if the system does not
//! report it.

use memmap2::MmapMut;
use std::path::Path;

/// `MPOL_PREFERRED`.
const PREFERRED: libc::c_int = 1;

/// NUMA node of a device, such as `0000:3b:00.0`; `None` if the machine has only one, or does not report it.
pub(super) fn node_of(bus: &str) -> Option<u32> {
    node(Path::new("/sys"), bus)
}

fn node(sys: &Path, bus: &str) -> Option<u32> {
    let read = |path: &str| std::fs::read_to_string(sys.join(path)).ok();
    // `0` is one node; several are a list such as `0-1`.
    let online = read("devices/system/node/online")?;
    online.trim().parse::<u32>().is_err().then_some(())?;
    // -1 if unknown.
    read(&format!("bus/pci/devices/{bus}/numa_node"))?.trim().parse().ok()
}

/// Requests a mapping's pages, none of which exists yet, on a node.
pub(super) fn prefer(map: &mut MmapMut, node: u32) {
    let mut mask = [0u64; 16];
    let Some(word) = mask.get_mut(node as usize / 64) else { return };
    *word = 1 << (node % 64);
    let bits = 64 * mask.len() + 1;
    // SAFETY: the range is the mapping's own, and the mask has as many bits as the argument says, less the one that the
    // call ignores.
    let refused = unsafe {
        libc::syscall(libc::SYS_mbind, map.as_mut_ptr(), map.len(), PREFERRED, mask.as_ptr(), bits, 0) != 0
    };
    if refused {
        let error = std::io::Error::last_os_error();
        tracing::debug!("the host slab is not bound to the device's memory node {node}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_known_where_there_are_several_and_the_system_says_which() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        let check = |online: &str, numa: &str, expected: Option<u32>| {
            write("devices/system/node/online", online);
            write("bus/pci/devices/0000:3b:00.0/numa_node", numa);
            assert_eq!(node(folder.path(), "0000:3b:00.0"), expected, "{online} {numa}");
        };
        check("0-1\n", "1\n", Some(1));
        check("0-1\n", "-1\n", None);
        check("0,2\n", "2\n", Some(2));
        check("0\n", "0\n", None);
        assert_eq!(node(folder.path(), "0000:00:00.0"), None);
    }

    #[test]
    fn what_is_bound_or_cannot_be_can_be_written() {
        let mut map = MmapMut::map_anon(8192).expect("two pages");
        for node in [0, 5000] {
            prefer(&mut map, node);
        }
        map.fill(7);
        assert!(map.iter().all(|byte| *byte == 7));
    }
}
