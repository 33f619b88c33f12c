//! Data sets read from files: contents of complete ones, and error messages for the others.

use image::{ColorType, ImageFormat, save_buffer_with_format};
use plimsoll_ir::network::Shape;
use plimsoll_runtime::Error;
use plimsoll_runtime::data::{Dataset, Input, Split, cifar10, image_folder, mnist, text_file, token_file};
use std::path::Path;

fn idx(dimensions: &[u32], data: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, dimensions.len() as u8];
    dimensions.iter().for_each(|d| file.extend(d.to_be_bytes()));
    file.extend(data);
    file
}

/// Writes a set of 3 training and 2 test images of 2x4.
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

fn fails(outcome: Result<Split, Error>, expected: &[&str]) {
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
    split.test.read(1, Input::Pixels(&mut pixels), &mut label).expect("it is in memory");
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
    split.train.read(9, Input::Pixels(&mut pixels), &mut label).expect("it is in memory");
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

/// Writes a picture of one colour.
fn picture(file: &Path, [width, height]: [u32; 2], colour: [u8; 3]) {
    std::fs::create_dir_all(file.parent().expect("it lies in a folder")).expect("a folder can be made");
    let bytes = colour.repeat((width * height) as usize);
    let format = if file.extension().is_some_and(|e| e.eq_ignore_ascii_case("png")) {
        ImageFormat::Png
    } else {
        ImageFormat::Jpeg
    };
    save_buffer_with_format(file, &bytes, width, height, ColorType::Rgb8, format).expect("it can be written");
}

fn sample(data: &dyn Dataset, index: usize) -> (Vec<f32>, i32) {
    let (mut pixels, mut label) = (vec![0.0; data.image().elements() as usize], [-1]);
    data.read(index, Input::Pixels(&mut pixels), &mut label).expect("it is whole");
    (pixels, label[0])
}

const COLOUR: Shape = Shape { height: 2, width: 2, channels: 3 };

#[test]
fn a_folder_of_images_holds_every_tenth_of_each_class_out() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path();
    for number in 0..20u8 {
        picture(&path.join(format!("ant/{number:02}.png")), [2, 2], [number, 100, 0]);
    }
    for number in 0..5u8 {
        picture(&path.join(format!("bee/deep/{number}.PNG")), [2, 2], [200, 100, number]);
    }
    write(path, ".hidden", b"is not looked at");
    let split = image_folder(path, COLOUR).expect("it is whole");
    assert_eq!((split.train.len(), split.test.len(), split.train.classes()), (23, 2, 2));
    let labels: Vec<i32> = (0..23).map(|i| sample(&*split.train, i).1).collect();
    assert_eq!(labels, [vec![0; 18], vec![1; 5]].concat(), "classes in the order of their names");
    // The tenth and the twentieth; the second channel never changes.
    let [tenth, twentieth] = [0, 1].map(|i| sample(&*split.test, i).0);
    assert_eq!((tenth[1], twentieth[1]), (0.0, 0.0));
    let reds: Vec<f64> = (0..20).filter(|n| n % 10 != 9).map(f64::from).chain([200.0; 5]).collect();
    let mean = reds.iter().sum::<f64>() / 23.0;
    let deviation = (reds.iter().map(|r| r * r).sum::<f64>() / 23.0 - mean * mean).sqrt();
    let expected = |red: f32| (red - mean as f32) * (1.0 / deviation) as f32;
    assert_eq!((tenth[0], twentieth[0]), (expected(9.0), expected(19.0)), "to the bit");
    // Reading all together gives the same as one by one.
    let (mut pixels, mut labels) = (vec![0.0; 23 * 12], vec![-1; 23]);
    let order: Vec<usize> = (0..23).rev().collect();
    split.train.read_all(&order, Input::Pixels(&mut pixels), &mut labels).expect("they are whole");
    for (place, index) in order.iter().enumerate() {
        let one = (pixels[place * 12..(place + 1) * 12].to_vec(), labels[place]);
        assert_eq!(one, sample(&*split.train, *index));
    }
}

