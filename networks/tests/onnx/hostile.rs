//! Files that are damaged or malicious: each gives an error in words, without a panic, and soon.

use crate::onnx::export;
use crate::onnx::judge::{judge_bytes, read_bytes};
use crate::onnx::writer::{
    bytes, file, input, integers, ints, node, number, output, small, tensor, text, weight,
};
use std::time::{Duration, Instant};

/// That a file is refused with these words.
fn refused(file: &[u8], expected: &str) {
    assert!(!judge_bytes(file), "`{expected}`: it was read");
    let text = read_bytes(file).expect_err("it is refused").to_string();
    assert!(text.contains(expected), "`{expected}` is not in: {text}");
}

#[test]
fn bytes_that_are_no_file_are_refused() {
    refused(b"", "it holds no graph");
    refused(b"PK\x03\x04 this is a zip", "no whole ONNX file");
    refused(&[0xff; 4096], "no whole ONNX file");
    refused(&number(1, 8), "it holds no graph");
    refused(&[number(1, 8), bytes(7, &small().concat())].concat(), "which version of ONNX's operators");
    refused(&[bytes(8, &number(2, 3)), bytes(7, &small().concat())].concat(), "export with an opset version");
    refused(&[bytes(8, &number(2, i64::MIN)), bytes(7, &[])].concat(), "export with an opset version");
}

#[test]
fn a_file_cut_anywhere_is_refused_or_read() {
    let whole = file(&small());
    assert!(judge_bytes(&whole));
    let read = (0..whole.len()).filter(|length| judge_bytes(&whole[..*length])).count();
    assert_eq!(read, 0, "the graph is the last field, so that every cut is noticed");
    let export = export("resnet18.dynamo.eval");
    for length in (0..export.len()).step_by(97) {
        judge_bytes(&export[..length]);
    }
}

#[test]
fn graphs_that_contradict_themselves_are_refused() {
    // The small network with one of its parts replaced, or one more.
    let with = |at: usize, part: Vec<u8>| {
        let mut parts = small();
        match parts.get_mut(at) {
            Some(old) => *old = part,
            None => parts.push(part),
        }
        file(&parts)
    };
    let conv = |inputs: &[&str], more: &[Vec<u8>]| node("Conv", inputs, &["a"], more);
    let filters = |dims: &[i64]| with(1, weight("c.weight", dims));
    refused(&with(3, conv(&["b", "c.weight"], &[])), "which only it or a later node makes");
    refused(&with(3, conv(&["a", "c.weight"], &[])), "which only it or a later node makes");
    refused(&with(3, conv(&["nothing", "c.weight"], &[])), "which nothing makes");
    refused(&with(3, conv(&["x"], &[])), "Conv of what depends on the input");
    refused(&with(3, conv(&[], &[])), "needs no input");
    refused(&with(99, node("Relu", &["a"], &["b"], &[])), "is there already");
    refused(&with(99, weight("f.weight", &[5, 4])), "two initialisers have this name");
    refused(&with(99, input("x", 1, &[2, 2])), "two inputs have this name");
    refused(&with(7, output("z")), "nothing makes it");
    refused(&with(7, output("x")), "needs no input");
    refused(&with(0, input("x", 1, &[1, 0, 8, 8])), "a dimension is 0");
    refused(&with(0, input("x", 1, &[1, 1 << 40, 8, 8])), "dimensions are from 1 to 2^32 - 1");
    refused(&with(0, input("x", 1, &[3, 8, 8])), "Conv of what is not (batch, channels, rows, columns)");
    refused(&filters(&[4, 3, 3]), "Conv over 1 dimensions");
    refused(&filters(&[4, 2, 3, 3]), "do not fit a window of 3x3 over 3 channels");
    refused(&filters(&[0, 3, 3, 3]), "its number of filters is 0");
    refused(&filters(&[-4, 3, 3, 3]), "a dimension is -4");
    refused(&filters(&[1 << 40, 1 << 40, 3, 3]), "more than 2^46 elements");
    refused(&filters(&[1; 40]), "it has 40 dimensions");
    refused(&filters(&[4, 3, 1 << 20, 1 << 20]), "does not fit its input");
    refused(&filters(&[1 << 32, 3, 3, 3]), "from 1 to 2^32 - 1");
    refused(&with(3, conv(&["x", "c.weight"], &[ints("strides", &[0, 1])])), "strides is 0");
    refused(&with(3, conv(&["x", "c.weight"], &[ints("strides", &[1])])), "strides [1] are not two numbers");
    refused(&with(3, conv(&["x", "c.weight"], &[ints("pads", &[-1, 0, -1, 0])])), "pads [-1, 0, -1, 0]");
    refused(&with(3, conv(&["x", "c.weight"], &[ints("pads", &[1, 1])])), "pads [1, 1]");
    refused(&with(3, conv(&["x", "c.weight"], &[ints("kernel_shape", &[5, 5])])), "do not fit a window");
    refused(
        &with(3, conv(&["x", "c.weight"], &[ints("group", &[1])])),
        "attribute `group` is of type 7, not 2",
    );
    refused(&with(2, weight("f.weight", &[5, 7])), "4 values times a weight of [5, 7]");
    refused(&with(2, weight("f.weight", &[5])), "a product with a weight of [5]");
    refused(
        &with(5, node("Flatten", &["b"], &["c"], &[crate::onnx::writer::int("axis", 9)])),
        "axis 9 of a tensor with 4",
    );
}

