//! A user's folder with a subfolder of JPEG and PNG files for each class, like torchvision's ImageFolder.
//!
//! Paths and labels are held in memory, about 100 bytes an image; an image is decoded each time it is read, those of a batch
//! on all cores, so that a set may be larger than memory. The largest rectangle of the network's proportions is cut from the
//! middle of an image and scaled to the network's size, linearly over all pixels that a new one covers. An image of that
//! size keeps its bytes.
//!
//! Mean and deviation are those of a bounded sample, spread evenly over the training images. The digits in the name of a set
//! are a checksum of all paths and file sizes; contents are left out, since reading them would take as long as an epoch.
//!
//! Deliberately does not augment, rotate an image by its orientation tag, or apply a colour profile.

use super::images::{Sums, normalise};
use super::{Dataset, Input, Split};
use crate::error::Error;
use image::imageops::FilterType;
use image::{DynamicImage, ImageReader};
use plimsoll_ir::checksum::{Checksum, Summing};
use plimsoll_ir::network::Shape;
use rayon::prelude::*;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One image in this many is held out of each class, if the folder has no held-out part.
const HELD_OUT: usize = 10;

/// Number of training images from which mean and deviation are computed.
const SAMPLED: usize = 1024;

/// Extensions of image files, in lower case.
const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];

/// Names of the held-out part; the first that exists is used.
const HELD_OUT_PARTS: [&str; 2] = ["val", "test"];

struct ImageFolder {
    name: String,
    folder: PathBuf,
    /// Path of each in the folder, and its class.
    files: Vec<(Box<Path>, u32)>,
    image: Shape,
    classes: u32,
    scales: Vec<(f32, f32)>,
    threads: Arc<rayon::ThreadPool>,
}

/// An image that was found.
struct Found {
    file: PathBuf,
    bytes: u64,
    class: u32,
}

/// Reads `folder` as images of this shape with 1 or 3 channels: `train` and `val` (or `test`) with a subfolder for each
/// class, or the class folders themselves, of which every tenth image is held out. Classes are numbered in the order of
/// their names.
///
/// # Errors
///
/// The folder does not have this structure, or an image of the sample cannot be decoded.
pub fn image_folder(folder: &Path, image: Shape) -> Result<Split, Error> {
    if !matches!(image.channels, 1 | 3) {
        let expected = "1 (grey) or 3 (red, green, blue)";
        return Err(Error::mismatch("channels of a folder of images", expected, image.channels));
    }
    let there = visible(folder)?;
    let part = |name: &str| Some(folder.join(name)).filter(|path| path.is_dir());
    let (classes, [train, test]) = match (part("train"), HELD_OUT_PARTS.into_iter().find_map(part)) {
        (Some(train), Some(test)) => in_parts(&train, &test)?,
        (Some(_), None) if there.iter().filter(|path| path.is_dir()).count() == 1 => {
            let why = "has `train`, and neither `val` nor `test` beside it; add one of them, or name the folder \
                       `train` itself, so that every tenth image is held out";
            return Err(fault(folder, why));
        }
        _ => in_one(folder)?,
    };
    if classes.len() < 2 {
        let why = format!(
            "has the single class `{}`; expected a folder for each of two or more",
            classes[0].to_string_lossy()
        );
        return Err(fault(folder, why));
    }
    let digits = digest(folder, [&train, &test]);
    let threads = rayon::ThreadPoolBuilder::new().thread_name(|i| format!("decode-{i}")).build();
    let threads = threads.map_err(|error| fault(folder, format!("no threads to decode it: {error}")))?;
    let (threads, classes) = (Arc::new(threads), classes.len() as u32);
    let set = |part: &str, files: Vec<Found>, scales| ImageFolder {
        name: format!("images-{part}-{digits}"),
        folder: folder.to_owned(),
        files: files.into_iter().map(|found| (within(folder, &found.file).into(), found.class)).collect(),
        image,
        classes,
        scales,
        threads: threads.clone(),
    };
    let mut train = set("train", train, Vec::new());
    train.scales = train.sampled_scales()?;
    let test = set("test", test, train.scales.clone());
    Ok(Split { train: Box::new(train), test: Box::new(test) })
}

fn fault(path: &Path, why: impl Into<String>) -> Error {
    Error::data(path, why.into())
}

/// Path of a file relative to a folder.
fn within<'a>(folder: &Path, file: &'a Path) -> &'a Path {
    file.strip_prefix(folder).expect("it was found in it")
}