#[test]
fn an_image_becomes_the_size_and_the_channels_of_the_network() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path();
    for part in ["train", "val"] {
        picture(&path.join(part).join("black/0.png"), [2, 2], [0; 3]);
        picture(&path.join(part).join("white/0.png"), [2, 2], [255; 3]);
    }
    write(path, "words.txt", b"is not looked at beside the parts");
    let save = |name: &str, [width, height]: [u32; 2], kind: ColorType, bytes: &[u8]| {
        let file = path.join("val/white").join(name);
        save_buffer_with_format(file, bytes, width, height, kind, ImageFormat::Png)
            .expect("it can be written");
    };
    // Of 8x4 pixels the middle 4x4 stays; each new pixel combines four old ones and those around.
    let row = [[9u8; 2], [255; 2], [0; 2], [9; 2]].concat();
    save("1.png", [8, 4], ColorType::L8, &row.repeat(4));
    save("2.png", [2, 2], ColorType::Rgba8, &[255, 0, 0, 7].repeat(4));
    let sixteen: Vec<u8> = [0xffffu16, 0x8000, 0, 0xffff].into_iter().flat_map(u16::to_ne_bytes).collect();
    save("3.png", [2, 2], ColorType::L16, &sixteen);
    picture(&path.join("val/white/4.jpg"), [2, 2], [255; 3]);
    let split = image_folder(path, COLOUR).expect("it is whole");
    assert_eq!((split.train.len(), split.test.len()), (2, 6));
    // Half of the training pixels are 0, half 255: mean and deviation are 127.5.
    let bytes = |index: usize| -> Vec<f32> {
        sample(&*split.test, index).0.iter().map(|p| (p * 127.5 + 127.5).round()).collect()
    };
    assert_eq!(bytes(1), [255.0; 12]);
    let scaled = bytes(2);
    assert!(scaled[0] > 180.0 && scaled[3] < 75.0 && scaled[..6] == scaled[6..], "{scaled:?}");
    assert_eq!(bytes(3), [255.0, 0.0, 0.0].repeat(4), "what is transparent is left out");
    assert_eq!(bytes(4), [[255.0; 3], [128.0; 3], [0.0; 3], [255.0; 3]].concat());
    assert_eq!(bytes(5), [255.0; 12]);
    let grey = image_folder(path, Shape { channels: 1, ..COLOUR }).expect("it is whole");
    let red = sample(&*grey.test, 3).0[0] * 127.5 + 127.5;
    assert_eq!(red.round(), 54.0, "0.2126 of 255");
    fails(image_folder(path, Shape { channels: 4, ..COLOUR }), &["1 (grey) or 3", "found 4"]);
}