#[test]
fn tensors_that_are_not_what_they_say_are_refused() {
    let with = |part: Vec<u8>| {
        let mut parts = small();
        parts[1] = part;
        file(&parts)
    };
    let filters = |data_type: i64, more: &[u8]| with(tensor("c.weight", &[4, 3, 3, 3], data_type, more));
    let external = |entries: &[(&str, &str)]| {
        let all = entries.iter().flat_map(|(key, value)| bytes(13, &[text(1, key), text(2, value)].concat()));
        [all.collect::<Vec<u8>>(), number(14, 1)].concat()
    };
    refused(&filters(1, &bytes(9, &[0; 431])), "it holds 431 bytes of data");
    refused(&filters(1, &bytes(4, &[0; 8])), "it holds 2 numbers of data");
    refused(&filters(1, &[bytes(9, &[0; 432]), bytes(4, &[0; 432])].concat()), "its data are there twice");
    refused(&filters(99, &[]), "its elements are of type 99");
    refused(&filters(8, &[]), "its elements are of type 8");
    let paths = [
        "/etc/passwd",
        "../weights.bin",
        "a/../../b",
        "C:\\weights",
        "..\\weights",
        "./x",
        "a//b",
        "a\0b",
        "",
    ];
    for path in paths {
        let expected = if path.is_empty() { "which is not named" } else { "only files in the folder" };
        refused(&filters(1, &external(&[("location", path)])), expected);
    }
    refused(&filters(1, &external(&[])), "which is not named");
    refused(&filters(1, &external(&[("location", "w"), ("length", "-1")])), "which is no number of bytes");
    refused(&filters(1, &external(&[("location", "w"), ("length", "99999999999999")])), "are no tensor of");
    refused(
        &filters(1, &external(&[("location", "w"), ("offset", "18446744073709551615")])),
        "are no tensor of",
    );
    // What lies in the folder is not looked at where only its shape is asked for.
    assert!(judge_bytes(&filters(1, &external(&[("location", "weights/w.bin")]))));
    // A shape must be there.
    let mut parts = small();
    parts[5] = node("Reshape", &["b", "shape"], &["c"], &[]);
    let reshaped = |shape: Vec<u8>| file(&[parts.clone(), vec![shape]].concat());
    assert!(judge_bytes(&reshaped(integers("shape", &[-1, 4]))));
    refused(&reshaped(tensor("shape", &[2], 7, &[])), "needs the numbers of `shape`");
    refused(
        &reshaped(tensor("shape", &[2], 7, &external(&[("location", "s")]))),
        "cannot read `s`: there is no other file",
    );
    refused(&reshaped(integers("shape", &[3, 5])), "cannot lie as [3, 5]");
    refused(&reshaped(integers("shape", &[-1, -1])), "cannot lie as");
    refused(&reshaped(integers("shape", &[i64::MIN, 4])), "cannot lie as");
    refused(&reshaped(integers("shape", &[i64::MAX, i64::MAX])), "cannot lie as");
    refused(&reshaped(integers("shape", &[2; 30])), "cannot lie as");
    refused(&reshaped(integers("shape", &[4, -1])), "mixes what belongs together");
}

