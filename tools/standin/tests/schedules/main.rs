//! Whole training iterations on the real device `cuda`, with the stand-in for its driver: every schedule gives the bits of
//! keeping everything (`bodies/schedules.rs`), and a device with a fault does not.

#[path = "../bodies/schedules.rs"]
mod bodies;
mod calls;
mod faults;
mod faulty;
mod libraries;
#[allow(dead_code, reason = "other tests have more words with it")]
mod library;
mod nccl;
#[path = "../../../../runtime/tests/support/mod.rs"]
mod support;

use faulty::{Fault, Faulty};
use library::StandIn as Place;
use plimsoll_runtime::Device;

/// Pace of streams.
#[derive(Clone, Copy, Debug)]
enum Late {
    /// As on a GPU.
    Never,
    /// Independent, with delays by a seed.
    Delays(u64),
    /// In turns, in a fixed or a random order.
    Order(u64),
}

impl Place {
    /// Paces at which schedule `n` runs.
    fn paces(&self, n: u64) -> Vec<Late> {
        if self.is_gpu() {
            return vec![Late::Never];
        }
        vec![Late::Delays(n % 4), Late::Order(1 + n % 6), Late::Order(7 + n)]
    }

    /// Sets the pace of streams from now on.
    fn set(&self, late: &Late) {
        let (seed, order) = match *late {
            Late::Never => return,
            Late::Delays(seed) => (seed, 0),
            Late::Order(order) => (0, order),
        };
        self.delays(seed);
        self.order(order);
    }

    /// The device; on the stand-in with a check for streams that still run when an iteration has ended.
    fn watched(&self, graphs: bool) -> Box<dyn Device> {
        let device = self.device(graphs);
        if self.is_gpu() {
            return Box::new(device);
        }
        Box::new(Faulty::new(device, Fault::None, self.busy()).0)
    }
}