#[test]
fn a_folder_of_images_that_is_not_whole_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path();
    let of = || image_folder(path, COLOUR);
    fails(
        image_folder(&path.join("none"), COLOUR),
        &["none`", "a folder of JPEG or PNG files for each class"],
    );
    fails(of(), &["is empty", "for each class"]);
    for number in 0..10 {
        picture(&path.join(format!("ant/{number}.jpg")), [40, 40], [number * 20, 50, 90]);
    }
    fails(of(), &["single class `ant`"]);
    std::fs::create_dir(path.join("bee")).expect("a folder can be made");
    fails(of(), &["bee`: is a class without images"]);
    picture(&path.join("bee/0.png"), [40, 40], [1, 2, 3]);
    let named = |split: Split| (split.train.name().to_owned(), split.test.name().to_owned());
    let whole = named(of().expect("it is whole"));
    assert!(whole.0.starts_with("images-train-") && whole.1.starts_with("images-test-"), "{whole:?}");

    write(path, "stray.png", b"x");
    fails(of(), &["stray.png`", "beside the class folders"]);
    std::fs::remove_file(path.join("stray.png")).expect("it was written");
    let spoilt = |name: &str, bytes: &[u8], expected: &[&str]| {
        write(path, name, bytes);
        fails(of(), expected);
        std::fs::remove_file(path.join(name)).expect("it was written");
    };
    spoilt("bee/1.webp", b"x", &["1.webp`", "convert it"]);
    spoilt("bee/1.png", b"", &["1.png`", "the file is empty"]);
    spoilt("bee/1.png", b"no image", &["1.png`", "cannot be decoded"]);
    let jpeg = std::fs::read(path.join("ant/3.jpg")).expect("it was written");
    spoilt("bee/1.jpg", &jpeg[..jpeg.len() - 20], &["1.jpg`", "cut short", "take it out"]);
    spoilt("bee/1.jpg", &jpeg[..30], &["1.jpg`", "cannot be decoded"]);
    let png = std::fs::read(path.join("bee/0.png")).expect("it was written");
    spoilt("bee/1.png", &png[..png.len() - 20], &["1.png`", "cannot be decoded"]);
    std::os::unix::fs::symlink(path, path.join("bee/loop")).expect("a link can be made");
    fails(of(), &["loop/bee`", "a folder that it lies in"]);
    std::fs::remove_file(path.join("bee/loop")).expect("it was made");
    std::os::unix::fs::symlink("nowhere", path.join("bee/2.png")).expect("a link can be made");
    fails(of(), &["2.png`", "it is a link"]);
    std::fs::remove_file(path.join("bee/2.png")).expect("it was made");
    assert_eq!(named(of().expect("it is whole")), whole);
    picture(&path.join("bee/1.png"), [40, 40], [1, 2, 3]);
    assert_ne!(named(of().expect("it is whole")), whole, "the name tells one set from another");

    let parts = tempfile::tempdir().expect("there is a temporary folder");
    let of = || image_folder(parts.path(), COLOUR);
    picture(&parts.path().join("train/ant/0.png"), [2, 2], [0; 3]);
    picture(&parts.path().join("train/bee/0.png"), [2, 2], [9; 3]);
    fails(of(), &["neither `val` nor `test`", "every tenth"]);
    fails(image_folder(&parts.path().join("train"), COLOUR), &["no class of 10 images"]);
    picture(&parts.path().join("test/cow/0.png"), [2, 2], [9; 3]);
    fails(of(), &["test/cow`", "is a class that", "train` does not have"]);
}

#[test]
fn an_image_that_is_spoilt_later_is_told_where_it_is_read() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path();
    (0..12).for_each(|i| picture(&path.join(format!("{}/{i:02}.png", ["a", "b"][i % 2])), [2, 2], [9; 3]));
    (0..10).for_each(|i| picture(&path.join(format!("a/x{i}.png")), [2, 2], [7; 3]));
    let split = image_folder(path, COLOUR).expect("it is whole");
    write(path, "a/02.png", b"spoilt");
    write(path, "a/04.png", b"spoilt");
    let (mut pixels, mut labels) = (vec![0.0; 48], vec![-1; 4]);
    let read = split.train.read_all(&[0, 1, 2, 3], Input::Pixels(&mut pixels), &mut labels);
    let error = read.expect_err("two are spoilt").to_string();
    assert!(error.contains("a/02.png`: cannot be decoded"), "{error}");
}

