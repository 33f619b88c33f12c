//! CIFAR-10's binary version: records of a label and 3072 bytes, the red plane, the green and the blue, each row by
//! row.

use super::images::Samples;
use super::{Images, Split, whole_file};
use crate::error::Error;
use plimsoll_ir::network::Shape;
use std::path::Path;

const PIXELS: usize = 32 * 32;
const RECORD: usize = 1 + 3 * PIXELS;

/// Reads `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin` of a folder; 32x32x3 in 10 classes.
pub fn cifar10(folder: &Path) -> Result<Split, Error> {
    let (mut train, mut test) = (Samples::default(), Samples::default());
    for number in 1..=5 {
        records(&folder.join(format!("data_batch_{number}.bin")), &mut train)?;
    }
    records(&folder.join("test_batch.bin"), &mut test)?;
    Ok(Images::split("cifar10", Shape { height: 32, width: 32, channels: 3 }, 10, train, test))
}

fn records(path: &Path, samples: &mut Samples) -> Result<(), Error> {
    let fault = |why: String| Err(Error::data(path, why));
    let file = whole_file(path, "a file of CIFAR-10's binary version")?;
    if file.len() % RECORD != 0 {
        let whole = file.len() / RECORD;
        return fault(format!(
            "is cut short: record {whole} ends at byte {}, and it has {} (CIFAR-10's own files have 10,000 \
             records of {RECORD} bytes)",
            (whole + 1) * RECORD,
            file.len()
        ));
    }
    for (number, record) in file.chunks_exact(RECORD).enumerate() {
        if record[0] >= 10 {
            return fault(format!("label {} of record {number} is out of range; expected 0 to 9", record[0]));
        }
        samples.1.push(record[0]);
        let plane = |channel: usize| &record[1 + channel * PIXELS..1 + (channel + 1) * PIXELS];
        let (red, green, blue) = (plane(0), plane(1), plane(2));
        samples.0.extend((0..PIXELS).flat_map(|i| [red[i], green[i], blue[i]]));
    }
    Ok(())
}
