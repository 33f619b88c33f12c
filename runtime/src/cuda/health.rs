//! How a device is at the moment, as the driver's management library (NVML) tells: its memory, its link, its limits, and who
//! else uses it.
//!
//! NVML comes with the driver; where it is missing, or does not tell something, nothing is said and nothing is lost: this is
//! for `doctor` alone, and no decision rests on it.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use plimsoll_ir::Bytes;

/// A device at the moment; none of what NVML does not tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// Memory that nobody holds.
    pub free: Option<Bytes>,
    /// Generation and lanes of its PCIe link, now; an idle link sleeps in a low generation.
    pub link: Option<(u32, u32)>,
    /// The best that device and slot can do.
    pub best_link: Option<(u32, u32)>,
    /// MHz of the multiprocessors, now and at best.
    pub clock: Option<(u32, u32)>,
    /// What it may draw, in watts.
    pub power_limit: Option<f64>,
    /// In degrees Celsius.
    pub temperature: Option<u32>,
    /// Why it is slower than it could be, in words; being idle is no reason.
    pub slowed: Vec<&'static str>,
    /// Other processes that compute on it: process number, and the memory that each holds.
    pub processes: Vec<(u32, Option<Bytes>)>,
}

/// The reasons that slow a device down, in words.
const REASONS: [(ThrottleReasons, &str); 6] = [
    (ThrottleReasons::SW_POWER_CAP, "power limit"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "heat"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "heat, by hardware"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, "clocks that were set"),
];

/// The driver's version, such as `580.65.06`, and the devices at these places, in their order.
pub(super) fn look(buses: &[&str]) -> (Option<String>, Vec<Health>) {
    match Nvml::init() {
        Ok(nvml) => (nvml.sys_driver_version().ok(), buses.iter().map(|bus| health(&nvml, bus)).collect()),
        Err(error) => {
            tracing::debug!("NVML tells nothing: {error}");
            (None, buses.iter().map(|_| Health::default()).collect())
        }
    }
}

fn health(nvml: &Nvml, bus: &str) -> Health {
    let Ok(device) = nvml.device_by_pci_bus_id(bus) else { return Health::default() };
    let pair = |a: Result<u32, _>, b: Result<u32, _>| Option::zip(a.ok(), b.ok());
    let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::empty());
    let memory = |used| match used {
        UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
        UsedGpuMemory::Unavailable => None,
    };
    let own = std::process::id();
    let processes = device.running_compute_processes().unwrap_or_default();
    let others = processes.into_iter().filter(|process| process.pid != own);
    Health {
        free: device.memory_info().ok().map(|memory| Bytes(memory.free)),
        link: pair(device.current_pcie_link_gen(), device.current_pcie_link_width()),
        best_link: pair(device.max_pcie_link_gen(), device.max_pcie_link_width()),
        clock: pair(device.clock_info(Clock::SM), device.max_clock_info(Clock::SM)),
        power_limit: device.enforced_power_limit().ok().map(|milliwatts| f64::from(milliwatts) * 1e-3),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        slowed: REASONS
            .iter()
            .filter(|(reason, _)| reasons.contains(*reason))
            .map(|(_, words)| *words)
            .collect(),
        processes: others.map(|process| (process.pid, memory(process.used_gpu_memory))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_a_device_is_no_error() {
        let (_, found) = look(&["ffff:ff:1f.7", "nowhere"]);
        assert_eq!(found, [Health::default(), Health::default()]);
    }
}