#[test]
fn tokens_are_read_piece_by_piece() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path();
    let bytes =
        |tokens: &mut dyn Iterator<Item = u16>| tokens.flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let of = |name: &str, length, vocabulary| token_file(&path.join(name), length, vocabulary);
    fails(of("text.bin", 4, None), &["text.bin`", "expected tokens"]);
    write(path, "text.bin", &bytes(&mut (0..100).map(|i| 500 + i)));
    let split = of("text.bin", 4, None).expect("it is long enough");
    assert_eq!((split.train.len(), split.test.len(), split.train.classes()), (22, 2, 600));
    let piece = |data: &dyn Dataset, index| {
        let (mut tokens, mut labels) = ([-1; 4], [-1; 4]);
        data.read(index, Input::Tokens(&mut tokens), &mut labels).map(|()| (tokens, labels))
    };
    assert_eq!(piece(&*split.train, 1).expect("it is there"), ([504, 505, 506, 507], [505, 506, 507, 508]));
    assert_eq!(piece(&*split.test, 1).expect("it is there"), ([594, 595, 596, 597], [595, 596, 597, 598]));
    let small = of("text.bin", 4, Some(506)).expect("tokens are looked at when they are read");
    assert_eq!((small.train.classes(), small.train.holds_tokens()), (506, true));
    assert!(piece(&*small.train, 0).is_ok());
    let error = piece(&*small.train, 1).expect_err("506 is beyond it").to_string();
    assert!(error.contains("token 506 at place 6 is beyond the vocabulary of 506"), "{error}");

    write(path, "train.bin", &bytes(&mut (0..50)));
    write(path, "val.bin", &bytes(&mut (70..80)));
    for name in ["", "train.bin"] {
        let split = of(name, 4, None).expect("both are there");
        assert_eq!((split.train.len(), split.test.len(), split.train.classes()), (12, 2, 80));
        assert_eq!(piece(&*split.test, 0).expect("it is there"), ([70, 71, 72, 73], [71, 72, 73, 74]));
    }
    fails(of("", 12, None), &["val.bin`", "pieces of 1 to 9"]);
    fails(of("text.bin", 0, None), &["pieces of 1 to"]);
    let before = of("text.bin", 4, None).expect("it is there").train.name().to_owned();
    write(path, "text.bin", &bytes(&mut (0..100).map(|i| 501 + i)));
    assert_ne!(of("text.bin", 4, None).expect("it is there").train.name(), before);
    write(path, "text.bin", &[1, 2, 3]);
    fails(of("text.bin", 1, None), &["has 3 bytes, an odd number"]);
    write(path, "text.bin", &[]);
    fails(of("text.bin", 1, None), &["is empty"]);
}

/// An array as NumPy writes it: its header is padded so that the numbers begin at a multiple of 64.
fn npy(version: u8, descr: &str, shape: &str, numbers: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let before = 8 + if version == 1 { 2 } else { 4 };
    let length = (before + text.len() + 1).next_multiple_of(64) - before;
    let text = format!("{text:<width$}\n", width = length - 1);
    let length = &(length as u32).to_le_bytes()[..before - 8];
    [b"\x93NUMPY", &[version, 0][..], length, text.as_bytes(), numbers].concat()
}

#[test]
fn arrays_of_tokens_are_read_as_raw_numbers_are() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path();
    let of = |name: &str, vocabulary| token_file(&path.join(name), 4, vocabulary);
    let tokens = || (0..100_i64).map(|i| 500 + i);
    let raw: Vec<u8> = tokens().flat_map(|token| (token as u16).to_le_bytes()).collect();
    write(path, "text.bin", &raw);
    let all = |split: &Split| {
        let set = |data: &dyn Dataset| {
            let (mut tokens, mut labels) = (vec![-1; 4 * data.len()], vec![-1; 4 * data.len()]);
            let samples: Vec<usize> = (0..data.len()).collect();
            data.read_all(&samples, Input::Tokens(&mut tokens), &mut labels).expect("they are there");
            (tokens, labels, data.classes())
        };
        [set(&*split.train), set(&*split.test)]
    };
    let expected = all(&of("text.bin", None).expect("it is long enough"));
    assert_eq!(expected[0].0[..5], [500, 501, 502, 503, 504]);
    let check = |version: u8, descr: &str, numbers: &[u8]| {
        write(path, "text.npy", &npy(version, descr, "(100,)", numbers));
        let split = of("text.npy", None).expect("it is an array");
        assert_eq!(all(&split), expected, "{descr}");
    };
    check(1, "<u2", &raw);
    check(2, "<u2", &raw);
    check(1, "<u4", &tokens().flat_map(|token| (token as u32).to_le_bytes()).collect::<Vec<u8>>());
    check(1, "<i4", &tokens().flat_map(|token| (token as i32).to_le_bytes()).collect::<Vec<u8>>());
    check(1, "<i8", &tokens().flat_map(i64::to_le_bytes).collect::<Vec<u8>>());
    // Tokens that do not fit 16 bits; the last is held out.
    let wide = [0, 70_000, 3, 4, 5, 6, 7, 8, 9, 2_000_000, 1, 2].map(u32::to_le_bytes).concat();
    write(path, "train.npy", &npy(1, "<u4", "(12,)", &wide));
    write(path, "val.npy", &npy(1, "<u4", "(12,)", &wide));
    for name in ["", "train.npy"] {
        let split = of(name, None).expect("both are there");
        assert_eq!((split.train.len(), split.test.len(), split.train.classes()), (2, 2, 2_000_001), "{name}");
    }
    write(path, "train.bin", &raw);
    assert_eq!(of("", None).expect("the raw numbers come first").train.classes(), 600);
}

