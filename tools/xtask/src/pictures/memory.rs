//! A report's memory over one iteration as SVG: the plan's memory, the memory that keeps everything, and the budget.
//!
//! The picture has its own background, so that it can be read on white and on black. Numbers of the axes are round, places are
//! rounded to a tenth of a pixel, and the report is the only input: the same report gives the same text. It is built into
//! xtask, which draws it, and into a test of the root, which draws it again.

use serde_json::Value;
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 430.0;
/// Edges of the plot.
const LEFT: f64 = 72.0;
const RIGHT: f64 = 936.0;
const TOP: f64 = 92.0;
const BOTTOM: f64 = 372.0;

const GIB: f64 = (1u64 << 30) as f64;
const NANOSECONDS_OF_MS: f64 = 1e6;

/// Colours distinct for people who see no red or no green (Okabe and Ito), with dashes as well.
const BLUE: &str = "#0072b2";
const ORANGE: &str = "#d55e00";
const GREEN: &str = "#009e73";
const INK: &str = "#1a2530";
const SOFT: &str = "#566270";

/// A line of the plot: values hold until the next one.
struct Line {
    name: String,
    look: String,
    /// Milliseconds and GiB.
    steps: Vec<(f64, f64)>,
}

/// Draws the picture of a report.
pub fn draw(report: &Value) -> Result<String, String> {
    let memory = &report["memory"];
    let budget = number(memory, "budget_bytes")? / GIB;
    let resident = number(memory, "resident_bytes")?;
    let plan = resident + number(memory, "alive_bytes")?;
    let everything = number(memory, "keeping_everything_bytes")?;
    let host = number(memory, "host_bytes")?;
    let (pool, all) = (steps(memory, "pool", resident)?, steps(memory, "keeping_everything", resident)?);
    let end = |steps: &[(f64, f64)]| steps.last().map_or(0.0, |step| step.0);
    // Copies stay until the plan has ended.
    let mut copies = steps(memory, "host", 0.0)?;
    copies.extend(copies.last().map(|last| (end(&pool).max(last.0), last.1)));
    let words = words(report, end(&all) > end(&pool))?;
    let lines = [
        Line {
            name: format!("keeping everything: {}", gib(everything)),
            look: format!("stroke=\"{ORANGE}\" stroke-width=\"2\" stroke-dasharray=\"6 3\""),
            steps: all,
        },
        Line {
            name: format!("the plan: {}", gib(plan)),
            look: format!("stroke=\"{BLUE}\" stroke-width=\"2.2\""),
            steps: pool,
        },
        Line {
            name: format!("swapped tensors on the host: {}", gib(host)),
            look: format!("stroke=\"{GREEN}\" stroke-width=\"1.8\" stroke-dasharray=\"2 2\""),
            steps: copies,
        },
    ];
    let ends = lines.iter().flat_map(|line| line.steps.last()).map(|step| step.0);
    let tops = lines.iter().flat_map(|line| &line.steps).map(|step| step.1);
    let plot = Plot {
        end: ends.fold(f64::MIN_POSITIVE, f64::max),
        high: 1.05 * tops.fold(budget, f64::max),
        text: String::new(),
    };
    Ok(plot.drawn(&words, budget, &lines))
}

/// Returns the title and the line below it, which explains why keeping everything takes longer, if it does.
fn words(report: &Value, slower: bool) -> Result<[String; 2], String> {
    let about = &report["about"];
    let word = |name: &str| about[name].as_str().ok_or_else(|| format!("the report has no about.{name}"));
    let title = format!("Memory over one iteration: {}, batch {}", word("network")?, number(about, "batch")?);
    let slower = if slower { ", which are slower" } else { "" };
    let device = word("device")?;
    let below = format!(
        "{device}, times predicted. Keeping everything: with the kernels of the least workspace{slower}."
    );
    Ok([title, below])
}

fn number(of: &Value, name: &str) -> Result<f64, String> {
    of[name].as_f64().ok_or_else(|| format!("the report has no number `{name}`"))
}

/// Reads a series of the report, and adds a constant.
fn steps(memory: &Value, name: &str, plus: f64) -> Result<Vec<(f64, f64)>, String> {
    let list = |part: &str| {
        let values = memory[name][part].as_array().map(|values| values.iter().filter_map(Value::as_f64));
        values.map(Iterator::collect::<Vec<f64>>).filter(|values| !values.is_empty())
    };
    let (at, bytes) =
        list("at").zip(list("bytes")).ok_or_else(|| format!("the report has no series memory.{name}"))?;
    Ok(at.iter().zip(bytes).map(|(at, bytes)| (at / NANOSECONDS_OF_MS, (bytes + plus) / GIB)).collect())
}

