//! Stderr as a terminal to draw bars on, which may go away while the work goes on.
//!
//! Failures to draw are ignored: a closed window, or a pipe whose reader ended, is no reason to lose a training.

use console::Term;
use indicatif::{ProgressDrawTarget, TermLike};
use std::io;

/// Target for bars: stderr if it is a terminal, else none.
pub(crate) fn target() -> ProgressDrawTarget {
    let terminal = Term::buffered_stderr();
    match terminal.is_term() {
        true => ProgressDrawTarget::term_like(Box::new(Forgiving(terminal))),
        false => ProgressDrawTarget::hidden(),
    }
}

/// A terminal whose operations never fail.
#[derive(Debug)]
struct Forgiving(Term);

/// Ignores the result of drawing.
fn forgiven(_drawn: io::Result<()>) -> io::Result<()> {
    Ok(())
}

impl TermLike for Forgiving {
    fn width(&self) -> u16 {
        self.0.size().1
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        forgiven(self.0.move_cursor_up(n))
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        forgiven(self.0.move_cursor_down(n))
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        forgiven(self.0.move_cursor_right(n))
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        forgiven(self.0.move_cursor_left(n))
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        forgiven(self.0.write_line(text))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        forgiven(self.0.write_str(text))
    }

    fn clear_line(&self) -> io::Result<()> {
        forgiven(self.0.clear_line())
    }

    fn flush(&self) -> io::Result<()> {
        forgiven(self.0.flush())
    }
}