#[test]
fn slices_from_and_to_anywhere_are_taken_or_refused() {
    // The shape is what a slice leaves of [4, 2, 1], before -1; a slice of nothing leaves a shape of -1 alone.
    let sliced = |of: &[i64], start: i64, end: i64, step: i64| {
        let mut parts = small();
        parts[5] = node("Reshape", &["b", "shape"], &["c"], &[]);
        let limits = [("start", start), ("end", end), ("axis", 0), ("step", step)];
        let limits = limits.map(|(name, value)| integers(name, &[value]));
        let nodes = [
            integers("of", of),
            integers("rest", &[-1]),
            node("Slice", &["of", "start", "end", "axis", "step"], &["part"], &[]),
            node("Concat", &["rest", "part"], &["shape"], &[crate::onnx::writer::int("axis", 0)]),
        ];
        file(&[&nodes[..], &limits, &parts].concat())
    };
    let check = |of: &[i64], limits: [i64; 3], left: &[i64]| {
        let [start, end, step] = limits;
        // Samples of four channels, 509 of them: what is left must lay them out as the product's four inputs.
        let fits = left == [4] || left == [1, 4];
        assert_eq!(judge_bytes(&sliced(of, start, end, step)), fits, "{limits:?} of {of:?}");
    };
    const ENDS: [i64; 2] = [i64::MIN, i64::MAX];
    for start in ENDS.into_iter().chain(-4..4) {
        for end in ENDS.into_iter().chain(-4..4) {
            for step in ENDS.into_iter().chain([-2, -1, 1, 2]) {
                check(&[], [start, end, step], &[]);
                // As Python has it, but for a start that lies before all when it goes back: that is the first.
                let inside = |at: i64| if at < 0 { at.saturating_add(3) } else { at };
                let mut left = Vec::new();
                let mut at = inside(start).clamp(0, if step > 0 { 3 } else { 2 });
                while (0..3).contains(&at) && (if step > 0 { at < inside(end) } else { at > inside(end) }) {
                    left.push([4, 2, 1][at as usize]);
                    at = at.saturating_add(step);
                }
                check(&[4, 2, 1], [start, end, step], &left);
            }
        }
    }
    // A shape to which the last position of nothing, and those before it, are joined: a file for the fuzzer to begin with.
    assert!(judge_bytes(&export("slice-of-nothing")));
}

