//! Shared rules of layers with sliding windows: valid windows, and the number that fit.

use super::bad;
use crate::error::NetworkError;
use plimsoll_ir::network::{Shape, Window};

/// Returns the positions of a window.
pub(super) fn taps(window: &Window) -> u64 {
    u64::from(window.size[0]) * u64::from(window.size[1])
}

/// Refuses a window or a stride of 0.
pub(super) fn check(name: &str, window: &Window) -> Result<(), NetworkError> {
    if window.size.contains(&0) || window.stride.contains(&0) || window.dilation.contains(&0) {
        return bad(name, "size, stride and dilation of a window are at least 1");
    }
    Ok(())
}

/// Returns the rows and columns of the output of a sliding window.
pub(super) fn slide(name: &str, window: &Window, input: Shape) -> Result<[u32; 2], NetworkError> {
    check(name, window)?;
    window.output(input.height, input.width).ok_or_else(|| {
        let [rows, columns] =
            [0, 1].map(|d| u64::from(window.dilation[d]) * u64::from(window.size[d] - 1) + 1);
        let why = format!("a window of {rows}x{columns} does not fit its input of {input}");
        NetworkError { too_small_for: Some(name.to_owned()), ..NetworkError::of_layer(name, why) }
    })
}
