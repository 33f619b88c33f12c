//! MNIST's IDX files (and those of sets in the same format, such as Fashion-MNIST), uncompressed.
//!
//! A file has a magic number (two zeros, 8 for bytes, the number of dimensions), the dimensions as big-endian
//! 32-bit numbers, then the bytes.

use super::images::Samples;
use super::{Images, Split, whole_file};
use crate::error::Error;
use plimsoll_ir::network::Shape;
use std::path::Path;

/// Reads `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, and `t10k-...` of a folder; 10 classes.
pub fn mnist(folder: &Path) -> Result<Split, Error> {
    let (image, train) = part(folder, "train")?;
    let (test_image, test) = part(folder, "t10k")?;
    if image != test_image {
        return Err(Error::mismatch("images of the test files of MNIST", image, test_image));
    }
    Ok(Images::split("mnist", image, 10, train, test))
}

fn part(folder: &Path, name: &str) -> Result<(Shape, Samples), Error> {
    let images_path = folder.join(format!("{name}-images-idx3-ubyte"));
    let labels_path = folder.join(format!("{name}-labels-idx1-ubyte"));
    let ([count, height, width], pixels) = idx::<3>(&images_path)?;
    let ([labelled], labels) = idx::<1>(&labels_path)?;
    let fault = |why: String| Err(Error::data(&labels_path, why));
    if count != labelled {
        return fault(format!(
            "has {labelled} labels for {count} images; the two files do not belong together"
        ));
    }
    if let Some(record) = labels.iter().position(|l| *l >= 10) {
        return fault(format!(
            "label {} of record {record} is out of range; expected 0 to 9",
            labels[record]
        ));
    }
    Ok((Shape { height, width, channels: 1 }, (pixels, labels)))
}

/// Dimensions and bytes of an IDX file of bytes.
fn idx<const D: usize>(path: &Path) -> Result<([u32; D], Vec<u8>), Error> {
    let fault = |why: String| Err(Error::data(path, why));
    let mut file = whole_file(path, "an IDX file of MNIST")?;
    let magic = [0, 0, 8, D as u8];
    let header = 4 + 4 * D;
    if file.starts_with(&[0x1f, 0x8b]) {
        return fault("is compressed; unpack it with gunzip and give it this name".to_owned());
    }
    if !file.starts_with(&magic[..file.len().min(4)]) {
        return fault(format!(
            "starts with {:02x?}; an IDX file of bytes in {D} dimensions starts with {magic:02x?}",
            &file[..file.len().min(4)]
        ));
    }
    if file.len() < header {
        return fault(format!("is cut short: its header takes {header} bytes, and it has {}", file.len()));
    }
    let mut sizes = [0; D];
    for (size, bytes) in sizes.iter_mut().zip(file[4..header].chunks_exact(4)) {
        *size = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let expected = sizes.iter().map(|s| u128::from(*s)).product::<u128>() + header as u128;
    if sizes.contains(&0) {
        return fault(format!("has a dimension of 0 ({sizes:?}); there is nothing in it"));
    }
    if file.len() as u128 != expected {
        let how = if (file.len() as u128) < expected { "is cut short" } else { "is too long" };
        return fault(format!(
            "{how}: dimensions {sizes:?} take {expected} bytes, and it has {}",
            file.len()
        ));
    }
    file.drain(..header);
    Ok((sizes, file))
}
