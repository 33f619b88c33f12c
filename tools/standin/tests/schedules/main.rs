//! Whole training iterations on the device `cuda` as it is, with the stand-in for its driver: every schedule gives the bits of
//! keeping everything (`bodies/schedules.rs`), and a device with a fault does not.

#[path = "../bodies/schedules.rs"]
mod bodies;
mod calls;
mod faults;
mod faulty;
mod libraries;
mod library;
mod nccl;
#[path = "../../../../runtime/tests/support/mod.rs"]
mod support;

use bodies::{bits, feeding, keeping, last_finished, planned, program, train};
use faulty::{Fault, Faulty, Planted};
use library::StandIn as Place;
use plimsoll_runtime::Device;

/// How streams run.
#[derive(Clone, Copy, Debug)]
enum Late {
    /// As a GPU runs them.
    Never,
    /// By themselves, as late as a seed makes them.
    Delays(u64),
    /// By turns, in a fixed order or a drawn one.
    Order(u64),
}

impl Place {
    /// The ways in which schedule `n` runs.
    fn paces(&self, n: u64) -> Vec<Late> {
        if self.is_gpu() {
            return vec![Late::Never];
        }
        vec![Late::Delays(n % 4), Late::Order(1 + n % 6), Late::Order(7 + n)]
    }

    /// From now on streams run like this.
    fn set(&self, late: &Late) {
        let (seed, order) = match *late {
            Late::Never => return,
            Late::Delays(seed) => (seed, 0),
            Late::Order(order) => (0, order),
        };
        self.delays(seed);
        self.order(order);
    }

    /// The device, on the stand-in with an eye on streams that still run when an iteration has ended.
    fn watched(&self, graphs: bool) -> Box<dyn Device> {
        let device = self.device(graphs);
        if self.is_gpu() {
            return Box::new(device);
        }
        Box::new(Faulty::new(device, Fault::None, &Planted::default(), self.busy()))
    }
}
