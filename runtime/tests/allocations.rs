//! An iteration allocates nothing on the thread that enqueues it, once it has run before.

use crate::support::{everything, naive, training};
use plimsoll_runtime::{Cpu, CpuOptions, Executor, MemoryLayout};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    /// # Safety
    /// As the trait requires.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promises are those that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    /// As the trait requires.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    /// # Safety
    /// As the trait requires.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn an_iteration_allocates_nothing() {
    let program = training(&everything(), 4);
    let schedule = naive(&program.trace);
    let layout = MemoryLayout::of(&program, &schedule).keeping_state(&program);
    let mut executor = Executor::new(Box::new(Cpu::new(CpuOptions::default())), layout).expect("it is small");
    let loaded = executor.load_keeping_state(&program, &schedule, None).expect("the schedule is valid");
    let labels = [0u8; 16];
    let images = [0u8; 4 * 64 * 4];
    let iterate = |executor: &mut Executor| {
        executor.write_images(&loaded, &images).expect("the images fit");
        executor.write_labels(&loaded, &labels).expect("the labels fit");
        executor.run(&loaded).expect("an iteration runs");
        executor.run_copying(&loaded).expect("one with a copy beside it runs");
    };
    iterate(&mut executor);
    let before = COUNT.with(Cell::get);
    drop(std::hint::black_box(vec![0u8; 100]));
    let counted = COUNT.with(Cell::get);
    assert!(counted > before, "the counter counts");
    for _ in 0..5 {
        iterate(&mut executor);
    }
    assert_eq!(COUNT.with(Cell::get) - counted, 0);
}
