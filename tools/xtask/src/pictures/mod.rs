//! The README's two pictures: the report's first screen, photographed in a headless Chromium, and memory over time.
//!
//! The built program makes both from one report of a modelled device ([`made_from::COMMANDS`]). A test of the root runs the
//! same commands and compares the report with the record next to the pictures; it needs no Chromium. No test takes the
//! photograph: fonts differ between machines.

mod made_from;
mod memory;

use crate::tree::{Tree, root};
use crate::workshop::{Workshop, last_words};
use made_from::{COMMANDS, FOLDER, MADE_FROM, MEMORY, PAGE, PHOTOGRAPH};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variable that names a browser to use instead of `chromium`.
const BROWSER: &str = "CHROME";

/// First screen, in pixels: it ends below the table of settings.
const SCREEN: (u32, u32) = (1400, 994);

/// Makes the pictures, and returns their directory.
pub fn make(tree: &Tree) -> Result<PathBuf, String> {
    let workshop = Workshop::open("pictures")?;
    let room = workshop.room(tree, FOLDER)?;
    for command in COMMANDS {
        let output = workshop.sh(&room, command)?;
        if !output.status.success() {
            return Err(format!("`{command}` fails, {}", last_words(&output)));
        }
    }
    let folder = root().join(FOLDER);
    let photograph = folder.join(PHOTOGRAPH);
    take(&room, &photograph)?;
    let page = read(&room.join(PAGE))?;
    let page = String::from_utf8(page).map_err(|error| format!("{PAGE}: {error}"))?;
    let (report, _) = made_from::taken_apart(&page)?;
    let texts =
        [(MEMORY, memory::draw(&report)?), (MADE_FROM, made_from::made_from(&page, &read(&photograph)?)?)];
    for (name, text) in texts {
        std::fs::write(folder.join(name), text).map_err(|error| format!("cannot write {name}: {error}"))?;
    }
    Ok(folder)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Photographs the page's first screen.
fn take(room: &Path, photograph: &Path) -> Result<(), String> {
    let browser = std::env::var(BROWSER).unwrap_or_else(|_| "chromium".to_owned());
    let mut command = Command::new(&browser);
    command.args("--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run".split(' '));
    command.args(
        "--force-device-scale-factor=1 --force-color-profile=srgb --virtual-time-budget=5000".split(' '),
    );
    command.arg(format!("--user-data-dir={}", room.join("browser").display()));
    command.arg(format!("--window-size={},{}", SCREEN.0, SCREEN.1));
    command.arg(format!("--screenshot={}", photograph.display()));
    command.arg(format!("file://{}", room.join(PAGE).display()));
    let help = format!("install the packages `chromium` and `fonts-dejavu-core`, or set {BROWSER}");
    let output = command.output().map_err(|error| format!("cannot start {browser}: {error}: {help}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("{browser} fails, {}", last_words(&output))) }
}
