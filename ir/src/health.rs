//! State of a device at a moment, as its driver reports it: memory, link, limits, and other processes.
//!
//! Other processes and throttling distort the times measured on a device. So the profile stores the driver's report next to
//! the times, and every command that runs something prints a warning.
//!
//! The module deliberately does not guess. A figure that the driver does not report is absent.

use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// A device at a moment or over a period. Over a period, the figures are those of the last moment; reasons and processes are
/// all that were seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Free memory, and all memory.
    #[serde(skip_serializing_if = "Now::is_empty")]
    pub memory_bytes: Now<Bytes>,
    /// The link; an idle one sleeps in a low generation. The best is that of device and slot together.
    #[serde(skip_serializing_if = "Now::is_empty")]
    pub pcie: Now<PcieLink>,
    /// The multiprocessors' clock, and its maximum.
    #[serde(skip_serializing_if = "Now::is_empty")]
    pub clock_mhz: Now<u32>,
    /// Power limit now, and the highest limit that can be set.
    #[serde(skip_serializing_if = "Now::is_empty")]
    pub power_limit_watts: Now<f64>,
    /// Temperature in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub celsius: Option<u32>,
    /// Reasons for throttling, in words; being idle is not one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slowed_by: Vec<String>,
    /// Other processes that compute on the device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherProcess>,
}

/// A figure now, and its best or largest possible value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Now<T> {
    /// Value at the moment.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub now: Option<T>,
    /// Best value.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub best: Option<T>,
}

fn none<T>() -> Option<T> {
    None
}

/// A PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieLink {
    /// Generation, such as 5.
    pub generation: u32,
    /// Lanes, such as 16.
    pub lanes: u32,
}

/// A different process on the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherProcess {
    /// Process id on the machine, not in a container.
    pub pid: u32,
    /// Program name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Device memory held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
}

impl<T> Default for Now<T> {
    fn default() -> Now<T> {
        Now { now: None, best: None }
    }
}

impl<T> Now<T> {
    /// Returns `true` if the driver reported neither value.
    pub fn is_empty(&self) -> bool {
        self.now.is_none() && self.best.is_none()
    }
}

impl std::fmt::Display for PcieLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.0 x{}", self.generation, self.lanes)
    }
}

impl std::fmt::Display for OtherProcess {
    /// `process 4242 (python, 9.00 GiB)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.pid)?;
        match (&self.name, self.bytes) {
            (Some(name), Some(bytes)) => write!(f, " ({name}, {bytes})"),
            (Some(name), None) => write!(f, " ({name})"),
            (None, Some(bytes)) => write!(f, " ({bytes})"),
            (None, None) => Ok(()),
        }
    }
}

impl Health {
    /// Merges a later state into this one.
    pub fn then(mut self, later: Health) -> Health {
        for reason in later.slowed_by {
            if !self.slowed_by.contains(&reason) {
                self.slowed_by.push(reason);
            }
        }
        for other in later.others {
            match self.others.iter_mut().find(|known| known.pid == other.pid) {
                Some(known) => *known = other,
                None => self.others.push(other),
            }
        }
        Health { slowed_by: self.slowed_by, others: self.others, ..later }
    }

    /// Returns the causes of doubtful times that `before` did not have.
    pub fn warnings(&self, before: &Health) -> Vec<Warning> {
        let reasons = self.slowed_by.iter().filter(|reason| !before.slowed_by.contains(reason));
        let slowed = reasons.map(|reason| Warning::Slowed(reason.clone()));
        let known = |pid| before.others.iter().any(|other| other.pid == pid);
        let others = self.others.iter().filter(|other| !known(other.pid));
        slowed.chain(others.map(|other| Warning::Shared(other.clone()))).collect()
    }
}

/// A cause of doubtful times; displayed as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The device is throttled, for this reason.
    Slowed(String),
    /// A different process computes on the device.
    Shared(OtherProcess),
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Warning::Slowed(reason) => write!(
                f,
                "the device is slowed down ({reason}): times are longer than they could be, and may change"
            ),
            Warning::Shared(other) => write!(
                f,
                "{other} computes on the device, too: neither times nor free memory are this run's alone"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(pid: u32, bytes: Option<Bytes>) -> OtherProcess {
        OtherProcess { pid, name: Some("python".into()), bytes }
    }

    #[test]
    fn looks_add_up_and_each_warning_is_given_once() {
        let first = Health { others: vec![other(7, None)], celsius: Some(40), ..Health::default() };
        assert_eq!(first.warnings(&Health::default()).len(), 1);
        let later = Health {
            slowed_by: vec!["heat".into()],
            others: vec![other(7, Some(Bytes(1 << 30))), other(8, None)],
            celsius: Some(90),
            ..Health::default()
        };
        let warnings = later.warnings(&first);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert_eq!(warnings, [Warning::Slowed("heat".into()), Warning::Shared(other(8, None))]);
        let said: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert!(said[0].contains("heat") && said[1].contains("process 8 (python)"), "{said:?}");
        let both = first.then(later.clone());
        assert_eq!(both, later);
        assert!(both.warnings(&both).is_empty());
        // A reason or process that is gone stays in the result.
        let calm = both.clone().then(Health { celsius: Some(50), ..Health::default() });
        assert_eq!(calm, Health { celsius: Some(50), ..both });
    }

    #[test]
    fn what_was_not_told_is_not_written() {
        let text = |health: &Health| serde_json::to_string(health).expect("numbers and words");
        assert_eq!(text(&Health::default()), "{}");
        let some = Health {
            pcie: Now { now: Some(PcieLink { generation: 5, lanes: 16 }), best: None },
            others: vec![other(9, Some(Bytes(5)))],
            ..Health::default()
        };
        assert_eq!(serde_json::from_str::<Health>(&text(&some)).expect("it was written"), some);
        assert!(!text(&some).contains("best"), "{}", text(&some));
    }
}