/// Names of the training classes, and images of both parts.
type Parts = (Vec<OsString>, [Vec<Found>; 2]);

/// Reads a folder for each part.
fn in_parts(train: &Path, test: &Path) -> Result<Parts, Error> {
    let (mut names, mut parts) = (Vec::new(), [Vec::new(), Vec::new()]);
    for (name, files) in classes_of(train)? {
        parts[0].extend(files.into_iter().map(|found| Found { class: names.len() as u32, ..found }));
        names.push(name);
    }
    for (name, files) in classes_of(test)? {
        let class = names.binary_search(&name).map_err(|_| {
            let why =
                format!("is a class that `{}` does not have; add it there, or take it out", train.display());
            fault(&test.join(&name), why)
        })?;
        parts[1].extend(files.into_iter().map(|found| Found { class: class as u32, ..found }));
    }
    Ok((names, parts))
}

/// Reads a folder that holds the class folders themselves.
fn in_one(folder: &Path) -> Result<Parts, Error> {
    let (mut names, [mut train, mut test]) = (Vec::new(), [Vec::new(), Vec::new()]);
    for (name, files) in classes_of(folder)? {
        for (number, found) in (1..).zip(files) {
            let part = if number % HELD_OUT == 0 { &mut test } else { &mut train };
            part.push(Found { class: names.len() as u32, ..found });
        }
        names.push(name);
    }
    if test.is_empty() {
        let why = format!(
            "has no class of {HELD_OUT} images, of which one would be held out; add images, or make the folders \
             `train` and `val`"
        );
        return Err(fault(folder, why));
    }
    Ok((names, [train, test]))
}

/// Classes of a part in the order of their names, with their images in the order of their paths.
fn classes_of(part: &Path) -> Result<Vec<(OsString, Vec<Found>)>, Error> {
    let mut classes = Vec::new();
    for path in visible(part)? {
        if !metadata(&path)?.is_dir() {
            let why = "lies beside the class folders; put it into the folder of its class, or take it out";
            return Err(fault(&path, why));
        }
        let mut files = Vec::new();
        find(&path, &mut Vec::new(), &mut files)?;
        if files.is_empty() {
            return Err(fault(&path, "is a class without images; add JPEG or PNG files, or take it out"));
        }
        classes.push((path.file_name().expect("it was listed").to_owned(), files));
    }
    if classes.is_empty() {
        return Err(fault(part, "is empty; expected a folder of JPEG or PNG files for each class"));
    }
    Ok(classes)
}

/// Finds the images in a folder and its subfolders; `above` holds its parent folders.
fn find(folder: &Path, above: &mut Vec<PathBuf>, found: &mut Vec<Found>) -> Result<(), Error> {
    let whole = folder.canonicalize().map_err(|error| fault(folder, error.to_string()))?;
    if above.contains(&whole) {
        return Err(fault(folder, "is a link to a folder that it lies in; take it out"));
    }
    above.push(whole);
    for file in visible(folder)? {
        let facts = metadata(&file)?;
        let ending = file.extension().map(OsStr::to_ascii_lowercase).unwrap_or_default();
        if facts.is_dir() {
            find(&file, above, found)?;
        } else if !ENDINGS.iter().any(|known| ending == *known) {
            return Err(fault(&file, "is no .jpg, .jpeg or .png; convert it, or take it out"));
        } else if facts.len() == 0 {
            return Err(fault(&file, "the file is empty; put a whole image in its place, or take it out"));
        } else {
            found.push(Found { file, bytes: facts.len(), class: 0 });
        }
    }
    above.pop();
    Ok(())
}

