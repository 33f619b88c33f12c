//! The README's pictures show the current program: their commands run, and the report is compared with the pictures' record.

#[path = "../tools/xtask/src/pictures/made_from.rs"]
pub(crate) mod made_from;
#[path = "../tools/xtask/src/pictures/memory.rs"]
mod memory;

use made_from::{COMMANDS, FOLDER, MADE_FROM, MEMORY, PAGE, PHOTOGRAPH};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Advice if a picture is out of date.
const DO: &str = "run `cargo xtask pictures`, and look at both pictures";

#[test]
fn pictures_show_what_the_program_makes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for command in COMMANDS {
        let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(command.split_whitespace().skip(1))
            .current_dir(folder.path())
            .env("XDG_CACHE_HOME", folder.path().join("cache"))
            .output()
            .expect("the program starts");
        assert!(output.status.success(), "{command}\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let page = fs::read_to_string(folder.path().join(PAGE)).expect("a report");
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    let photograph = fs::read(pictures.join(PHOTOGRAPH)).expect(DO);
    let text = |name: &str| fs::read_to_string(pictures.join(name)).expect(DO);

    let (was, is) = (text(MADE_FROM), made_from::made_from(&page, &photograph).expect("a whole report"));
    let first = was.lines().zip(is.lines()).find(|(was, is)| was != is);
    assert!(was == is, "{FOLDER}/{PHOTOGRAPH} is out of date: {DO}\n(written down, and now: {first:#?})");
    let (report, _) = made_from::taken_apart(&page).expect("a report");
    let drawn = memory::draw(&report).expect("a whole report");
    assert!(text(MEMORY) == drawn, "{FOLDER}/{MEMORY} is out of date: {DO}");
}

#[test]
fn the_photograph_is_small_and_of_the_width_that_the_readme_shows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER).join(PHOTOGRAPH);
    let photograph = fs::read(path).expect(DO);
    assert!(photograph.len() < 200_000, "{} bytes: everyone who clones loads them", photograph.len());
    // PNG: a signature of 8 bytes, then the header's length and name, then the width.
    assert_eq!(&photograph[1..4], b"PNG");
    assert_eq!(photograph[16..20], 1400u32.to_be_bytes());
}
