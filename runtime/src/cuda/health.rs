//! A device's present condition, from the driver's management library (NVML): its memory, its link, its limits, and the
//! other processes that use it.
//!
//! NVML comes with the driver. Nothing breaks if it is missing or does not report something, since no plan rests on it. It
//! shows which processes hold memory, and which measured times are doubtful.
//!
//! A GPU cut into slices (MIG) is one device here. To the driver, the slice that the process computes on is a different
//! device at the same place. Clocks, link, power and heat are also the slices'; memory and processes are then not reported.

use super::presence::{Search, Wanted};
use crate::error::{Error, Kind, MemoryKind};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use plimsoll_ir::Bytes;
use plimsoll_ir::health::{Health, Now, OtherProcess, PcieLink};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// NVML's library, which is part of the driver.
const NVML: Wanted = Wanted {
    library: "NVML, the driver's management library,",
    files: &["libnvidia-ml.so.1"],
    beside: None,
    probe: c"nvmlInit_v2",
    what_to_do: "it is part of the driver, and a container is given it with the driver's `utility` capability; without it \
                 nobody says who else uses a device and whether it is slowed down",
    instead: None,
};

/// Reasons that slow a device down, in words.
const REASONS: [(ThrottleReasons, &str); 8] = [
    (ThrottleReasons::SW_POWER_CAP, "power limit"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "heat"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "heat, by hardware"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    (ThrottleReasons::SYNC_BOOST, "the clock of another device"),
    (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, "clocks that were set"),
    (ThrottleReasons::DISPLAY_CLOCK_SETTING, "the display's clock"),
];

/// Processes in NVML's list known to be this one. In a container a process does not know its number on the machine, and
/// NVML knows no other.
static OWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// NVML, started.
pub(super) struct Management {
    nvml: Nvml,
    path: PathBuf,
}

/// One device, seen by NVML.
pub(super) struct Watched {
    management: Management,
    bus: String,
    /// Processes that computed on it before this one did.
    before: BTreeSet<u32>,
}

impl Management {
    /// Finds and starts NVML.
    pub(super) fn start(search: &Search) -> Result<Management, Error> {
        let path = search.load(&NVML)?.leak();
        match Nvml::builder().lib_path(path.as_os_str()).init() {
            Ok(nvml) => Ok(Management { nvml, path }),
            Err(error) => Err(not_started(&path, &error)),
        }
    }

    /// The driver's own version, such as `580.65.06`.
    pub(super) fn driver_version(&self) -> Result<String, Error> {
        self.nvml.sys_driver_version().map_err(|error| not_started(&self.path, &error))
    }

    /// Health of the device at a PCI address; facts that NVML does not report are absent.
    pub(super) fn health(&self, bus: &str) -> Health {
        let Ok(device) = self.nvml.device_by_pci_bus_id(bus) else { return Health::default() };
        let pcie = |generation: Result<u32, _>, lanes: Result<u32, _>| {
            Option::zip(generation.ok(), lanes.ok()).map(|(generation, lanes)| PcieLink { generation, lanes })
        };
        let watts = |milliwatts: u32| f64::from(milliwatts) * 1e-3;
        let memory = if is_sliced(&device) { None } else { device.memory_info().ok() };
        let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::empty());
        Health {
            memory_bytes: Now {
                now: memory.as_ref().map(|m| Bytes(m.free)),
                best: memory.as_ref().map(|m| Bytes(m.total)),
            },
            pcie: Now {
                now: pcie(device.current_pcie_link_gen(), device.current_pcie_link_width()),
                best: pcie(device.max_pcie_link_gen(), device.max_pcie_link_width()),
            },
            clock_mhz: Now {
                now: device.clock_info(Clock::SM).ok(),
                best: device.max_clock_info(Clock::SM).ok(),
            },
            power_limit_watts: Now {
                now: device.enforced_power_limit().ok().map(watts),
                best: device.power_management_limit_constraints().ok().map(|c| watts(c.max_limit)),
            },
            celsius: device.temperature(TemperatureSensor::Gpu).ok(),
            slowed_by: in_words(reasons),
            others: self.others(bus),
        }
    }

    /// Other processes that compute on the device at a PCI address.
    fn others(&self, bus: &str) -> Vec<OtherProcess> {
        let own = OWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let name = |pid| self.nvml.sys_process_name(pid, 256).ok().and_then(|text| program(&text));
        let mut processes = self.processes(bus);
        processes.retain(|(pid, _)| *pid != std::process::id() && !own.contains(pid));
        processes.into_iter().map(|(pid, bytes)| OtherProcess { pid, name: name(pid), bytes }).collect()
    }

    /// All processes that compute on the device at a PCI address, with the memory of each.
    fn processes(&self, bus: &str) -> Vec<(u32, Option<Bytes>)> {
        let Ok(device) = self.nvml.device_by_pci_bus_id(bus) else { return Vec::new() };
        if is_sliced(&device) {
            return Vec::new();
        }
        let found = device.running_compute_processes();
        let held = |used| match used {
            UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        found.unwrap_or_default().into_iter().map(|p| (p.pid, held(p.used_gpu_memory))).collect()
    }

    /// Starts watching a device, before this process computes on it.
    pub(super) fn watch(self, bus: &str) -> Watched {
        let before = self.processes(bus).into_iter().map(|(pid, _)| pid).collect();
        Watched { management: self, bus: bus.to_owned(), before }
    }
}

impl Watched {
    /// Finds this process in NVML's list once it has begun to compute on the device: if its own number is absent, every
    /// process that came meanwhile is taken for it.
    pub(super) fn recognise(&self) {
        let now: BTreeSet<u32> =
            self.management.processes(&self.bus).into_iter().map(|(pid, _)| pid).collect();
        if !now.contains(&std::process::id()) {
            let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
            own.extend(now.difference(&self.before));
        }
    }

    /// Its present health.
    pub(super) fn health(&self) -> Health {
        self.management.health(&self.bus)
    }

    /// Adds the other processes that hold the device's memory to an error.
    pub(super) fn with_holders(&self, error: Error) -> Error {
        match error.kind {
            Kind::OutOfMemory { what: what @ MemoryKind::Device, needed, available } => {
                Error::out_of_memory(what, needed, available, &self.management.others(&self.bus))
            }
            _ => error,
        }
    }
}

/// Error of NVML that is installed but does not work.
fn not_started(path: &Path, error: &NvmlError) -> Error {
    Error::device(format!(
        "NVML `{}` does not start: {error}; see whether `nvidia-smi` works",
        path.display()
    ))
}

/// Returns `true` if a GPU is cut into slices; no process then computes on the whole of it.
fn is_sliced(device: &nvml_wrapper::Device) -> bool {
    const ENABLED: u32 = 1;
    device.mig_mode().is_ok_and(|mode| mode.current == ENABLED)
}

/// Reasons that slow a device down, in words.
fn in_words(reasons: ThrottleReasons) -> Vec<String> {
    let known = REASONS.iter().filter(|(reason, _)| reasons.contains(*reason));
    known.map(|(_, words)| (*words).to_owned()).collect()
}

/// Name of the program in a command line.
fn program(command: &str) -> Option<String> {
    let first = command.split_whitespace().next()?;
    first.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idling_slows_nothing_and_reasons_have_words() {
        assert_eq!(in_words(ThrottleReasons::GPU_IDLE), Vec::<String>::new());
        let hot = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::SW_POWER_CAP;
        assert_eq!(in_words(hot), ["power limit", "heat"]);
    }

    #[test]
    fn a_program_is_named_without_its_folder_and_arguments() {
        let name = |text| program(text);
        assert_eq!(name("/usr/bin/python3 train.py /data").as_deref(), Some("python3"));
        assert_eq!(name("plimsoll").as_deref(), Some("plimsoll"));
        assert_eq!(name("  "), None);
    }

    #[test]
    fn without_the_library_it_is_said_which_file_was_looked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = Management::start(&Search::only(folder.path())).err().expect("there is none");
        let text = error.to_string();
        assert!(text.contains("libnvidia-ml.so.1") && text.contains("part of the driver"), "{text}");
    }
}
