//! Tells the program which commit it was built from, where the build knows: measurements name it.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=../.git/HEAD");
    println!("cargo:rerun-if-changed=../.git/logs/HEAD");
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    let commit = output.ok().filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok());
    if let Some(commit) = commit.as_deref().map(str::trim).filter(|c| !c.is_empty()) {
        println!("cargo:rustc-env=PLIMSOLL_COMMIT={commit}");
    }
}
