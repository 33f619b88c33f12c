//! The 1,797 handwritten digits embedded in the binary (see `runtime/data/digits/README.md` for their origin and licence).

use super::images::Samples;
use super::{Images, Split};
use plimsoll_ir::network::Shape;

/// Records of a label and 64 pixels.
static RECORDS: &[u8] = include_bytes!("../../data/digits/digits.bin");
const RECORD: usize = 65;
/// One sample in this many is held out of each class.
const HELD_OUT: usize = 5;

/// The digits, 8x8x1 in 10 classes: 1,442 for training; 355 held out, every fifth of each class.
pub fn digits() -> Split {
    let (mut train, mut test) = (Samples::default(), Samples::default());
    let mut seen = [0; 10];
    for record in RECORDS.chunks_exact(RECORD) {
        let (label, pixels) = (record[0], &record[1..]);
        seen[usize::from(label)] += 1;
        let part = if seen[usize::from(label)] % HELD_OUT == 0 { &mut test } else { &mut train };
        part.0.extend_from_slice(pixels);
        part.1.push(label);
    }
    Images::split("digits", Shape { height: 8, width: 8, channels: 1 }, 10, train, test)
}

#[cfg(test)]
mod tests {
    use super::super::Input;
    use super::*;

    #[test]
    fn every_class_is_held_out_in_the_same_share() {
        assert_eq!(RECORDS.len(), 1797 * RECORD);
        let Split { train, test } = digits();
        assert_eq!((train.len(), test.len()), (1442, 355));
        let mut pixels = [0.0; 64];
        let mut counts = [[0usize; 10]; 2];
        for (count, set) in counts.iter_mut().zip([&train, &test]) {
            for i in 0..set.len() {
                let mut label = [-1];
                set.read(i, Input::Pixels(&mut pixels), &mut label).expect("it is in memory");
                count[label[0] as usize] += 1;
            }
        }
        for (class, (train, test)) in counts[0].iter().zip(counts[1]).enumerate() {
            assert_eq!(test, (train + test) / HELD_OUT, "class {class}");
        }
    }
}
