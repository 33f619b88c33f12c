//! Data sets read from files: what whole ones give, and what is said of those that are not.

use plimsoll_ir::network::Shape;
use plimsoll_runtime::RuntimeError;
use plimsoll_runtime::data::{Input, Split, cifar10, mnist, text_file};
use std::path::Path;

fn idx(dimensions: &[u32], data: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, dimensions.len() as u8];
    dimensions.iter().for_each(|d| file.extend(d.to_be_bytes()));
    file.extend(data);
    file
}

/// A set of 3 training and 2 test images of 2x4.
fn write_mnist(folder: &Path) {
    for (name, count) in [("train", 3u8), ("t10k", 2)] {
        let pixels: Vec<u8> = (0..count * 8).collect();
        let labels: Vec<u8> = (0..count).map(|i| 9 - i).collect();
        write(folder, &format!("{name}-images-idx3-ubyte"), &idx(&[count.into(), 2, 4], &pixels));
        write(folder, &format!("{name}-labels-idx1-ubyte"), &idx(&[count.into()], &labels));
    }
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(folder.join(name), bytes).expect("a temporary folder can be written");
}

fn fails(outcome: Result<Split, RuntimeError>, expected: &[&str]) {
    let error = outcome.err().expect("the files are not whole").to_string();
    for part in expected {
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    }
}

#[test]
fn mnist_files_are_read_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path();
    fails(mnist(path), &["train-images-idx3-ubyte", "expected an IDX file"]);
    write_mnist(path);
    let split = mnist(path).expect("the files are whole");
    assert_eq!((split.train.len(), split.test.len()), (3, 2));
    assert_eq!(split.train.image(), Shape { height: 2, width: 4, channels: 1 });
    let mut pixels = [0.0; 8];
    let mut label = [-1];
    split.test.read(1, Input::Pixels(&mut pixels), &mut label);
    assert_eq!(label, [8]);
    // The training pixels are 0 to 23: mean 11.5, variance (24^2 - 1) / 12.
    let expected = (8.0 - 11.5) / f32::sqrt(575.0 / 12.0);
    assert!((pixels[0] - expected).abs() < 1e-5, "{} {expected}", pixels[0]);

    let check = |name: &str, bytes: &[u8], expected: &[&str]| {
        write_mnist(path);
        write(path, name, bytes);
        fails(mnist(path), expected);
    };
    let images = "train-images-idx3-ubyte";
    let whole = idx(&[3, 2, 4], &[0; 24]);
    check(images, &whole[..whole.len() - 1], &[images, "cut short", "take 40 bytes, and it has 39"]);
    check(images, &whole[..9], &["cut short", "header takes 16 bytes, and it has 9"]);
    check(images, &[], &["is empty"]);
    check(images, &[&whole[..], &[0]].concat(), &["too long", "it has 41"]);
    check(images, b"hello world, this is text", &["starts with", "IDX"]);
    check(images, &[0x1f, 0x8b, 8, 0], &["compressed", "gunzip"]);
    check(images, &idx(&[0, 2, 4], &[]), &["dimension of 0"]);
    check(images, &idx(&[u32::MAX; 3], &[1]), &["cut short"]);
    check("train-labels-idx1-ubyte", &idx(&[3], &[1, 10, 2]), &["label 10 of record 1", "0 to 9"]);
    check("t10k-labels-idx1-ubyte", &idx(&[1], &[1]), &["1 labels for 2 images"]);
    check("t10k-images-idx3-ubyte", &idx(&[2, 4, 2], &[0; 16]), &["expected 2x4x1, found 4x2x1"]);
    write_mnist(path);
    std::fs::rename(path.join(images), path.join(format!("{images}.gz"))).expect("it can be renamed");
    fails(mnist(path), &["gunzip -k"]);
}

#[test]
fn cifar_files_are_read_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path();
    let names: Vec<String> =
        (1..=5).map(|i| format!("data_batch_{i}.bin")).chain(["test_batch.bin".to_owned()]).collect();
    let mut record = vec![7u8];
    [10u8, 20, 30].iter().for_each(|channel| record.extend((0..1024).map(|i| channel + (i % 2) as u8)));
    let two = [record.clone(), record.clone()].concat();
    names.iter().for_each(|name| write(path, name, &two));
    let split = cifar10(path).expect("the files are whole");
    assert_eq!((split.train.len(), split.test.len()), (10, 2));
    assert_eq!(split.train.image(), Shape { height: 32, width: 32, channels: 3 });
    let mut pixels = [0.0; 3072];
    let mut label = [-1];
    split.train.read(9, Input::Pixels(&mut pixels), &mut label);
    assert_eq!(label, [7]);
    // Each channel alternates around its own mean by half, which is its deviation.
    assert_eq!(pixels[..6], [-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]);

    write(path, "data_batch_3.bin", &two[..4000]);
    fails(cifar10(path), &["data_batch_3.bin", "cut short", "record 1 ends at byte 6146, and it has 4000"]);
    let mut wrong = two.clone();
    wrong[3073] = 10;
    write(path, "data_batch_3.bin", &wrong);
    fails(cifar10(path), &["label 10 of record 1"]);
    write(path, "data_batch_3.bin", &[]);
    fails(cifar10(path), &["is empty"]);
}

#[test]
fn a_text_file_is_read_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path();
    let of = |length: u32| text_file(&path.join("text"), length);
    fails(of(1), &["`", "expected a text"]);
    write(path, "text", &"Übung macht den Meister. ".repeat(20).into_bytes());
    let split = of(10).expect("it is long enough");
    assert_eq!((split.train.len(), split.test.len(), split.train.classes()), (44, 4, 18));
    assert_eq!(split.train.image(), Shape { height: 10, width: 1, channels: 1 });
    fails(of(50), &["has 500 characters", "pieces of 50", "pieces of 1 to 49"]);
    fails(of(0), &["pieces of 1 to 49"]);
    write(path, "text", b"too short");
    fails(of(1), &["has 9 characters", "give a longer text"]);
    write(path, "text", b"ab\xffcd");
    fails(of(1), &["no text in UTF-8", "byte 2"]);
    write(path, "text", b"");
    fails(of(1), &["is empty"]);
}
