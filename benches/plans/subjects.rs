//! Subjects of planning: the shared traces next to the repository or, if they are missing, networks of our own zoo with the
//! seconds of a roofline model.

use plimsoll::ir::network::NetworkSpec;
use plimsoll::ir::trace::Trace;
use plimsoll::ir::{Bytes, Document, Seconds};
use plimsoll::networks::{LowerOptions, build, lower};
use plimsoll_testing::random_trace_of;
use std::path::{Path, PathBuf};

/// Fractions f of budgets floor + f x (peak - floor).
pub const FRACTIONS: [f64; 6] = [0.05, 0.1, 0.2, 0.4, 0.6, 0.8];

/// Positions of the fractions for tables that do not use all: tricks, effort and time.
pub const USUAL: [usize; 3] = [1, 2, 3];

/// A trace, and facts that the tables need.
pub struct Subject {
    pub name: String,
    pub trace: Trace,
    /// File of the trace, for a judge.
    pub path: PathBuf,
    pub floor: Bytes,
    pub peak: Bytes,
    pub compute: f64,
    /// Bytes of its largest tensor.
    pub largest: Bytes,
    /// Joint lower bound over compute that came with the trace, by fraction; full duplex.
    pub given: [Option<f64>; FRACTIONS.len()],
}

impl Subject {
    fn new(name: String, trace: Trace, path: PathBuf) -> Subject {
        let memory = trace.memory();
        let floor = memory.floor().expect("a trace has ops").1;
        let peak = memory.peak().expect("a trace has ops").1;
        let compute = trace.compute_seconds().0;
        let largest = trace.tensors.iter().map(|tensor| tensor.bytes).max().unwrap_or_default();
        Subject { name, trace, path, floor, peak, compute, largest, given: [None; FRACTIONS.len()] }
    }

    /// Returns the budget at a fraction between floor (0) and peak (1).
    pub fn budget(&self, fraction: f64) -> Bytes {
        self.floor + Bytes((fraction * (self.peak - self.floor).0 as f64) as u64)
    }

    /// Returns `true` if the largest tensor takes more than a sixth of the pool.
    pub fn is_coarse(&self, fraction: f64) -> bool {
        self.largest * 6 > self.budget(fraction) - self.trace.resident_bytes
    }

    pub fn ops(&self) -> usize {
        self.trace.ops.len()
    }
}

/// Returns the shared traces whose names contain one of these words, the smallest first; empty if none do.
pub fn shared(words: &[String]) -> Vec<Subject> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/traces"));
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let bounds = std::fs::read_to_string(folder.join("joint_bounds.jsonl")).unwrap_or_default();
    let bounds: Vec<serde_json::Value> =
        bounds.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    let mut subjects = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(name) = file.strip_suffix(".trace.json") else { continue };
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a readable trace");
        let trace = Trace::from_json(&text).expect("a valid trace");
        let mut subject = Subject::new(name.to_owned(), trace, path);
        for bound in bounds.iter().filter(|bound| bound["trace"] == name) {
            let at = FRACTIONS.iter().position(|f| bound["fraction"].as_f64() == Some(*f));
            at.into_iter().for_each(|at| subject.given[at] = bound["bound_to_compute"].as_f64());
        }
        subjects.push(subject);
    }
    subjects.sort_by_key(Subject::ops);
    subjects
}

/// Network, image side, channels, classes, batch.
pub type Named = (&'static str, u32, u32, u32, u64);

/// Networks of the zoo that replace the shared traces.
pub const ZOO: [Named; 6] = [
    ("alexnet", 224, 3, 1000, 512),
    ("vgg16", 224, 3, 1000, 64),
    ("resnet18", 224, 3, 1000, 128),
    ("resnet50", 224, 3, 1000, 64),
    ("resnet110", 32, 3, 10, 512),
    ("resnet152", 224, 3, 1000, 32),
];

/// Networks that a test plans.
pub const SMALL: [Named; 2] = [("mlp", 28, 1, 10, 4096), ("resnet20", 32, 3, 10, 32)];

/// Returns networks of the zoo, timed by a roofline. An op takes 5 us plus the longer of two times: its floating-point
/// operations at 14e12 a second, or the bytes that it reads and writes at 900e9 a second. That is a model of a V100, not a
/// measurement. The traces are written to `folder`, for other judges.
pub fn zoo(networks: &[Named], words: &[String], folder: &Path) -> Vec<Subject> {
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let subject = |&(name, side, channels, classes, batch): &Named| {
        let spec = NetworkSpec { name: name.to_owned(), image: [side; 2], channels, classes };
        let network = build(&spec).expect("it is in the zoo");
        let mut trace = lower(&network, batch, &LowerOptions::default()).expect("a sound batch").trace;
        let bytes = |op: &plimsoll::ir::trace::Op| {
            op.touches().map(|t| trace.tensors[t.index()].bytes.0 as f64).sum::<f64>()
        };
        let seconds: Vec<f64> =
            trace.ops.iter().map(|op| 5e-6 + (op.flops as f64 / 14e12).max(bytes(op) / 900e9)).collect();
        trace.ops.iter_mut().zip(seconds).for_each(|(op, seconds)| op.seconds = Seconds(seconds));
        let path = folder.join(format!("{name}.trace.json"));
        std::fs::write(&path, trace.to_json()).expect("a temporary folder can be written to");
        Subject::new(format!("{name}-{side}-b{batch}"), trace, path)
    };
    networks.iter().filter(|network| wanted(network.0)).map(subject).collect()
}

/// Returns random traces of 40 to 160 ops. On average a tensor has a megabyte, and an op takes as long as a transfer of one.
pub fn random(count: u64, folder: &Path) -> Vec<Subject> {
    let scale = 4096;
    let subject = |seed: u64| {
        let mut trace = random_trace_of(40 + (seed as usize * 17) % 120, 1000 + seed);
        trace.tensors.iter_mut().for_each(|tensor| tensor.bytes = tensor.bytes * scale);
        for op in &mut trace.ops {
            (op.seconds, op.workspace_bytes) = (op.seconds * 2e-4, op.workspace_bytes * scale);
            for alternative in &mut op.alternatives {
                (alternative.seconds, alternative.workspace_bytes) =
                    (alternative.seconds * 2e-4, alternative.workspace_bytes * scale);
            }
        }
        let path = folder.join(format!("{}.trace.json", trace.name));
        std::fs::write(&path, trace.to_json()).expect("a temporary folder can be written to");
        Subject::new(trace.name.clone(), trace, path)
    };
    (0..count).map(subject).collect()
}
