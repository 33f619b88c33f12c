//! The papers' tables, by one command: our results compared with the paper's own policy and with the published numbers.
//!
//! `cargo bench --bench papers [-- TABLE ...] [--list] [--print]`
//!
//! Each table runs our implementation of the paper's policy and `plimsoll` on the paper's device, modelled from its data sheet
//! (`tuner/src/model/devices`): same trace, same link, same clock, every schedule judged by `check`. Published numbers are
//! typed in from the papers' text, with the place; numbers that appear only in a figure are marked as not legible in that text.
//! Nothing here is a measurement.
//!
//! `all`, or no name, makes all tables, two at a time; the index gives the time that this took. Each is printed and written to
//! `benches/papers/NAME.md`, its plot to `NAME.svg`, and the rows of a long one to `NAME.csv`; with `--print` nothing is
//! written. The exit code is 1 if `plimsoll` is worse than the paper's own system in a row. `cargo test` makes a small version
//! of each and writes nothing.

mod accudnn;
mod accudnn_model;
mod claims;
mod dqn;
mod europar;
mod frameworks;
mod layrub;
mod layrub_time;
mod plot;
mod rates;
mod scaling;
mod subjects;
mod table;
mod vdnn;
mod vdnn_memory;

use claims::Claims;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use subjects::Scale;
use table::{Table, or_dash};

/// Makes a table.
type Make = fn(&Scale) -> Table;

/// A table's name, title and maker.
type Entry = (&'static str, &'static str, Make);

/// All tables.
const TABLES: [Entry; 43] = [
    ("vdnn-fig9", "vDNN: maximum memory of its policies on a K40", vdnn_memory::most),
    ("vdnn-fig9-average", "vDNN: average memory of its policies on a K40", vdnn_memory::average),
    ("vdnn-fig10", "vDNN: what its policies offload", vdnn_memory::offloaded),
    ("vdnn-fig11", "vDNN: memory bandwidth of convolutions", vdnn_memory::bandwidth),
    ("vdnn-fig12", "vDNN: performance of its policies on a K40", vdnn::performance),
    ("vdnn-fig13", "vDNN: VGG-16 to VGG-516 at batch 32", vdnn::very_deep),
    ("layrub-fig9", "Layrub: memory of its strategies, deep networks", layrub::deep),
    ("layrub-fig10", "Layrub: memory of its strategies, wide networks", layrub::wide),
    ("layrub-fig11", "Layrub: memory of its strategies, well-known networks", layrub::well_known),
    ("layrub-fig12", "Layrub: memory in all of Layrub, Memonger and plimsoll", layrub::systems),
    ("layrub-table5", "Layrub: what its strategy costs in time", layrub::overheads),
    (
        "layrub-table6",
        "Layrub: memory in all over the depth of ResNet, and the deepest that fits",
        layrub::depths,
    ),
    ("layrub-table7", "Layrub: the largest batches in a K40", layrub::largest_batches),
    ("layrub-fig13", "Layrub: performance beside vDNN", layrub_time::performance),
    ("layrub-fig14", "Layrub: what of its transfers is not hidden", layrub_time::unhidden),
    ("layrub-fig15", "Layrub: training to the same accuracy at a larger batch", layrub_time::end_to_end),
    ("layrub-table8", "Layrub: two nodes", layrub_time::nodes),
    ("accudnn-table1", "AccUDNN: efficiency-optimal batches in 12 GB", accudnn::batches),
    ("accudnn-table2", "AccUDNN: eight workers from the Δ of Caffe's rows", accudnn::synchronisation),
    ("accudnn-table3", "AccUDNN: beside SuperNeurons", accudnn::super_neurons),
    ("accudnn-fig6", "AccUDNN: computing efficiency over the batch", accudnn_model::efficiency),
    ("accudnn-fig7", "AccUDNN: estimated and observed timelines", accudnn_model::timelines),
    ("accudnn-fig8", "AccUDNN: memory over one iteration", accudnn_model::iteration),
    ("accudnn-fig9", "AccUDNN: memory of naive and dynamic swapping", accudnn::footprints),
    ("accudnn-fig10", "AccUDNN: eight workers", accudnn::workers),
    ("accudnn-eq9", "AccUDNN: the learning rate of eq. (9)", rates::rates),
    ("workers-scaling", "Ours alone: 8 to 4,096 workers, and what limits them", scaling::scaling),
    ("europar-fig5", "Euro-Par'20: ratio to the lower bound, 224x224, batch 32", |scale| {
        europar::ratios(scale, 5)
    }),
    ("europar-fig6", "Euro-Par'20: ResNet, 224x224", |scale| europar::ratios(scale, 6)),
    ("europar-fig7", "Euro-Par'20: ResNet, 500x500", |scale| europar::ratios(scale, 7)),
    ("europar-fig8", "Euro-Par'20: ResNet, 1000x1000", |scale| europar::ratios(scale, 8)),
    ("europar-fig9", "Euro-Par'20: DenseNet, 224x224", |scale| europar::ratios(scale, 9)),
    ("europar-fig10", "Euro-Par'20: DenseNet, 500x500", |scale| europar::ratios(scale, 10)),
    ("europar-fig11", "Euro-Par'20: DenseNet, 1000x1000", |scale| europar::ratios(scale, 11)),
    ("europar-fig12", "Euro-Par'20: Inception", |scale| europar::ratios(scale, 12)),
    ("europar-fig13", "Euro-Par'20: images a second, ResNet, 224x224", |scale| europar::rates(scale, 6)),
    ("europar-fig14", "Euro-Par'20: images a second, ResNet, 500x500", |scale| europar::rates(scale, 7)),
    ("europar-fig15", "Euro-Par'20: images a second, ResNet, 1000x1000", |scale| europar::rates(scale, 8)),
    ("europar-fig16", "Euro-Par'20: images a second, DenseNet, 224x224", |scale| europar::rates(scale, 9)),
    ("europar-fig17", "Euro-Par'20: images a second, DenseNet, 500x500", |scale| europar::rates(scale, 10)),
    ("europar-fig18", "Euro-Par'20: images a second, DenseNet, 1000x1000", |scale| europar::rates(scale, 11)),
    ("europar-fig19", "Euro-Par'20: images a second, Inception", |scale| europar::rates(scale, 12)),
    // Its policy trains for seconds, and has controls.
    ("dqn-fig5", "DQN: overhead over memory reduction", dqn::overheads),
];