/// Entries of a folder in the order of their names, without hidden ones.
fn visible(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |error: std::io::Error| {
        fault(folder, format!("{error}; expected a folder of JPEG or PNG files for each class"))
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

/// Metadata of a path; follows links.
fn metadata(path: &Path) -> Result<Metadata, Error> {
    std::fs::metadata(path).map_err(|error| {
        let link = if path.is_symlink() { " (it is a link)" } else { "" };
        fault(path, format!("cannot be read{link}: {error}; mend it, or take it out"))
    })
}

/// Checksum of the paths of all images and the sizes of their files.
fn digest(folder: &Path, parts: [&[Found]; 2]) -> Checksum {
    let mut sum = Summing::default();
    for found in parts.into_iter().flatten() {
        sum.add(within(folder, &found.file).as_os_str().as_encoded_bytes());
        sum.add(&[0]);
        sum.add(&found.bytes.to_le_bytes());
    }
    sum.sum()
}

/// An image of a file as bytes `[height][width][channels]`.
fn decoded(path: &Path, image: Shape) -> Result<Vec<u8>, Error> {
    let bytes = std::fs::read(path).map_err(|error| fault(path, error.to_string()))?;
    let failed = |why: String| {
        fault(path, format!("cannot be decoded: {why}; put a whole JPEG or PNG in its place, or take it out"))
    };
    if !jpeg_ends(&bytes) {
        return Err(failed("the JPEG is cut short".to_owned()));
    }
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let whole = reader.map_err(|error| failed(error.to_string()))?.decode();
    let whole = whole.map_err(|error| failed(error.to_string()))?;
    let whole = match image.channels {
        1 => DynamicImage::ImageLuma8(whole.into_luma8()),
        _ => DynamicImage::ImageRgb8(whole.into_rgb8()),
    };
    let [width, height, to_width, to_height] =
        [whole.width(), whole.height(), image.width, image.height].map(u64::from);
    // Nearest whole number of pixels, and at least one.
    let of = |one: u64, to: u64, other: u64| ((one * to + other / 2) / other).max(1);
    let (cut_width, cut_height) = if width * to_height > height * to_width {
        (of(height, to_width, to_height).min(width), height)
    } else {
        (width, of(width, to_height, to_width).min(height))
    };
    let [x, y] = [(width - cut_width) / 2, (height - cut_height) / 2].map(|n| n as u32);
    let cut = whole.crop_imm(x, y, cut_width as u32, cut_height as u32);
    Ok(cut.resize_exact(image.width, image.height, FilterType::Triangle).into_bytes())
}

/// Returns `true` if a JPEG has its end marker after its first scan, without which the decoder invents the rest; also for
/// other files. Segments before the scan, such as a thumbnail with its own end marker, are skipped.
fn jpeg_ends(bytes: &[u8]) -> bool {
    const START: [u8; 2] = [0xff, 0xd8];
    const SCAN: u8 = 0xda;
    const END: [u8; 2] = [0xff, 0xd9];
    if !bytes.starts_with(&START) {
        return true;
    }
    let mut rest = &bytes[START.len()..];
    while let [0xff, marker, after @ ..] = rest {
        match (marker, after) {
            (&SCAN, _) => return after.windows(END.len()).any(|two| two == END),
            // Padding before a marker.
            (0xff, _) => rest = &rest[1..],
            (_, [high, low, ..]) => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                rest = after.get(length..).unwrap_or_default();
            }
            _ => break,
        }
    }
    // The decoder reports the fault.
    true
}

impl ImageFolder {
    fn decoded(&self, index: usize) -> Result<Vec<u8>, Error> {
        decoded(&self.folder.join(&self.files[index].0), self.image)
    }

    /// Mean and 1 / standard deviation of each channel of the sample.
    fn sampled_scales(&self) -> Result<Vec<(f32, f32)>, Error> {
        let count = SAMPLED.min(self.files.len());
        let sums_of = |number: usize| {
            let mut sums = Sums::new(self.image.channels);
            sums.add(&self.decoded(number * self.files.len() / count)?);
            Ok(sums)
        };
        let each: Vec<_> = self.threads.install(|| (0..count).into_par_iter().map(sums_of).collect());
        let mut all = Sums::new(self.image.channels);
        // The first image that cannot be decoded is reported.
        each.into_iter().try_for_each(|sums: Result<Sums, Error>| sums.map(|sums| all.join(&sums)))?;
        Ok(all.scales())
    }
}

impl Dataset for ImageFolder {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn image(&self) -> Shape {
        self.image
    }

    fn classes(&self) -> u32 {
        self.classes
    }

    fn read(&self, index: usize, input: Input<'_>, labels: &mut [i32]) -> Result<(), Error> {
        normalise(&self.decoded(index)?, &self.scales, input.pixels());
        labels[0] = self.files[index].1 as i32;
        Ok(())
    }

    fn read_all(&self, samples: &[usize], input: Input<'_>, labels: &mut [i32]) -> Result<(), Error> {
        let places = input.pixels().par_chunks_exact_mut(self.image.elements() as usize).zip(labels);
        let read = |(sample, (pixels, label)): (&usize, (&mut [f32], &mut i32))| {
            self.read(*sample, Input::Pixels(pixels), std::slice::from_mut(label))
        };
        let each: Vec<_> = self.threads.install(|| samples.par_iter().zip(places).map(read).collect());
        // The first image that cannot be decoded is reported.
        each.into_iter().collect()
    }
}
