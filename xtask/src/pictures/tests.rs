//! The text that pictures are made from, and the picture of memory, of small reports.
//!
//! Tests of `made_from.rs` and `memory.rs` stand here, since a test of the root is built from those two as well: there they
//! would run a second time.

use super::made_from::{PHOTOGRAPH, made_from};
use super::memory::{draw, round_step, short};
use serde_json::json;

fn page(version: &str, seconds: &str, style: &str) -> String {
    format!(
        "<meta content=\"Plimsoll {version}\">{style}<script type=\"application/json\" id=\"report\">\
         {{\"about\": {{\"plimsoll\": \"{version}\", \"unix_seconds\": 1, \"machine\": [[\"modelled with\", \
         \"Plimsoll {version}\"], [\"precision\", \"f32\"]]}}, \"answer\": {{\"note\": null, \
         \"epoch_seconds\": {seconds}}}}}</script>"
    )
}

#[test]
fn versions_and_last_digits_are_left_out_and_nothing_else() {
    let text = made_from(&page("1", "1.50000001", ""), b"png").expect("a page");
    assert!(text.contains("/about/machine/1/1: f32\n/answer/epoch_seconds: 1.500e0\n"), "{text}");
    assert_eq!(made_from(&page("2", "1.5", ""), b"png").as_ref(), Ok(&text));
    for (page, png) in
        [(page("1", "1.6", ""), b"png"), (page("1", "1.5", "b"), b"png"), (page("1", "1.5", ""), b"pnG")]
    {
        assert_ne!(made_from(&page, png).as_ref(), Ok(&text));
    }
    assert_eq!(made_from("<html>", b""), Err("the page holds no report".to_owned()));
}

#[test]
fn checksums_are_fnv_1a() {
    for (photograph, checksum) in [(&b""[..], "cbf29ce484222325"), (b"a", "af63dc4c8601ec8c")] {
        let text = made_from(&page("1", "1.5", ""), photograph).expect("a page");
        assert!(text.contains(&format!("\n{PHOTOGRAPH}: {checksum}\n")), "{text}");
    }
}

#[test]
fn steps_become_a_path_and_every_line_is_named_with_its_most() {
    let gib = 1u64 << 30;
    let series = |most: u64| json!({ "at": [0, 50_000_000, 100_000_000], "bytes": [0, most, 0] });
    let report = json!({
        "about": { "network": "a<b", "batch": 4, "device": "a & b", "modelled": true },
        "memory": {
            "budget_bytes": 2 * gib, "resident_bytes": gib, "alive_bytes": gib, "host_bytes": gib / 2,
            "keeping_everything_bytes": 4 * gib, "pool": series(gib), "keeping_everything": series(3 * gib),
            "host": series(gib / 2),
        },
    });
    let picture = draw(&report).expect("a whole report");
    for words in
        ["keeping everything: 4.00 GiB", "the plan: 2.00 GiB", "the budget: 2.00 GiB", "a&lt;b, batch 4"]
    {
        assert!(picture.contains(words), "`{words}` is not in\n{picture}");
    }
    // From 1 GiB up to 2 at 50 ms and back; 4.2 GiB are as high as the plot.
    assert!(picture.contains("d=\"M72.0 305.3H504.0V238.7H936.0V305.3\""), "{picture}");
    let missing = json!({ "about": report["about"], "memory": { "budget_bytes": 1 } });
    assert_eq!(draw(&missing), Err("the report has no number `resident_bytes`".to_owned()));
}

#[test]
fn numbers_of_axes_are_round() {
    assert_eq!([round_step(438.0, 10.0), round_step(10.0, 6.0), round_step(0.3, 6.0)], [50.0, 2.0, 0.05]);
    assert_eq!([short(0.0), short(50.0), short(0.25)], ["0", "50", "0.25"]);
}
