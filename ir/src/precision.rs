//! The arithmetic of a training: the input precision of convolutions and matrix products, and the storage of activations.
//!
//! Times, bytes and bits depend on the precision, so profiles and configs name it. Parameters, their gradients, optimizer
//! state, statistics and sums are f32 in every precision. Activations and their gradients are f32 too, except in bf16, where
//! they take half the bytes (docs/decisions/bf16-is-storage.md).
//!
//! The module deliberately does not list the devices of each precision. A device refuses a precision by naming what it lacks.

use crate::program::ConvShape;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Input precision of convolutions and matrix products and, for bf16, storage of activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// f32 throughout.
    #[default]
    F32,
    /// Convolutions in TF32, matrix products in f32: PyTorch's default on cards that have TF32.
    Tf32Convolutions,
    /// Both in TF32: numbers with 10 bits after the point, multiplied by tensor cores.
    Tf32,
    /// Activations and their gradients in bf16 (f32 with 7 bits after the point); products of bf16 numbers, summed in f32.
    Bf16,
}

/// Storage format of a floating-point number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Float {
    /// 4 bytes.
    #[default]
    F32,
    /// 2 bytes: the upper half of an f32, rounded to the nearest, ties to even.
    Bf16,
}

impl Float {
    /// Returns the bytes of a number.
    pub fn bytes(self) -> u64 {
        match self {
            Float::F32 => 4,
            Float::Bf16 => 2,
        }
    }

    /// Returns the nearest number that this format stores, ties to even.
    pub fn nearest(self, value: f32) -> f32 {
        match self {
            Float::F32 => value,
            Float::Bf16 => f32::from_bits(u32::from(bf16(value)) << 16),
        }
    }
}

/// Returns the bf16 nearest to a number, ties to even: the upper half of an f32. Values out of range become infinite, and NaN
/// stays NaN.
#[inline(always)]
pub fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    // A NaN whose upper half is an infinity's needs an extra bit.
    let quiet = (bits >> 16) as u16 | 0x40;
    let nearest = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    if value.is_nan() { quiet } else { nearest }
}

impl Precision {
    /// Returns PyTorch's default, which is Plimsoll's too, for a device with or without TF32.
    pub fn usual(has_tf32: bool) -> Precision {
        if has_tf32 { Precision::Tf32Convolutions } else { Precision::F32 }
    }

    /// Returns `true` if the precision requires TF32 of the device.
    pub fn needs_tf32(self) -> bool {
        matches!(self, Precision::Tf32Convolutions | Precision::Tf32)
    }

    /// Returns the storage format of activations and their gradients.
    pub fn feature_maps(self) -> Float {
        if self == Precision::Bf16 { Float::Bf16 } else { Float::F32 }
    }

    /// Returns `true` if a convolution, or the equivalent matrix product, multiplies in TF32.
    pub fn is_tf32(self, shape: &ConvShape) -> bool {
        match self {
            Precision::F32 | Precision::Bf16 => false,
            Precision::Tf32Convolutions => !shape.is_matrix_product(),
            Precision::Tf32 => true,
        }
    }

    /// Returns the name in files.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32Convolutions => "tf32-convolutions",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
        }
    }

    /// Returns the precision with this name.
    pub fn named(name: &str) -> Option<Precision> {
        Precision::ALL.into_iter().find(|one| one.name() == name)
    }

    /// All precisions.
    pub const ALL: [Precision; 4] =
        [Precision::F32, Precision::Tf32Convolutions, Precision::Tf32, Precision::Bf16];
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Tf32Convolutions => "TF32 for convolutions, f32 for matrix products",
            Precision::Tf32 => "TF32",
            Precision::Bf16 => "bf16",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Window;

    fn shape(input: [u32; 2], window: u32) -> ConvShape {
        let (in_channels, out_channels) = (8, 8);
        let window = Window::square(window, 1, window / 2);
        ConvShape {
            batch: 2,
            input,
            in_channels,
            output: input,
            out_channels,
            window,
            groups: 1,
            bias: false,
        }
    }

    #[test]
    fn a_name_is_what_files_hold() {
        for one in Precision::ALL {
            assert_eq!(serde_json::to_string(&one).expect("a word"), format!("{:?}", one.name()));
            assert_eq!(Precision::named(one.name()), Some(one));
        }
        assert_eq!(Precision::named("TF32"), None);
    }

    #[test]
    fn the_default_of_pytorch_multiplies_only_convolutions_in_tf32() {
        let (layer, sequence) = (shape([1, 1], 1), shape([64, 1], 1));
        let (pixels, windows) = (shape([7, 7], 1), shape([7, 7], 3));
        let in_tf32 = |one: Precision| [layer, sequence, pixels, windows].map(|shape| one.is_tf32(&shape));
        assert_eq!(in_tf32(Precision::usual(true)), [false, false, true, true]);
        assert_eq!(in_tf32(Precision::usual(false)), [false; 4]);
        assert_eq!(in_tf32(Precision::Tf32), [true; 4]);
        assert_eq!(in_tf32(Precision::Bf16), [false; 4]);
    }

    #[test]
    fn a_number_is_stored_as_it_is_or_as_the_nearest_bf16() {
        assert_eq!([1.3, 6.01].map(|value| Float::F32.nearest(value)), [1.3, 6.01]);
        // 1 + 1/256 lies between 1 and 1 + 1/128, whose last bits are 0 and 1; 1 + 3/256 between 1 + 1/128 and 1 + 1/64.
        let ties = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -1.004].map(|value| Float::Bf16.nearest(value));
        assert_eq!(ties, [1.0, 1.0 + 1.0 / 64.0, -1.007_812_5]);
        assert_eq!(Float::Bf16.nearest(f32::MAX), f32::INFINITY);
        assert!(Float::Bf16.nearest(f32::from_bits(0x7f80_0001)).is_nan());
    }

    #[test]
    fn only_bf16_stores_feature_maps_in_half_the_bytes() {
        let bytes = Precision::ALL.map(|one| one.feature_maps().bytes());
        assert_eq!(bytes, [4, 4, 4, 2]);
        assert_eq!(Precision::ALL.map(Precision::needs_tf32), [false, true, true, false]);
    }
}
