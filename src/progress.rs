//! Progress on stderr: a bar on a terminal, silence elsewhere. Results never come this way.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar for `steps` steps of the named work; hidden where stderr is no terminal, or `quiet` is set.
pub fn bar(what: &'static str, steps: u64, quiet: bool) -> ProgressBar {
    let shown = !quiet && std::io::stderr().is_terminal();
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style =
        ProgressStyle::with_template("{prefix:>10} [{bar:32}] {pos}/{len} {elapsed}, {eta} left {msg}");
    let bar = ProgressBar::with_draw_target(Some(steps), target).with_prefix(what);
    match style {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}
