//! The whole CUDA test suite on a GPU: the bodies of the kernels' tests, of the device's and of whole schedules, which the
//! crates that they belong to run without one.
//!
//! What it deliberately does not do: hold a test of its own.

use libtest_mimic::{Arguments, Trial};
use plimsoll_ir::Precision;
use plimsoll_runtime::{CudaDevice, CudaOptions, Device};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[allow(dead_code, reason = "some of it is for tests with a fault")]
#[path = "../../standin/tests/bodies/device.rs"]
mod device;
#[allow(
    dead_code,
    unused_imports,
    unsafe_code,
    reason = "the text's and the compiler's own tests stay where they are"
)]
#[path = "../../runtime/tests/kernels/main.rs"]
mod kernels;
#[allow(dead_code, reason = "as above")]
#[path = "../../standin/tests/bodies/schedules.rs"]
mod schedules;
#[path = "../../runtime/tests/support/mod.rs"]
mod support;

/// Tests that run in one process: a device that one of them has lost is lost for all of it.
pub struct Group {
    /// How their names begin.
    pub name: &'static str,
    /// Their names and bodies, list by list.
    pub lists: &'static [(&'static str, Tests)],
}

/// Tests by name.
type Tests = &'static [(&'static str, fn())];

/// All of them.
pub const GROUPS: [Group; 3] = [
    Group { name: "kernels", lists: &[("", kernels::TESTS), ("random::", kernels::random::TESTS)] },
    Group { name: "device", lists: &[("", device::TESTS)] },
    Group { name: "schedules", lists: &[("", schedules::TESTS)] },
];

impl Group {
    /// How many tests it has.
    pub fn len(&self) -> usize {
        self.lists.iter().map(|(_, tests)| tests.len()).sum()
    }

    /// As the harness takes them.
    fn trials(&self) -> impl Iterator<Item = Trial> {
        let Group { name: group, lists } = *self;
        let all = lists.iter().flat_map(|(list, tests)| tests.iter().map(move |test| (list, *test)));
        all.map(move |(list, (name, body))| {
            Trial::test(format!("{group}::{list}{name}"), move || {
                // Elsewhere kernels are tested on the CPU alone where there is no device; here that would be no test.
                assert!(kernels::device::device().is_some(), "there is a device");
                body();
                Ok(())
            })
        })
    }
}

/// A GPU, held alone: several tests look at what memory is free.
struct Place {
    cache: tempfile::TempDir,
    /// Without graphs and with them; those that are asked for share its libraries, which take long to start.
    open: [OnceCell<CudaDevice>; 2],
    _alone: MutexGuard<'static, ()>,
}

/// Streams as the GPU runs them.
#[derive(Debug)]
struct AsTheyCome;

impl Place {
    fn open() -> Option<Place> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = tempfile::tempdir().expect("there is a folder for temporary files");
        Some(Place { cache, open: Default::default(), _alone: alone })
    }

    fn options(&self) -> CudaOptions {
        CudaOptions {
            cache: Some(self.cache.path().to_owned()),
            deterministic: true,
            ..CudaOptions::default()
        }
    }

    fn device(&self, graphs: bool) -> CudaDevice {
        let open = || CudaDevice::open(&CudaOptions { graphs, ..self.options() });
        let first = self.open[usize::from(graphs)].get_or_init(|| open().expect("nothing stands in the way"));
        first.another().expect("it is open")
    }

    fn device_in(&self, precision: Precision) -> CudaDevice {
        let options = CudaOptions { precision: Some(precision), ..self.options() };
        CudaDevice::open(&options).expect("nothing stands in the way")
    }

    fn watched(&self, graphs: bool) -> Box<dyn Device> {
        Box::new(self.device(graphs))
    }

    /// Nobody counts a driver's calls.
    fn counted(&self, act: impl FnOnce()) -> Option<BTreeMap<String, u64>> {
        act();
        None
    }

    fn paces(&self, _: u64) -> [AsTheyCome; 1] {
        [AsTheyCome]
    }

    fn set(&self, AsTheyCome: &AsTheyCome) {}
}

/// Runs the tests as a test program does, with its arguments.
pub fn harness(arguments: Vec<String>) -> ExitCode {
    let program = std::iter::once("accept test".to_owned());
    let arguments = Arguments::from_iter(program.chain(arguments));
    let trials = GROUPS.iter().flat_map(Group::trials).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