#[test]
fn files_that_ask_for_much_are_refused_soon() {
    let start = Instant::now();
    // Nodes without anything, of two bytes each.
    refused(&bytes(7, &bytes(1, &[]).repeat(1 << 20)), "more than 1048576 fields");
    refused(&bytes(7, &bytes(5, &bytes(7, &vec![0; 1 << 26]))), "bytes of integers");
    let computed = |nodes: &[Vec<u8>]| {
        let mut parts = small();
        parts[5] = node("Reshape", &["b", "shape"], &["c"], &[]);
        file(&[nodes.to_vec(), parts].concat())
    };
    // A shape of a huge number of ones.
    let huge = [integers("n", &[1 << 40]), node("ConstantOfShape", &["n"], &["shape"], &[])];
    refused(&computed(&huge), "constant numbers would have to be computed");
    let bounds = |limit: i64| {
        [("from", 0), ("to", limit), ("by", 1)]
            .map(|(name, value)| tensor(name, &[], 7, &bytes(9, &i64::to_le_bytes(value))))
    };
    let range = |limit: i64| {
        let node = node("Range", &["from", "to", "by"], &["shape"], &[]);
        computed(&[&bounds(limit)[..], &[node]].concat())
    };
    refused(&range(i64::MAX), "it counts from 0 to");
    refused(&range(1 << 24), "constant numbers would have to be computed");
    // Each number is made of the one before twice.
    let mut doubled = vec![integers("n0", &[1, 1])];
    doubled.extend((0..4000).map(|i| {
        let (from, to) =
            (format!("n{i}"), if i == 3999 { "shape".to_owned() } else { format!("n{}", i + 1) });
        node("Add", &[&from, &from], &[&to], &[])
    }));
    refused(&computed(&doubled), "constants one of the other");
    // Many layers of one name, and names that are long or move the cursor.
    let mut parts = small();
    parts[7] = output("r20000");
    let named = |i: i32| {
        let (from, to) = (if i == 0 { "y".to_owned() } else { format!("r{i}") }, format!("r{}", i + 1));
        node("Relu", &[&from], &[&to], &[text(3, "same")])
    };
    parts.extend((0..20000).map(named));
    assert!(judge_bytes(&file(&parts)));
    parts[7] = output(&"\u{1b}[2J".repeat(100_000));
    refused(&file(&parts), "?[2J?[2J");
    // Attributes of one node, each with a name of its own.
    let mut parts = small();
    let attributes: Vec<Vec<u8>> = (0..300_000).map(|i| bytes(5, &text(1, &format!("a{i}")))).collect();
    parts[5] = node("Flatten", &["b"], &["c"], &attributes);
    refused(&file(&parts), "Flatten with attribute a0");
    // Messages within messages, much deeper than any file.
    let mut deep = Vec::new();
    for _ in 0..5000 {
        deep = bytes(6, &bytes(1, &bytes(5, &deep)));
    }
    let mut parts = small();
    parts[5] = node("If", &["b"], &["c"], &[bytes(5, &[text(1, "then_branch"), deep].concat())]);
    refused(&file(&parts), "operator If (node `c`)");
    assert!(start.elapsed() < Duration::from_secs(20), "it took {:?}", start.elapsed());
}

/// Numbers that follow from a seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }
}

/// Changes some bytes of a file: others in their place, runs of them left out, put in, or repeated elsewhere.
fn mutated(file: &[u8], draws: &mut Draws) -> Vec<u8> {
    let mut all = file.to_vec();
    for _ in 0..=draws.below(3) {
        let at = draws.below(all.len());
        match draws.below(6) {
            0..=2 => all[at] = [0, 1, 2, 127, 128, 255, all[at] ^ 1, all[at].wrapping_add(1)][draws.below(8)],
            3 => all[at] = draws.below(256) as u8,
            4 => {
                let end = (at + draws.below(9)).min(all.len());
                all.drain(at..end);
            }
            _ => {
                let from = draws.below(file.len());
                let run = file[from..(from + draws.below(40)).min(file.len())].to_vec();
                all.splice(at..at, run);
            }
        }
        if all.is_empty() {
            return all;
        }
    }
    all
}

#[test]
fn changed_bytes_give_an_error_or_a_sound_network() {
    let mut draws = Draws(0x9e37_79b9_7f4a_7c15);
    let small = file(&small());
    let files =
        [small, export("resnet18.dynamo.eval"), export("encoder.dynamo.eval"), export("gpt.dynamo.eval")];
    let start = Instant::now();
    let (mut read, mut tried) = (0, 0);
    while tried < 6000 && start.elapsed() < Duration::from_secs(4) {
        // The small file most of the time: there a byte means more.
        let file = &files[[0, 0, 0, 1, 2, 3][draws.below(6)]];
        read += usize::from(judge_bytes(&mutated(file, &mut draws)));
        tried += 1;
    }
    assert!(read > tried / 50 && read < tried, "{read} of {tried} were networks");
}

/// Lengths of dimensions, the last few of which make no sense.
const SIZES: [i64; 12] = [1, 2, 3, 4, 4, 4, 8, 12, 0, -1, 1 << 31, i64::MAX];

