//! The other way to run streams: one piece of work at a time, always of the most eager stream that can go on.
//!
//! Which stream is how eager is one of six orders. Nothing runs before the host waits, and then only until what it waits for
//! is done: every stream is as far ahead of the less eager ones as waits let it, and those as far behind. So a wait
//! that is missing shows without luck, and the same calls give the same order of work each time.

use crate::state::state;
use crate::status;
use crate::stream::Stream;
use std::sync::atomic::{AtomicU32, Ordering};

/// By the order's number less 1, how late each of three streams is served.
const ORDERS: [[u32; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

static ORDER: AtomicU32 = AtomicU32::new(0);

/// From now on, while all streams are idle: 1 to 6 for an order, anything else for streams that run by themselves.
pub fn choose(order: u32) {
    ORDER.store(order, Ordering::SeqCst);
}

/// Whether streams take turns.
pub fn on() -> bool {
    (1..=ORDERS.len() as u32).contains(&ORDER.load(Ordering::SeqCst))
}

/// How late a stream is served.
pub fn rank(stream: u32) -> u32 {
    let order = ORDERS.get(ORDER.load(Ordering::SeqCst) as usize - 1);
    order.map_or(0, |order| order[stream as usize % order.len()])
}

/// Waits until a stream has done everything.
pub fn finish(stream: &Stream) {
    if !on() {
        return stream.wait_until_idle();
    }
    let mut streams = state().all_streams();
    streams.sort_by_key(|stream| rank(stream.number));
    while !stream.is_idle() {
        let Some(work) = streams.iter().find_map(|stream| stream.take_ready()) else {
            return status::fail(status::LAUNCH_TIMEOUT, "streams wait for what nobody does");
        };
        work.run();
    }
}