struct Options {
    names: Vec<String>,
    list: bool,
    write: bool,
    small: bool,
}

fn options() -> Options {
    let mut options = Options { names: Vec::new(), list: false, write: true, small: true };
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--bench" => options.small = false,
            "--list" => options.list = true,
            "--print" => options.write = false,
            "all" => {}
            name if TABLES.iter().any(|(known, ..)| *known == name) => options.names.push(argument),
            // Options of cargo's test harness.
            other if other.starts_with("--") => {}
            other => panic!("there is no table `{other}`; `--list` lists them"),
        }
    }
    options.write &= !options.small;
    options
}

fn main() -> ExitCode {
    let options = options();
    if options.list {
        TABLES.iter().for_each(|(name, about, _)| println!("{name:16} {about}"));
        return ExitCode::SUCCESS;
    }
    let scale = Scale::new(options.small);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/papers");
    let (mut worse, mut index) = (Vec::new(), Index::default());
    let wanted = |name| options.names.is_empty() || options.names.iter().any(|wanted| wanted == name);
    let tables: Vec<Entry> = TABLES.into_iter().filter(|(name, ..)| wanted(*name)).collect();
    let start = Instant::now();
    for ((name, about, _), (made, took)) in tables.iter().zip(make_all(&tables, &scale)) {
        let text = made.markdown(name, about);
        let csv = made.csv();
        println!("{text}\n{}{name}: {took:.1} s\n", csv.as_deref().unwrap_or_default());
        index.add(name, about, &made, took);
        let svg = plot::svg(&made.plot);
        if options.write {
            std::fs::write(folder.join(format!("{name}.md")), &text)
                .expect("the table's file can be written");
            std::fs::write(folder.join(format!("{name}.svg")), svg).expect("the plot's file can be written");
            if let Some(csv) = csv {
                std::fs::write(folder.join(format!("{name}.csv")), csv).expect("the rows can be written");
            }
        }
        worse.extend(made.worse().map(|what| format!("{name}: {what}")));
    }
    let all = options.names.is_empty();
    if all {
        let text = index.markdown(start.elapsed().as_secs_f64(), processor_seconds("self"));
        println!("{text}");
        if options.write {
            std::fs::write(folder.join("README.md"), text).expect("the index can be written");
        }
    }
    // A small table plans with next to no search: only the full one requires plimsoll to lead everywhere.
    if worse.is_empty() || options.small {
        return ExitCode::SUCCESS;
    }
    println!("plimsoll is worse than the paper's own system:");
    worse.iter().for_each(|what| println!("- {what}"));
    ExitCode::FAILURE
}

