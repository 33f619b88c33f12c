//! The device `cuda` by its own calls, on the stand-in: the tests in `bodies/device.rs`, and its errors when the driver
//! refuses a call.

#[path = "bodies/device.rs"]
mod bodies;
#[allow(dead_code, reason = "other tests have more words with it")]
#[path = "schedules/library.rs"]
mod library;

use bodies::{PLAIN, iterate, ready};
use library::StandIn as Place;
use plimsoll_runtime::Begun;
use std::path::Path;
use std::process::Command;

#[test]
fn a_graph_that_is_refused_is_an_error_and_the_next_iteration_is_captured() {
    let Some(library) = Place::open() else { return };
    let mut device = ready(&library, true);
    assert_eq!(iterate(&mut device, PLAIN), (Begun::Enqueue, Ok(())));
    library.answer(c"cuGraphInstantiateWithFlags", 0, 2);
    let error = iterate(&mut device, PLAIN).1.expect_err("no graph was made").to_string();
    assert!(error.contains("cuGraphInstantiate") && error.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    assert_eq!(iterate(&mut device, PLAIN), (Begun::Enqueue, Ok(())));
    assert_eq!(iterate(&mut device, PLAIN), (Begun::Replayed, Ok(())));
}

#[test]
fn what_the_driver_says_in_an_iteration_comes_out_of_it_with_what_to_do() {
    let Some(library) = Place::open() else { return };
    for call in [c"cuEventRecord", c"cuStreamWaitEvent", c"cuStreamSynchronize"] {
        let mut device = ready(&library, true);
        library.answer(call, 0, 700);
        let (begun, outcome) = iterate(&mut device, PLAIN);
        let error = outcome.expect_err("a call was refused").to_string();
        assert_eq!(begun, Begun::Enqueue);
        let says = [call.to_str().expect("a name"), "CUDA_ERROR_ILLEGAL_ADDRESS", "from the checkpoint"];
        assert!(says.iter().all(|words| error.contains(words)), "{error}");
        assert_eq!(iterate(&mut device, PLAIN).1, Ok(()), "the failure is told once");
    }
}

/// The tests in `bodies` run on a GPU if the environment requires one, and then fail without one.
#[test]
fn the_environment_chooses_a_gpu_which_must_be_there() {
    let Some(library) = Place::open() else { return };
    let run = |libraries: &Path| {
        let mut test = Command::new(std::env::current_exe().expect("a test has a file"));
        test.arg("bodies::what_does_not_fit").env("PLIMSOLL_TEST_DEVICE", "gpu");
        let output = test.env("PLIMSOLL_CUDA_LIBRARIES", libraries).output().expect("a test can be started");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // The driver is found as a GPU's is.
    let (passed, words) = run(&library.options().libraries[0]);
    assert!(passed && words.contains("1 passed"), "{words}");
    let (passed, words) = run(Path::new("/nowhere"));
    assert!(!passed && words.contains("libcuda.so.1"), "{words}");
}
