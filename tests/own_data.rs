//! Training on a folder of images and on a tokenised text, through the program.

use crate::program::{check, read_json};
use crate::study_folder::{by_hand, state, table};
use image::{ColorType, ImageFormat, save_buffer_with_format};
use std::fs;
use std::path::Path;

/// Writes a grey 8x8 picture: rows brighten in one class, columns in the other.
fn picture(folder: &Path, class: usize, number: usize) {
    let folder = folder.join(["columns", "rows"][class]);
    fs::create_dir_all(&folder).expect("a folder");
    let along = |i: usize| [i % 8, i / 8][class];
    let bytes: Vec<u8> = (0..64).map(|i| (along(i) * 20 + number % 97) as u8).collect();
    let file = folder.join(format!("{number:03}.png"));
    save_buffer_with_format(file, &bytes, 8, 8, ColorType::L8, ImageFormat::Png).expect("a file");
}

/// Returns a study with this many images in its folder, in two classes, with a rate that needs no warm-up.
fn study(images: usize) -> tempfile::TempDir {
    let folder = by_hand("mlp", "100%", |config| {
        config["data"] = "images:pictures".into();
        // A warm-up would depend on the number of epochs.
        config["learning_rate"] = serde_json::json!({"rate": 0.01, "rule": "linear", "base_batch": 256,
            "base_rate": 0.04, "warmup_iterations": 0});
    });
    (0..images).for_each(|number| picture(&folder.path().join("pictures"), number % 2, number / 2));
    folder
}

#[test]
fn a_folder_of_images_trains_alike_on_any_workers_and_goes_on() {
    // Of these, 260 are training images.
    let [whole, parts] = [(); 2].map(|()| study(288));
    let line = "--decay constant --global-batch 128";
    let of_whole = table(whole.path(), &format!("run study --epochs 8 {line}"));
    assert_eq!((&of_whole["iterations"], &of_whole["global_batch"]), (&16.into(), &128.into()), "{of_whole}");
    assert_eq!(of_whole["test_accuracy"], 1.0, "{of_whole}");
    check(parts.path(), &format!("run study --epochs 3 {line} --workers 2"), 0, &[]);
    check(parts.path(), "run study --epochs 8 --decay constant", 0, &[]);
    assert!(state(&whole) == state(&parts));

    // Training ends before it needs the image, and the error names the image.
    let rows = parts.path().join("pictures/rows/101.png");
    let size = fs::metadata(&rows).expect("it is there").len() as usize;
    let bytes = fs::read(&rows).expect("it is there");
    fs::write(&rows, vec![0; size]).expect("a file");
    let more = "run study --epochs 9 --decay constant";
    let says = ["rows/101.png", "cannot be decoded", "put a whole JPEG or PNG in its place"];
    check(parts.path(), more, 2, &says);
    fs::write(&rows, bytes).expect("a file");
    picture(&parts.path().join("pictures"), 1, 144);
    check(parts.path(), more, 2, &["data set to go on with", "images-train-"]);
}

/// With more images than mean and deviation are computed from, a damaged image is found when it is read; also by a worker that
/// is not the one that saves.
#[test]
fn a_spoilt_image_ends_the_training_of_all_workers_with_the_state_kept() {
    let line = "run study --epochs 2 --decay constant --global-batch 192";
    let whole = study(1400);
    check(whole.path(), line, 0, &[]);
    for workers in [1, 2, 3] {
        let spoilt = study(1400);
        let path = spoilt.path().join("pictures/columns/005.png");
        let bytes = fs::read(&path).expect("it is there");
        fs::write(&path, vec![0; bytes.len()]).expect("a file");
        let says = ["columns/005.png", "cannot be decoded", "is kept in", "goes on from there"];
        check(spoilt.path(), &format!("{line} --workers {workers}"), 2, &says);
        fs::write(&path, bytes).expect("a file");
        check(spoilt.path(), line, 0, &["going on from iteration"]);
        assert!(state(&whole) == state(&spoilt), "{workers} workers");
    }
}

#[test]
fn images_become_what_the_network_takes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    (0..20).for_each(|number| picture(&folder.path().join("pictures"), number % 2, number / 2));
    let tune = |rest: &str| {
        format!(
            "tune --device k40 --min-batch 8 --max-batch 8 --study study --data images:pictures --fresh {rest}"
        )
    };
    for (network, side) in [("--network resnet20", 32), ("--network mlp --image 12 --channels 3", 12)] {
        check(folder.path(), &tune(network), 0, &[]);
        let chosen = &read_json(&folder.path().join("study/chosen.config.json"))["network"];
        let found = (&chosen["image"], &chosen["channels"], &chosen["classes"]);
        assert_eq!(found, (&serde_json::json!([side, side]), &3.into(), &2.into()), "{network}");
    }
    let other = ["in 2 classes, the network is for 28x28x1 in 1"];
    check(folder.path(), &tune("--network mlp --classes 1"), 2, &other);
    check(folder.path(), &tune("--network lstm"), 2, &["`lstm` is for texts", "tokens:FILE"]);
    check(folder.path(), &tune("--channels 2"), 2, &["1 (grey) or 3 (red, green, blue)"]);
    check(folder.path(), "tune --device k40 --data images:", 2, &["`images:` names no file or folder"]);
    check(folder.path(), "tune --device k40 --data images:none", 2, &["none", "for each class"]);
}

#[test]
fn a_tokenised_text_is_trained_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tokens: Vec<u8> = (0..3000u32).flat_map(|i| ((i * i % 41) as u16).to_le_bytes()).collect();
    fs::write(folder.path().join("train.bin"), tokens).expect("a file");
    let verify = "verify --network lstm --image 16x1 --batch 2 --iterations 2 --data";
    check(folder.path(), &format!("{verify} tokens:train.bin"), 0, &[]);
    check(folder.path(), &format!("{verify} tokens:. --classes 50"), 0, &[]);
    let small = format!("{verify} tokens:train.bin --classes 30");
    check(folder.path(), &small, 2, &["train.bin", "at place", "is beyond the vocabulary of 30 tokens"]);
    check(folder.path(), "verify --network resnet20 --data tokens:train.bin", 2, &["is for images"]);
    check(folder.path(), &format!("{verify} tokens:none.bin"), 2, &["none.bin", "16-bit numbers"]);
}