#[test]
fn arrays_that_hold_no_text_are_named() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path();
    let of = |bytes: &[u8], vocabulary| {
        write(path, "text.npy", bytes);
        token_file(&path.join("text.npy"), 4, vocabulary)
    };
    let sound = npy(1, "<u4", "(100,)", &[0; 400]);
    assert!(of(&sound, None).is_ok());
    let cut = |bytes: usize| of(&sound[..bytes], None);
    fails(cut(5), &["text.npy`", "is no array of NumPy", "numpy.save"]);
    fails(cut(7), &["is cut short within its header"]);
    fails(cut(60), &["is cut short within its header"]);
    fails(cut(527), &["is cut short: its header says 100 numbers, and 527 bytes are there"]);
    fails(of(&[&sound[..], &[0; 3]].concat(), None), &["has 3 bytes behind its array"]);
    fails(of(&[1; 200], None), &["is no array of NumPy"]);
    fails(of(&npy(3, "<u4", "(100,)", &[0; 400]), None), &["is of version 3.0", "1.0 and 2.0 are read"]);
    for descr in ["<f4", ">u4", "<i2", "|O", "|u1", "<U7"] {
        let says = format!("holds numbers of type `{descr}`");
        fails(of(&npy(1, descr, "(100,)", &[0; 400]), None), &[&says, ".astype('<u4')"]);
    }
    fails(of(&npy(1, "<u4", "(4, 25)", &[0; 400]), None), &["is an array of 2 dimensions", ".reshape(-1)"]);
    fails(of(&npy(1, "<u4", "()", &[0; 4]), None), &["is an array of 0 dimensions"]);
    fails(of(&npy(1, "<u4", "(0,)", &[]), None), &["is an array without numbers"]);
    fails(
        of(&npy(1, "<u4", "(18446744073709551615,)", &[]), None),
        &["is cut short: its header says 18446744073709551615"],
    );
    fails(of(&npy(1, "<u4", "(100)", &[0; 400]), None), &["has a header that is not NumPy's, at byte"]);
    let mut long = npy(2, "<u4", "(100,)", &[0; 400]);
    long[11] = 255;
    fails(of(&long, None), &["says that its header has 42", "bytes"]);
    let with = |token: i64| [vec![0; 8 * 99], token.to_le_bytes().to_vec()].concat();
    fails(
        of(&npy(1, "<i8", "(100,)", &with(-1)), None),
        &["-1 at place 99 is no token", "from 0 to 2147483646"],
    );
    fails(of(&npy(1, "<i8", "(100,)", &with(1 << 31)), None), &["2147483648 at place 99 is no token"]);
    // If a vocabulary is given, such a token is found when it is read.
    let late = [vec![0; 8 * 98], 77_i64.to_le_bytes().to_vec(), vec![0; 8]].concat();
    let split =
        of(&npy(1, "<i8", "(100,)", &late), Some(50)).expect("tokens are looked at when they are read");
    let (mut tokens, mut labels) = ([-1; 4], [-1; 4]);
    let error = split.test.read(1, Input::Tokens(&mut tokens), &mut labels).expect_err("77 is beyond it");
    assert!(error.to_string().contains("token 77 at place 98 is beyond the vocabulary of 50"), "{error}");
    std::fs::rename(path.join("text.npy"), path.join("text.npz")).expect("it is there");
    fails(token_file(&path.join("text.npz"), 4, None), &["is an archive of arrays"]);
}