/// Operators that are read.
const OPS: [&str; 41] = [
    "Conv",
    "Gemm",
    "MatMul",
    "MatMul",
    "Add",
    "Add",
    "Mul",
    "Div",
    "Relu",
    "Clip",
    "Erf",
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "ReduceMean",
    "Dropout",
    "Concat",
    "Concat",
    "Gather",
    "Gather",
    "Slice",
    "Split",
    "Reshape",
    "Reshape",
    "Transpose",
    "Transpose",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Expand",
    "Shape",
    "Softmax",
    "Where",
    "Trilu",
    "Range",
    "ConstantOfShape",
    "Cast",
    "CastLike",
    "LayerNormalization",
    "BatchNormalization",
    "LRN",
];

/// Attributes that are read.
const ATTRIBUTES: [&str; 14] = [
    "axis",
    "perm",
    "axes",
    "kernel_shape",
    "pads",
    "strides",
    "dilations",
    "group",
    "transB",
    "ceil_mode",
    "keepdims",
    "to",
    "split",
    "size",
];

/// A graph of known operators that are put together without sense.
fn senseless(draws: &mut Draws) -> Vec<u8> {
    let size = |draws: &mut Draws| {
        let among = if draws.below(4) == 0 { 12 } else { 8 };
        SIZES[draws.below(among)]
    };
    let sizes = |draws: &mut Draws, most: usize| -> Vec<i64> {
        (0..draws.below(most)).map(|_| size(draws)).collect()
    };
    let tokens = draws.below(3) == 0;
    let shape: &[i64] =
        if tokens { &[2, 4] } else { [&[2, 4, 4, 4][..], &[2, 4, 4], &[2, 12]][draws.below(3)] };
    let mut parts = vec![input("x", if tokens { 7 } else { 1 }, shape)];
    let mut names = vec!["x".to_owned()];
    for i in 0..draws.below(6) {
        let dims: Vec<i64> = sizes(draws, 5);
        parts.push(match draws.below(4) {
            0 => integers(&format!("i{i}"), &dims),
            1 => tensor(
                &format!("i{i}"),
                &[],
                1,
                &bytes(9, &[0.5_f32, -1.0, 0.0, 1e30][draws.below(4)].to_le_bytes()),
            ),
            _ => weight(&format!("i{i}"), &dims),
        });
        names.push(format!("i{i}"));
    }
    for i in 0..=draws.below(12) {
        // What was made last is read most of the time; a slice has up to five inputs.
        let inputs: Vec<String> = (0..=draws.below(5))
            .map(|_| {
                if draws.below(2) == 0 {
                    names[names.len() - 1].clone()
                } else {
                    names[draws.below(names.len())].clone()
                }
            })
            .collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let attributes: Vec<Vec<u8>> = (0..draws.below(3))
            .map(|_| {
                let name = ATTRIBUTES[draws.below(ATTRIBUTES.len())];
                let listed =
                    ["perm", "axes", "kernel_shape", "pads", "strides", "dilations", "split"].contains(&name);
                if listed {
                    ints(name, &sizes(draws, 5))
                } else {
                    crate::onnx::writer::int(name, size(draws) - 1)
                }
            })
            .collect();
        parts.push(node(
            OPS[draws.below(OPS.len())],
            &inputs,
            &[&format!("v{i}"), &format!("w{i}")],
            &attributes,
        ));
        names.push(format!("v{i}"));
    }
    let made = names.iter().rev().find(|name| name.starts_with('v')).cloned().unwrap_or_default();
    parts.push(output(&made));
    file(&parts)
}

#[test]
fn graphs_without_sense_give_an_error_or_a_sound_network() {
    let mut draws = Draws(0x2545_f491_4f6c_dd1d);
    let start = Instant::now();
    let (mut read, mut tried) = (0, 0);
    while tried < 20_000 && start.elapsed() < Duration::from_secs(3) {
        read += usize::from(judge_bytes(&senseless(&mut draws)));
        tried += 1;
    }
    assert!(read > 0 && read < tried, "{read} of {tried} were networks");
}
