//! The functions of exact GELU: the normal distribution P and its density p.
//!
//! With t = |x|, P of -t is p(t) * M(t), where M, Mills' ratio, falls smoothly from sqrt(pi / 2) like 1 / t: a polynomial of
//! u = (t - K) / (t + K) divided by t + K (the substitution of Shepherd and Laframboise 1981). So one exponential gives both
//! functions, and small results are computed directly, not as a difference of large numbers: P has a relative error below
//! 4e-7 and p below 2e-7, wherever they are above 1e-37. The coefficients are our own, by Remez' algorithm on t from 0 to 13
//! (within 2.6e-8 of M).
//!
//! The code uses only sums, products, one quotient and whole-number arithmetic on bits: it compiles to vectors, and CUDA's
//! kernel, the same steps in `activation.cu`, gives the same bits. NaN stays NaN, and minus infinity becomes NaN, as 0 *
//! infinity.
//!
//! Deliberately does not use the approximation by tanh.

use super::exponential::{parts, polynomial};

/// Bound from which on p is below 1e-37 and taken as 0.
const FAR: f32 = 13.0;
/// K above.
const MIDDLE: f32 = 2.875;
/// (t + K) * M(t) by powers of u, the highest first.
const MILLS: [f32; 9] = [
    -0.000_811_667,
    -0.001_649_547_8,
    0.004_712_902_5,
    0.013_256_246,
    -0.035_561_282,
    -0.078_778_59,
    0.517_758_2,
    -1.234_507_6,
    1.815_500_5,
];
/// 1 / sqrt(2 pi).
const HEIGHT: f32 = 0.398_942_3;

/// P(x) and p(x).
#[inline(always)]
pub(super) fn normal(x: f32) -> (f32, f32) {
    let t = if x.abs() < FAR { x.abs() } else { FAR };
    // t^2 / 2 = (the square of its upper half, which is exact, - the rest) / 2.
    let upper = f32::from_bits(t.to_bits() & 0xFFFF_F000);
    let left = (t - upper) * (t + upper) * 0.5;
    let [rest, scale] = parts(upper * upper * -0.5, left);
    let density = if x.abs() < FAR { (rest + 1.0) * scale * HEIGHT } else { 0.0 };
    let inverse = 1.0 / (t + MIDDLE);
    let tail = polynomial(MILLS, (t - MIDDLE) * inverse) * inverse * density;
    (if x < 0.0 { tail } else { 1.0 - tail }, density)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P(-t) in f64: by Marsaglia's series (2004), whose terms are all positive, or further out by Laplace's continued
    /// fraction.
    fn tail(t: f64) -> f64 {
        let density = density(t);
        if t < 2.0 {
            let (mut term, mut sum) = (t, 0.0);
            for n in (3..).step_by(2).take_while(|n| *n < 100) {
                sum += term;
                term *= t * t / f64::from(n);
            }
            0.5 - density * sum
        } else {
            density / (1..500).rev().fold(t, |below, n| t + f64::from(n) / below)
        }
    }

    fn density(t: f64) -> f64 {
        (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt()
    }

    #[test]
    fn the_reference_is_the_one_in_the_tables() {
        for (t, published) in [
            (0.0, 0.5),
            (1.0, 0.158_655_253_931_457_05),
            (1.999_999_999_999, 0.022_750_131_948_233_2),
            (2.0, 0.022_750_131_948_179_21),
            (5.0, 2.866_515_718_791_939e-7),
            (10.0, 7.619_853_024_160_527e-24),
        ] {
            assert!((tail(t) / published - 1.0).abs() < 1e-12, "{t}: {} is not {published}", tail(t));
        }
    }

    #[test]
    fn both_functions_are_right_to_their_last_digits() {
        let mut worst = [0.0f64; 2];
        // Every 4001st number from the smallest to 13, on both sides.
        for bits in (0..FAR.to_bits()).step_by(4001) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let t = f64::from(x.abs());
                let below = if x < 0.0 { tail(t) } else { 1.0 - tail(t) };
                let (found, found_density) = normal(x);
                let pairs = [(found, below), (found_density, density(t))];
                for (worst, (found, expected)) in worst.iter_mut().zip(pairs) {
                    if expected > 1e-37 {
                        *worst = worst.max((f64::from(found) / expected - 1.0).abs());
                    }
                }
            }
        }
        println!("P is within {:e} of itself, p within {:e}", worst[0], worst[1]);
        assert!(worst[0] < 4e-7 && worst[1] < 2e-7, "{worst:?}");
    }

    #[test]
    fn ends_are_what_they_should_be() {
        for (x, expected) in
            [(0.0, (0.5, HEIGHT)), (13.0, (1.0, 0.0)), (-1e30, (0.0, 0.0)), (f32::INFINITY, (1.0, 0.0))]
        {
            assert_eq!(normal(x), expected, "{x}");
        }
        assert!((f32::NAN * normal(f32::NAN).0).is_nan());
    }
}
