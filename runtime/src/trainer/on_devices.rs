//! An iteration of several virtual workers whose sums are made by the workers' devices, as by NCCL.
//!
//! It differs from the iteration of `share.rs` in three ways. Workers agree on the update within the pass, as soon as its
//! loss is known: the total number of labels that count is known then, so that each worker's gradient is weighted on its way
//! into the sum. Each part is summed in place on the device once it is complete, and nothing of it comes to the host. And
//! the update is made whole, once all parts are summed.
//!
//! A worker that makes several passes for an update adds up the earlier ones on the host, as in `share.rs`, adds the last
//! one's numbers, and writes that sum back.
//!
//! Deliberately does not promise bits. Devices add in an order of their choice, so with a different number of workers or
//! different links, the same training rounds differently.

use super::passes::{GOES_ON, LOOK, is_finite};
use super::share::Share;
use super::{Metrics, Place, sums};
use crate::device::Collective;
use crate::error::Error;
use crate::executor::{Executor, Loaded};
use crate::group::GroupError;
use plimsoll_ir::checksum::Summing;
use plimsoll_ir::program::{Region, Role};
use std::time::{Duration, Instant};

/// Time for which messages that a worker sent before it ended may still be on their way; a failing worker may give its
/// reason.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

impl Share {
    /// Joins the devices of all workers.
    pub(super) fn join_devices(&mut self, executor: &mut Executor) -> Result<(), Error> {
        if !self.on_devices {
            return Ok(());
        }
        let facts = self.group.facts();
        let mut invitation = if facts.rank == 0 { executor.collective().invite()? } else { Vec::new() };
        self.group.broadcast(&mut invitation)?;
        executor.collective().join(&invitation, facts.rank, facts.workers)?;
        self.wait_for_devices(executor, |devices| devices.is_done())
    }

    /// Checksum of the summed regions, their order and their parts.
    pub(super) fn order_of_sums(&self) -> String {
        let mut sum = Summing::default();
        for part in self.sums.iter().map(|sum| &sum.part) {
            sum.add(b"part");
            for region in &part.regions {
                sum.add(&region.offset.0.to_le_bytes());
                sum.add(&region.elements().to_le_bytes());
            }
        }
        sum.sum().to_string()
    }

    /// Ends sums that the devices began and cannot finish. The workers must meet again.
    pub(super) fn abandon_devices(&mut self, executor: &mut Executor) {
        if self.on_devices {
            executor.collective().abandon();
            self.met = false;
        }
    }

    /// Waits for the devices while all workers are there. If a worker is gone, its message counts rather than the devices'
    /// error.
    fn wait_for_devices(
        &mut self,
        executor: &mut Executor,
        is_so: fn(&mut dyn Collective) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let mut lost: Option<(Instant, GroupError)> = None;
        let mut failed: Option<(Instant, Error)> = None;
        loop {
            if failed.is_none() {
                match is_so(executor.collective()) {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(error) => failed = Some((Instant::now(), error)),
                }
            }
            match self.group.look() {
                Ok(()) => lost = None,
                Err(error) if failed.is_some() => return Err(error.into()),
                Err(error) => drop(lost.get_or_insert_with(|| (Instant::now(), error))),
            }
            let is_over = |since: Instant| since.elapsed() > ON_ITS_WAY;
            if let Some((_, error)) = lost.take_if(|(since, _)| is_over(*since)) {
                return Err(error.into());
            }
            if let Some((_, error)) = failed.take_if(|(since, _)| is_over(*since)) {
                return Err(error);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// During this worker's last pass: agrees with the others on the update, and has the devices sum each part once it is
    /// complete. Returns the results of all passes; `None` if a worker leaves.
    pub(super) fn sum_on_devices(
        &mut self,
        executor: &mut Executor,
        train: &Loaded,
        (step, number): Place,
        mut mine: Vec<Metrics>,
    ) -> Result<Option<Vec<Metrics>>, Error> {
        self.wait_for_part(executor, self.first_gradient())?;
        let metrics = self.metrics(executor, train)?;
        let is_only = mine.is_empty();
        mine.push(metrics);
        let Some(all) = self.agree(step, GOES_ON, &mine)? else { return Ok(None) };
        is_finite(step, &all)?;
        let [.., counted] = sums(&all);
        let labels = train.program().label_count() as f64;
        // A gradient is a mean over the labels of its pass; a sum of several is weighted by the share of labels that count.
        let own = if is_only { f64::from(metrics.counted()) } else { labels };
        let of_gradients = (own / counted.max(1.0)) as f32;
        let of_statistics = (1.0 / all.len() as f64) as f32;
        for part in 0..self.sums.len() {
            self.wait_for_part(executor, part)?;
            if !is_only {
                let weight = (f64::from(metrics.counted()) / labels) as f32;
                self.add_part(executor, (part, number), weight)?;
                let sum = &mut self.sums[part];
                let mut nodes = sum.mine.take_nodes().map(|(_, numbers)| numbers);
                let mut total = nodes.next().expect("a pass was added");
                nodes.for_each(|node| total.iter_mut().zip(node).for_each(|(sum, number)| *sum += number));
                executor.replace_part(&sum.part, &total)?;
            }
            for (of_gradient, factor) in [(true, of_gradients), (false, of_statistics)] {
                let regions = &self.sums[part].part.regions;
                let is_of_it = |region: &&Region| (region.role == Role::Gradient) == of_gradient;
                if regions.iter().any(|region| is_of_it(&region)) {
                    self.wait_for_devices(executor, |devices| devices.is_ready())?;
                    let regions = &self.sums[part].part.regions;
                    executor.sum_regions(regions.iter().filter(is_of_it), factor)?;
                }
            }
        }
        self.wait_for_devices(executor, |devices| devices.is_done())?;
        Ok(Some(all))
    }
}
