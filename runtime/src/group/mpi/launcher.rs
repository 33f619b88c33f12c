//! Detection of the launcher that started this process, from the environment.

use std::env;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::time::{Duration, Instant};

/// Library files to load, in this order, if the launcher implies no other.
pub(super) const LIBRARIES: [&str; 5] =
    ["libmpi.so.40", "libmpich.so.12", "libmpi.so.12", "libmpi_abi.so.1", "libmpi_abi.so.0"];

/// A process that a launcher started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Name of the launcher.
    pub launcher: &'static str,
    /// This worker's number, from 0, as set by the launcher.
    pub rank: usize,
    /// The workers that it started.
    pub workers: usize,
    /// This worker's number among those on its machine, from 0, if the launcher sets it.
    pub on_machine: Option<u32>,
}

/// Launchers, and their variables for the number of workers, a worker's number, and its number on its machine.
const LAUNCHERS: [(&str, [&str; 3]); 2] = [
    ("Open MPI's mpirun", ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"]),
    ("MPICH's mpirun", ["PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"]),
];

/// Launcher of this process, if there is one.
pub fn launched() -> Option<Launched> {
    launched_by(&|name| env::var(name).ok())
}

fn launched_by(variable: &dyn Fn(&str) -> Option<String>) -> Option<Launched> {
    LAUNCHERS.iter().find_map(|(launcher, names)| {
        let [workers, rank, on_machine] = names.map(|name| variable(name)?.parse::<u32>().ok());
        let (workers, rank) = (workers? as usize, rank? as usize);
        (rank < workers).then_some(Launched { launcher, rank, workers, on_machine })
    })
}

impl Launched {
    /// Libraries to look for, those of the launcher first.
    pub(super) fn libraries(self) -> Vec<&'static str> {
        let open_mpi = self.launcher == LAUNCHERS[0].0;
        let (own, others): (Vec<&str>, Vec<&str>) =
            LIBRARIES.into_iter().partition(|file| (*file == LIBRARIES[0]) == open_mpi);
        [own, others].concat()
    }
}

/// Time limit for a launcher to read this process's stderr.
const READING: Duration = Duration::from_secs(2);

/// Time for a launcher to print the text that it has read: this process cannot see when that is done.
const PASSING_ON: Duration = Duration::from_millis(100);

/// Waits until the launcher has read this process's stderr, if that is a pipe. MPICH's launcher drops unread text when a
/// worker ends all.
pub(super) fn what_was_said_is_read() {
    if is_read(std::io::stderr().as_fd(), READING) {
        std::thread::sleep(PASSING_ON);
    }
}

/// Returns `true` if a pipe is read empty within this time; `false` for a file that is not a pipe.
fn is_read(written: BorrowedFd<'_>, within: Duration) -> bool {
    let begun = Instant::now();
    let own = written.try_clone_to_owned().map(File::from);
    let is_pipe = own.and_then(|file| file.metadata()).is_ok_and(|about| about.file_type().is_fifo());
    while is_pipe && begun.elapsed() < within {
        let mut unread: libc::c_int = 0;
        // SAFETY: the descriptor is borrowed, so it is open, and FIONREAD writes one int.
        let answer = unsafe { libc::ioctl(written.as_raw_fd(), libc::FIONREAD, &mut unread) };
        if answer == 0 && unread == 0 {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_pipe_is_read_when_nothing_is_left_in_it() {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let within = Duration::from_millis(20);
        assert!(is_read(writer.as_fd(), within));
        writer.write_all(b"error: ").expect("it has room");
        assert!(!is_read(writer.as_fd(), within));
        let read = std::thread::spawn(move || {
            std::thread::sleep(within);
            let mut all = [0; 7];
            reader.read_exact(&mut all).expect("they are there");
            reader
        });
        assert!(is_read(writer.as_fd(), Duration::from_secs(60)));
        drop(read.join().expect("it reads"));
        assert!(!is_read(File::open("/dev/null").expect("it is there").as_fd(), within), "no pipe");
    }

    #[test]
    fn a_launcher_is_known_by_what_it_leaves() {
        let check = |variables: &[(&str, &str)], expected: Option<(&'static str, usize, usize)>| {
            let of = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            let found = launched_by(&of);
            let words = found.map(|found| (found.launcher, found.rank, found.workers));
            assert_eq!(words, expected, "{variables:?}");
            found.and_then(|found| found.on_machine)
        };
        check(&[], None);
        let open = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "3"), ("PMIX_RANK", "3")];
        assert_eq!(check(&open, Some(("Open MPI's mpirun", 3, 4))), None);
        let open = [&open[..], &[("OMPI_COMM_WORLD_LOCAL_RANK", "1")]].concat();
        assert_eq!(check(&open, Some(("Open MPI's mpirun", 3, 4))), Some(1));
        let mpich = [("PMI_SIZE", "2"), ("PMI_RANK", "0"), ("MPI_LOCALRANKID", "0")];
        assert_eq!(check(&mpich, Some(("MPICH's mpirun", 0, 2))), Some(0));
        check(&[("PMI_SIZE", "2")], None);
        check(&[("PMI_SIZE", "2"), ("PMI_RANK", "2")], None);
        let of = |launcher| Launched { launcher, rank: 0, workers: 2, on_machine: None }.libraries()[0];
        assert_eq!([of("Open MPI's mpirun"), of("MPICH's mpirun")], ["libmpi.so.40", "libmpich.so.12"]);
    }
}
