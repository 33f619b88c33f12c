//! exp(x) of non-positive numbers, and the two functions that saturate: the sigmoid and tanh.
//!
//! x is a whole number of ln 2 and a rest from -0.35 to 0.35, whose exponential less 1 is a polynomial (our own, by
//! interpolation, within 2e-8): so small results are computed directly, and tanh is also right to its last digits near 0.
//! All three have a relative error below 2e-7.
//!
//! They use only sums, products, one quotient and whole-number arithmetic on bits: they compile to vectors, and CUDA's
//! kernels, the same steps in `exponential.cu`, give the same bits. NaN stays NaN.
//!
//! Deliberately does not compute the exponential of positive numbers, which overflows, and which no kernel needs.

/// (exp(r) - 1 - r) / r^2 by powers of r from -0.4 to 0.35, the highest first.
const EXPONENTIAL: [f32; 5] = [0.001_368_600_8, 0.008_366_833, 0.041_669_074, 0.166_665_52, 0.499_999_97];
/// Added to a number and subtracted again, it leaves the nearest whole number, which also stands in the lowest bits of the
/// sum.
const WHOLE: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has so few bits that a multiple of it is exact.
const LN_2: [f32; 2] = [0.693_115_23, 3.194_618_5e-5];
/// Bound below which exponentials are taken as 0, since they would lose digits.
const LEAST: f32 = -87.0;

/// c\[0\] * v^n + ... + c\[n\].
#[inline(always)]
pub(super) fn polynomial<const N: usize>(coefficients: [f32; N], v: f32) -> f32 {
    coefficients.iter().skip(1).fold(coefficients[0], |sum, c| sum * v + c)
}

/// exp(exponent - left) = (1 + the first) * the second, a power of 2, for `left` much smaller than the exponent, which is
/// from [`LEAST`] to 0.
#[inline(always)]
pub(super) fn parts(exponent: f32, left: f32) -> [f32; 2] {
    let shifted = exponent * std::f32::consts::LOG2_E + WHOLE;
    let power = shifted - WHOLE;
    let r = exponent - power * LN_2[0] - power * LN_2[1] - left;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    [r * r * polynomial(EXPONENTIAL, r) + r, scale]
}

/// exp(x) for non-positive x.
#[inline(always)]
pub(super) fn exponential(x: f32) -> f32 {
    let far = x < LEAST;
    let [rest, scale] = parts(if far { LEAST } else { x }, 0.0);
    if far { 0.0 } else { (rest + 1.0) * scale }
}

/// 1 / (1 + exp(-x)).
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    sigmoids(x)[0]
}

/// Sigmoids of x and of -x, whose sum is 1.
#[inline(always)]
pub(super) fn sigmoids(x: f32) -> [f32; 2] {
    let tail = exponential(-x.abs());
    let large = 1.0 / (1.0 + tail);
    let small = tail * large;
    if x < 0.0 { [small, large] } else { [large, small] }
}

/// (1 - exp(-2x)) / (1 + exp(-2x)).
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let exponent = -2.0 * x.abs();
    let far = exponent < LEAST;
    let [rest, scale] = parts(if far { LEAST } else { exponent }, 0.0);
    // exp(-2|x|) - 1: near 0 the power is 1, and only the rest remains.
    let less = rest * scale + (scale - 1.0);
    let size = if far { 1.0 } else { -less / (less + 2.0) };
    if x < 0.0 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest relative error of `f` against `expected`, for every 4001st number from the smallest to `most`, with the given
    /// `signs`, wherever the expected value is above 1e-37.
    fn worst(f: fn(f32) -> f32, expected: fn(f64) -> f64, most: f32, signs: &[f32]) -> f64 {
        let mut worst = 0.0f64;
        for bits in (0..most.to_bits()).step_by(4001) {
            for sign in signs {
                let x = sign * f32::from_bits(bits);
                let expected = expected(f64::from(x));
                if expected.abs() > 1e-37 {
                    worst = worst.max((f64::from(f(x)) / expected - 1.0).abs());
                }
            }
        }
        worst
    }

    #[test]
    fn functions_are_right_to_their_last_digits() {
        let both = [-1.0, 1.0];
        let found = [
            worst(exponential, f64::exp, 87.0, &both[..1]),
            worst(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 80.0, &both),
            worst(tanh, f64::tanh, 80.0, &both),
        ];
        println!("exponential, sigmoid and tanh are within {found:?} of themselves");
        assert!(found.iter().all(|worst| *worst < 2e-7), "{found:?}");
    }

    #[test]
    fn ends_are_what_they_should_be() {
        for (x, expected) in [(0.0, 1.0), (-87.5, 0.0), (-1e30, 0.0), (f32::NEG_INFINITY, 0.0)] {
            assert_eq!(exponential(x), expected, "{x}");
        }
        for (x, of_sigmoid, of_tanh) in [
            (0.0, 0.5, 0.0),
            (100.0, 1.0, 1.0),
            (-100.0, 0.0, -1.0),
            (f32::INFINITY, 1.0, 1.0),
            (f32::NEG_INFINITY, 0.0, -1.0),
        ] {
            assert_eq!([sigmoid(x), tanh(x)], [of_sigmoid, of_tanh], "{x}");
        }
        assert!([exponential, sigmoid, tanh].iter().all(|f| f(f32::NAN).is_nan()));
    }
}
