//! Plots of tables, as SVG: lines for our results, crosses for published ones.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

pub struct Series {
    pub name: String,
    /// Index of the colour.
    pub colour: usize,
    pub points: Vec<(f64, f64)>,
    /// `true` if the points are typed in from the paper, not made here.
    pub published: bool,
}

/// Points over a number, or over names in a row.
#[derive(Default)]
pub struct Plot {
    pub title: String,
    pub x: String,
    pub y: String,
    /// Names that x counts, if any.
    pub names: Vec<String>,
    pub log_y: bool,
    pub series: Vec<Series>,
}

impl Plot {
    pub fn new(title: &str, x: &str, y: &str) -> Plot {
        Plot { title: title.to_owned(), x: x.to_owned(), y: y.to_owned(), ..Plot::default() }
    }

    pub fn log_y(self) -> Plot {
        Plot { log_y: true, ..self }
    }

    /// Returns the position of a name on the x axis.
    pub fn at(&mut self, name: &str) -> f64 {
        let known = self.names.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        }) as f64
    }

    fn add_to(&mut self, of: &str, point: (f64, f64), published: bool) {
        let name = if published { format!("{of}, published") } else { of.to_owned() };
        if let Some(known) = self.series.iter_mut().find(|known| known.name == name) {
            known.points.push(point);
            return;
        }
        // A published series has the colour of its counterpart.
        let beside = self.series.iter().find(|known| published && known.name == of).map(|known| known.colour);
        let next = self.series.iter().map(|known| known.colour + 1).max().unwrap_or(0);
        self.series.push(Series { name, colour: beside.unwrap_or(next), points: vec![point], published });
    }

    /// Adds a point, unless it is missing.
    pub fn add(&mut self, series: &str, x: f64, y: impl Into<Option<f64>>) {
        y.into().into_iter().for_each(|y| self.add_to(series, (x, y), false));
    }

    /// Adds a point of each series at a name on the x axis, and returns the name's position.
    pub fn over<const N: usize>(&mut self, name: &str, points: [(&str, Option<f64>); N]) -> f64 {
        let x = self.at(name);
        points.into_iter().for_each(|(series, y)| self.add(series, x, y));
        x
    }

    /// Adds a published figure of a series that already has a point.
    pub fn published(&mut self, of: &str, x: f64, y: impl Into<Option<f64>>) {
        y.into().into_iter().for_each(|y| self.add_to(of, (x, y), true));
    }
}

const SIZE: (u32, u32) = (960, 540);

/// Distinct for people who see no red or no green (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(140, 140, 140),
];

pub fn svg(plot: &Plot) -> String {
    let mut text = String::new();
    let all = || plot.series.iter().flat_map(|series| &series.points);
    let range = |of: fn(&(f64, f64)) -> f64| {
        let values = all().map(of).filter(|value| value.is_finite());
        values.fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(v), most.max(v)))
    };
    let ((left, right), (low, high)) = (range(|p| p.0), range(|p| p.1));
    if left > right {
        return text;
    }
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).expect("a string can be written");
        let margin = if plot.names.is_empty() { 0.03 * (right - left).max(1e-9) } else { 0.5 };
        let lengths = [right - left, high - low].map(|length| length.max(1e-9));
        // The legend stands at the right.
        let x = left - margin..right + margin + 0.4 * (right - left + 2.0 * margin);
        if plot.log_y {
            draw(&area, plot, (x, (low / 1.2..high * 1.2).log_scale()), lengths);
        } else {
            let low = if low > 0.0 && low > 0.7 * high { low - 0.2 * (high - low) } else { low.min(0.0) };
            draw(&area, plot, (x, low..high + 0.06 * (high - low).max(1e-9)), lengths);
        }
        area.present().expect("a string can be written");
    }
    text
}

/// Formats a number on an axis of this length, with enough digits to separate tenths of the axis.
fn short(value: f64, length: f64) -> String {
    let fine = (1.0 - length.log10().floor()).clamp(2.0, 6.0) as usize;
    let digits = if value.abs() >= 10.0 || value.fract() == 0.0 { 0 } else { fine };
    format!("{value:.digits$}")
}

fn draw<Y>(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    plot: &Plot,
    (x, y): (std::ops::Range<f64>, Y),
    [x_length, y_length]: [f64; 2],
) where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let slanted = plot.names.len() > 8;
    let mut chart = ChartBuilder::on(area)
        .caption(&plot.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(if slanted { 80 } else { 50 })
        .y_label_area_size(75)
        .build_cartesian_2d(x, y)
        .expect("the ranges are not empty");
    let name = |at: &f64| {
        let whole = (at - at.round()).abs() < 1e-6 && *at >= 0.0;
        let name = plot.names.get(at.round() as usize).filter(|_| whole);
        name.map(|name| name.replace("-imagenet", "")).unwrap_or_default()
    };
    let label = |at: &f64| if plot.names.is_empty() { short(*at, x_length) } else { name(at) };
    chart
        .configure_mesh()
        .x_desc(&plot.x)
        .y_desc(&plot.y)
        .x_labels(if plot.names.is_empty() { 10 } else { 2 * plot.names.len() + 2 })
        .x_label_formatter(&label)
        .y_label_formatter(&|at: &f64| short(*at, y_length))
        .light_line_style(RGBColor(245, 245, 245))
        .bold_line_style(RGBColor(225, 225, 225))
        .label_style(("sans-serif", if slanted { 11 } else { 13 }))
        .axis_desc_style(("sans-serif", 15))
        .draw()
        .expect("a string can be written");
    let named = !plot.names.is_empty();
    let series_count = plot.series.iter().map(|series| series.colour + 1).max().unwrap_or(1);
    for series in &plot.series {
        let colour = COLOURS[series.colour % COLOURS.len()];
        // Over names, points stand side by side.
        let aside =
            (series.colour as f64 - 0.5 * (series_count - 1) as f64) * 0.7 / series_count.max(4) as f64;
        let aside = if named { aside } else { 0.0 };
        let points = || {
            let points = series.points.iter().filter(|point| point.1.is_finite());
            points.map(move |point| (point.0 + aside, point.1))
        };
        let drawn = if series.published {
            chart.draw_series(points().map(|point| Cross::new(point, 6, colour.stroke_width(2))))
        } else {
            let ours = series.name.starts_with("plimsoll");
            let (width, size) = if ours { (3, 5) } else { (1, 4) };
            if !named {
                let line = LineSeries::new(points(), colour.stroke_width(width));
                chart.draw_series(line).expect("a string can be written");
            }
            chart.draw_series(points().map(|point| Circle::new(point, size, colour.filled())))
        };
        let published = series.published;
        drawn.expect("a string can be written").label(&series.name).legend(move |(x, y)| {
            if published {
                Cross::new((x + 10, y), 6, colour.stroke_width(2)).into_dyn()
            } else if named {
                Circle::new((x + 10, y), 5, colour.filled()).into_dyn()
            } else {
                PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(3)).into_dyn()
            }
        });
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .label_font(("sans-serif", 13))
        .position(SeriesLabelPosition::UpperRight)
        .draw()
        .expect("a string can be written");
}