/// Formats bytes, such as `7.98 GiB`.
fn gib(bytes: f64) -> String {
    format!("{:.2} GiB", bytes / GIB)
}

/// Returns the smallest round number (1, 2 or 5, and zeros) of which at most `most` fit into a range.
fn round_step(range: f64, most: f64) -> f64 {
    let least = range / most;
    let ten = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].map(|times| times * ten).into_iter().find(|step| *step >= least).unwrap_or(10.0 * ten)
}

/// Formats a number of an axis without trailing zeros.
fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The drawing, and the ends of its axes.
struct Plot {
    /// Milliseconds at the right edge.
    end: f64,
    /// GiB at the upper edge.
    high: f64,
    text: String,
}

impl Plot {
    fn x(&self, ms: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * ms / self.end
    }

    fn y(&self, gib: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * gib / self.high
    }

    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        self.text.write_fmt(line).expect("a string can be written");
        self.text.push('\n');
    }

    fn write(&mut self, x: f64, y: f64, look: &str, words: &str) {
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" {look}>{}</text>", escaped(words)));
    }

    fn drawn(mut self, [title, below]: &[String; 2], budget: f64, lines: &[Line]) -> String {
        self.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             role=\"img\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"13\" fill=\"{INK}\">"
        ));
        self.put(format_args!("<title>{}</title>", escaped(title)));
        self.put(format_args!(
            "<rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\" fill=\"#ffffff\" stroke=\"#c4cad0\"/>",
            WIDTH - 1.0,
            HEIGHT - 1.0
        ));
        self.write(20.0, 28.0, "font-size=\"16\" font-weight=\"bold\"", title);
        self.write(20.0, 48.0, &format!("fill=\"{SOFT}\""), below);
        self.axes();
        let budget_line = Line {
            name: format!("the budget: {}", gib(budget * GIB)),
            look: format!("stroke=\"{INK}\" stroke-width=\"1.5\""),
            steps: vec![(0.0, budget), (self.end, budget)],
        };
        for line in lines.iter().chain([&budget_line]) {
            let path = self.path(&line.steps);
            self.put(format_args!(
                "<path fill=\"none\" stroke-linejoin=\"round\" {} d=\"{path}\"/>",
                line.look
            ));
        }
        self.legend(lines.iter().chain([&budget_line]));
        self.text.push_str("</svg>\n");
        self.text
    }

    fn axes(&mut self) {
        let (step, mut gib) = (round_step(self.high, 6.0), 0.0);
        while gib <= self.high {
            let y = self.y(gib);
            self.put(format_args!("<path stroke=\"#e3e6e9\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>"));
            self.write(LEFT - 8.0, y + 4.5, "text-anchor=\"end\"", &short(gib));
            gib += step;
        }
        let (step, mut ms) = (round_step(self.end, 10.0), 0.0);
        while ms <= self.end {
            let x = self.x(ms);
            self.put(format_args!("<path stroke=\"{SOFT}\" d=\"M{x:.1} {BOTTOM}v5\"/>"));
            self.write(x, BOTTOM + 20.0, "text-anchor=\"middle\"", &short(ms));
            ms += step;
        }
        self.put(format_args!(
            "<path stroke=\"{SOFT}\" fill=\"none\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>"
        ));
        let middle = (LEFT + RIGHT) / 2.0;
        self.write(middle, HEIGHT - 16.0, "text-anchor=\"middle\"", "time since the iteration began (ms)");
        let middle = (TOP + BOTTOM) / 2.0;
        let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 24 {middle:.1})\"");
        self.write(24.0, middle, &turned, "memory in use (GiB)");
    }

    fn path(&self, steps: &[(f64, f64)]) -> String {
        let mut path = String::new();
        for (at, (ms, gib)) in steps.iter().enumerate() {
            let (x, y) = (self.x(*ms), self.y(*gib));
            let next = if at == 0 { format!("M{x:.1} {y:.1}") } else { format!("H{x:.1}V{y:.1}") };
            path.push_str(&next);
        }
        path
    }

    /// Draws the legend in a row above the plot, with each line's maximum.
    fn legend<'a>(&mut self, lines: impl Iterator<Item = &'a Line>) {
        let mut x = 20.0;
        for line in lines {
            self.put(format_args!("<path {} d=\"M{x:.1} 72h26\"/>", line.look));
            self.write(x + 33.0, 76.5, "", &line.name);
            // A letter of 13 pixels is 6.6 wide on average, in the widest of the fonts.
            x += 33.0 + 6.6 * line.name.len() as f64 + 22.0;
        }
    }
}