/// Makes tables on two threads, and returns each with the seconds of its thread, in order. The last one, which takes longest,
/// is begun first.
fn make_all(tables: &[Entry], scale: &Scale) -> impl Iterator<Item = (Table, f64)> {
    let next = AtomicUsize::new(0);
    let made: Vec<OnceLock<(Table, f64)>> = tables.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < tables.len()) {
            let at = (at + tables.len() - 1) % tables.len();
            let (name, _, make) = tables[at];
            eprintln!("making {name}");
            let start = Clock::now();
            let table = make(scale);
            assert!(made[at].set((table, start.seconds())).is_ok(), "each is made once");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    made.into_iter().map(|made| made.into_inner().expect("every table was made"))
}

/// The processor time of this thread, which other work on the machine does not affect; if the system does not report it,
/// wall-clock time.
struct Clock {
    start: Instant,
    taken: Option<f64>,
}

impl Clock {
    fn now() -> Clock {
        Clock { start: Instant::now(), taken: processor_seconds("thread-self") }
    }

    /// Returns the seconds since `now`.
    fn seconds(&self) -> f64 {
        match (self.taken, processor_seconds("thread-self")) {
            (Some(before), Some(after)) => after - before,
            _ => self.start.elapsed().as_secs_f64(),
        }
    }
}

/// Returns the processor seconds of `self` or `thread-self`. Fields 14 and 15 of Linux's `/proc/PID/stat`: in user and in
/// system mode, in hundredths of a second. The second field, in parentheses, may have blanks.
fn processor_seconds(of: &str) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    let mut hundredths = || fields.next()?.parse::<f64>().ok();
    Some((hundredths()? + hundredths()?) / 100.0)
}

/// Index of all tables, and the contradictions of the papers in them.
#[derive(Default)]
struct Index {
    lines: Vec<String>,
    /// Claims by paper.
    claims: Vec<(&'static str, Claims)>,
    published: usize,
    rows: usize,
}

impl Index {
    fn add(&mut self, name: &str, about: &'static str, made: &Table, took: f64) {
        let mean = or_dash(made.mean(), |mean| format!("{mean:.3}"));
        let least = or_dash(made.least(), |(_, times)| format!("{times:.3}"));
        let (published, rows) = made.published_rows();
        let line = format!(
            "| [{name}]({name}.md) | {about} | {published} of {rows} | {mean} | {least} | {took:.1} |"
        );
        self.lines.push(line);
        self.published += published;
        self.rows += rows;
        let paper = about.split(':').next().expect("there is a first part");
        if self.claims.last().is_none_or(|(last, _)| *last != paper) {
            self.claims.push((paper, Claims::default()));
        }
        self.claims.last_mut().expect("one was added").1.join(&made.claims);
    }

    fn markdown(&self, wall: f64, processor: Option<f64>) -> String {
        let version = plimsoll::study::version();
        let mut text = format!(
            "# The papers' tables\n\n`cargo bench --bench papers` makes all tables, `cargo bench --bench papers -- NAME` \
             one. Each compares plimsoll with our implementation of the paper's policy, on the same model of the paper's \
             device, and with the published numbers; nothing was measured. plimsoll's search is limited to {} evaluations \
             a plan. Long tables are in CSV files. Of the {} rows, {} have a number in the paper's text; the others are \
             ours alone. The advantage is plimsoll's over the paper's system, over all rows: shorter times, less memory, \
             larger batches, more layers. Above 1 is better; differences up to 0.1 % count as equal. Two tables are made \
             at a time, and no plan is made twice in one run: the seconds are the processor time of the table's thread, \
             and a plan counts for the first table that shows it. All took {wall:.0} s on a machine with {} cores, and {} \
             s of processor time with all helpers. Made by plimsoll {version}.\n\n| table | what | rows in the text | \
             advantage, geometric mean | least | seconds to make |\n| --- | --- | --- | --- | --- | --- |\n{}\n",
            subjects::EVALUATIONS,
            self.rows,
            self.published,
            std::thread::available_parallelism().map_or(1, usize::from),
            or_dash(processor, |seconds| format!("{seconds:.0}")),
            self.lines.join("\n")
        );
        text += "\n## Claims\n\nClaims of the papers, checked against the rows of all their tables, each row once; the pages \
                 name some of the rows.\n";
        for (paper, claims) in &self.claims {
            for words in claims.words(false) {
                text += &format!("\n- {paper}: {words}");
            }
        }
        text + "\n"
    }
}
