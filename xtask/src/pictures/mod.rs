//! The README's two pictures: the report's first screen, photographed in a headless Chromium, and memory over time.
//!
//! Both are made from one report, of a modelled device, by the built program ([`made_from::COMMANDS`]). A test of the root runs
//! the same commands and compares the report with what is written down beside the pictures; it needs no Chromium. No test takes
//! the photograph: fonts differ between machines.

mod made_from;
mod memory;
#[cfg(test)]
mod tests;

use crate::tools;
use crate::tree::Tree;
use crate::workshop::Workshop;
use made_from::{COMMANDS, FOLDER, MADE_FROM, MEMORY, PAGE, PHOTOGRAPH};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names a browser to use in place of those on the path.
const BROWSER: &str = "CHROME";

/// Programs that are Chromium by another name.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// The first screen, in pixels: it ends below the table of settings.
const SCREEN: (u32, u32) = (1400, 994);

/// Makes the pictures, and gives their folder.
pub fn make(tree: &Tree) -> Result<PathBuf, String> {
    let browser = browser()?;
    let workshop = Workshop::open("pictures")?;
    let room = workshop.room(tree, FOLDER)?;
    for command in COMMANDS {
        let output = workshop.sh(&room, command)?;
        if !output.status.success() {
            return Err(format!("`{command}` fails, {}", tools::last_words(&output)));
        }
    }
    let folder = tools::root().join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let photograph = folder.join(PHOTOGRAPH);
    take(&browser, &room, &photograph)?;
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

/// The browser that is named, or one of the path.
fn browser() -> Result<String, String> {
    let named = std::env::var(BROWSER).ok();
    let runs = |name: &String| {
        let version =
            Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    let names = named.map_or_else(|| NAMES.map(str::to_owned).to_vec(), |named| vec![named]);
    names.iter().find(|name| runs(name)).cloned().ok_or_else(|| {
        format!(
            "none of {} runs: install the packages `chromium` and `fonts-dejavu-core`, or set {BROWSER}",
            names.join(", ")
        )
    })
}

/// Photographs the page's first screen.
fn take(browser: &str, room: &Path, photograph: &Path) -> Result<(), String> {
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]);
    command.args([
        "--force-device-scale-factor=1",
        "--force-color-profile=srgb",
        "--virtual-time-budget=5000",
    ]);
    command.arg(format!("--user-data-dir={}", room.join("browser").display()));
    command.arg(format!("--window-size={},{}", SCREEN.0, SCREEN.1));
    command.arg(format!("--screenshot={}", photograph.display()));
    command.arg(format!("file://{}", room.join(PAGE).display()));
    let output = command.output().map_err(|error| format!("cannot start {browser}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{browser} fails, {}", tools::last_words(&output)))
    }
}
