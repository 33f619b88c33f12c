//! The sums of convolutions and matrix products by plain loops, for the stand-ins of cuDNN and cuBLAS.
//!
//! Each algorithm adds in its own order, which is the same every time: terms go in turn to a number of partial sums. So two
//! algorithms differ by rounding, as real ones do, and a run of the wrong one is noticed. With TF32 factors lose 13 bits
//! before they are multiplied.

/// Order of the additions of a sum.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Partial sums that terms go to in turn, 1 to 16.
    pub lanes: usize,
    /// `true` if factors are rounded to TF32.
    pub tf32: bool,
}

/// A sum in progress.
struct Sum {
    order: Order,
    parts: [f32; 16],
    next: usize,
}

impl Sum {
    fn new(order: Order) -> Sum {
        Sum { order, parts: [0.0; 16], next: 0 }
    }

    fn add(&mut self, a: f32, b: f32) {
        let term = if self.order.tf32 { tf32(a) * tf32(b) } else { a * b };
        self.parts[self.next] += term;
        self.next += 1;
        if self.next == self.order.lanes {
            self.next = 0;
        }
    }

    fn total(&self) -> f32 {
        self.parts[..self.order.lanes].iter().fold(0.0, |sum, part| sum + part)
    }
}

/// Rounds to 10 bits after the point.
fn tf32(x: f32) -> f32 {
    if x.is_finite() { f32::from_bits(x.to_bits().wrapping_add(0x1000) & !0x1fff) } else { x }
}

/// A convolution, all lengths at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub batch: usize,
    /// Rows, columns, channels.
    pub input: [usize; 3],
    pub output: [usize; 3],
    pub window: [usize; 2],
    pub padding: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
    /// Strides of image, row, column and channel, of the input and of the output.
    pub strides: [[usize; 4]; 2],
    /// `true` if weights are KCRS instead of KRSC.
    pub planes: bool,
}

/// Strides of packed images of rows, columns and channels.
#[cfg(test)]
pub fn packed([rows, columns, channels]: [usize; 3]) -> [usize; 4] {
    [rows * columns * channels, columns * channels, channels, 1]
}

fn dot(a: [usize; 4], b: [usize; 4]) -> usize {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Shape {
    fn depth(&self) -> usize {
        self.input[2] / self.groups
    }

    /// Elements from the first to the last of the input, the weights and the output.
    pub fn elements(&self) -> [usize; 3] {
        let of = |[rows, columns, channels]: [usize; 3], strides| {
            dot([self.batch - 1, rows - 1, columns - 1, channels - 1], strides) + 1
        };
        let weights = self.output[2] * self.window[0] * self.window[1] * self.depth();
        [of(self.input, self.strides[0]), weights, of(self.output, self.strides[1])]
    }

    /// Input position of a tap of the window at an output position; `None` in the padding.
    fn tap(&self, at: [usize; 2], tap: [usize; 2]) -> Option<[usize; 2]> {
        let of = |side: usize| {
            let place = at[side] * self.stride[side] + tap[side] * self.dilation[side];
            place.checked_sub(self.padding[side]).filter(|place| *place < self.input[side])
        };
        Some([of(0)?, of(1)?])
    }

    fn x(&self, n: usize, at: [usize; 2], c: usize) -> usize {
        dot([n, at[0], at[1], c], self.strides[0])
    }

    fn w(&self, k: usize, tap: [usize; 2], c: usize) -> usize {
        let [rows, columns] = self.window;
        let [k, tap, c] = [k, tap[0] * columns + tap[1], c];
        if self.planes {
            (k * self.depth() + c) * rows * columns + tap
        } else {
            (k * rows * columns + tap) * self.depth() + c
        }
    }

    /// Strides of the input's channels and of the weights' channels.
    fn steps(&self) -> [usize; 2] {
        let [rows, columns] = self.window;
        [self.strides[0][3], if self.planes { rows * columns } else { 1 }]
    }

    fn y(&self, n: usize, at: [usize; 2], k: usize) -> usize {
        dot([n, at[0], at[1], k], self.strides[1])
    }

    /// First input channel that an output channel uses.
    fn first_of(&self, k: usize) -> usize {
        k / (self.output[2] / self.groups) * self.depth()
    }
}

/// All pairs of numbers below two bounds, by rows.
fn pairs(bounds: [usize; 2]) -> impl Iterator<Item = [usize; 2]> + Clone {
    (0..bounds[0]).flat_map(move |row| (0..bounds[1]).map(move |column| [row, column]))
}

/// y = the convolution of x with w, plus `old` times y.
pub fn forward(s: &Shape, order: Order, x: &[f32], w: &[f32], y: &mut [f32], old: f32) {
    let [of_x, of_w] = s.steps();
    for n in 0..s.batch {
        for at in pairs([s.output[0], s.output[1]]) {
            for k in 0..s.output[2] {
                let mut sum = Sum::new(order);
                for tap in pairs(s.window) {
                    let Some(from) = s.tap(at, tap) else { continue };
                    let (x, w) = (&x[s.x(n, from, s.first_of(k))..], &w[s.w(k, tap, 0)..]);
                    let terms = x.iter().step_by(of_x).zip(w.iter().step_by(of_w)).take(s.depth());
                    terms.for_each(|(x, w)| sum.add(*x, *w));
                }
                put(&mut y[s.y(n, at, k)], sum.total(), old);
            }
        }
    }
}

/// dx = the gradient of x from dy and w, plus `old` times dx.
pub fn backward_data(s: &Shape, order: Order, dy: &[f32], w: &[f32], dx: &mut [f32], old: f32) {
    let ([elements, ..], [of_x, of_w]) = (s.elements(), s.steps());
    let mut sums: Vec<Sum> = (0..elements).map(|_| Sum::new(order)).collect();
    for n in 0..s.batch {
        for at in pairs([s.output[0], s.output[1]]) {
            for tap in pairs(s.window) {
                let Some(to) = s.tap(at, tap) else { continue };
                for k in 0..s.output[2] {
                    let gradient = dy[s.y(n, at, k)];
                    let (sums, w) = (&mut sums[s.x(n, to, s.first_of(k))..], &w[s.w(k, tap, 0)..]);
                    let terms = sums.iter_mut().step_by(of_x).zip(w.iter().step_by(of_w)).take(s.depth());
                    terms.for_each(|(sum, w)| sum.add(gradient, *w));
                }
            }
        }
    }
    // Elements between the channels of a group belong to other groups.
    for n in 0..s.batch {
        for at in pairs([s.input[0], s.input[1]]) {
            for at in (0..s.input[2]).map(|c| s.x(n, at, c)) {
                put(&mut dx[at], sums[at].total(), old);
            }
        }
    }
}

/// dw = the gradient of w from x and dy, plus `old` times dw.
pub fn backward_filter(s: &Shape, order: Order, x: &[f32], dy: &[f32], dw: &mut [f32], old: f32) {
    let [of_x, _] = s.steps();
    for k in 0..s.output[2] {
        for tap in pairs(s.window) {
            let mut sums: Vec<Sum> = (0..s.depth()).map(|_| Sum::new(order)).collect();
            for n in 0..s.batch {
                for at in pairs([s.output[0], s.output[1]]) {
                    let Some(from) = s.tap(at, tap) else { continue };
                    let (gradient, x) = (dy[s.y(n, at, k)], &x[s.x(n, from, s.first_of(k))..]);
                    sums.iter_mut().zip(x.iter().step_by(of_x)).for_each(|(sum, x)| sum.add(*x, gradient));
                }
            }
            sums.iter().enumerate().for_each(|(c, sum)| put(&mut dw[s.w(k, tap, c)], sum.total(), old));
        }
    }
}

/// A matrix by columns, as in BLAS, or its transpose.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub transposed: bool,
    /// Distance between columns.
    pub leading: usize,
}

impl Matrix {
    fn at(&self, row: usize, column: usize) -> usize {
        if self.transposed { column + row * self.leading } else { row + column * self.leading }
    }

    /// Elements from the first to the last of this many rows and columns.
    pub fn span(&self, rows: usize, columns: usize) -> usize {
        self.at(rows - 1, columns - 1) + 1
    }
}

/// c = a b, plus `old` times c; m x n results with an inner dimension of k.
pub fn product(
    [m, n, k]: [usize; 3],
    order: Order,
    (a, of_a): (&[f32], Matrix),
    (b, of_b): (&[f32], Matrix),
    (c, of_c): (&mut [f32], Matrix),
    old: f32,
) {
    for column in 0..n {
        for row in 0..m {
            let mut sum = Sum::new(order);
            (0..k).for_each(|i| sum.add(a[of_a.at(row, i)], b[of_b.at(i, column)]));
            put(&mut c[of_c.at(row, column)], sum.total(), old);
        }
    }
}

/// If `old` is 0 the place is not read: it may hold anything.
fn put(place: &mut f32, value: f32, old: f32) {
    *place = if old == 0.0 { value } else { value + old * *place };
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Order = Order { lanes: 1, tf32: false };

    /// The three passes are one bilinear form: sum(y dy) = sum(x dx) = sum(w dw).
    #[test]
    fn the_passes_fit_each_other() {
        let shape = Shape {
            batch: 2,
            input: [5, 4, 4],
            output: [3, 2, 6],
            window: [3, 2],
            padding: [1, 1],
            stride: [2, 2],
            dilation: [1, 2],
            groups: 2,
            strides: [packed([5, 4, 4]), packed([3, 2, 6])],
            planes: false,
        };
        let fill = |count: usize, step: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * step) % 23) as f32 / 8.0 - 1.0).collect()
        };
        let [x, w, y] = shape.elements();
        let (x, w, dy) = (fill(x, 7), fill(w, 5), fill(y, 3));
        let mut out = vec![f32::NAN; y];
        forward(&shape, PLAIN, &x, &w, &mut out, 0.0);
        let mut dx = vec![f32::NAN; x.len()];
        backward_data(&shape, PLAIN, &dy, &w, &mut dx, 0.0);
        let mut dw = vec![f32::NAN; w.len()];
        backward_filter(&shape, PLAIN, &x, &dy, &mut dw, 0.0);
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let sums = [dot(&out, &dy), dot(&x, &dx), dot(&w, &dw)];
        assert!(sums.iter().all(|sum| (sum - sums[0]).abs() < 1e-3 && sum.abs() > 1.0), "{sums:?}");
        let before = dx.clone();
        backward_data(&shape, PLAIN, &dy, &w, &mut dx, 1.0);
        assert!(dx.iter().zip(&before).all(|(now, before)| (now - 2.0 * before).abs() < 1e-4));
    }

    #[test]
    fn orders_and_tf32_differ_by_rounding() {
        let s = Shape {
            batch: 1,
            input: [1, 1, 300],
            output: [1, 1, 1],
            window: [1, 1],
            padding: [0, 0],
            stride: [1, 1],
            dilation: [1, 1],
            groups: 1,
            strides: [packed([1, 1, 300]), packed([1, 1, 1])],
            planes: false,
        };
        let x: Vec<f32> = (0..300).map(|i| ((i * 7919) % 1000) as f32 / 999.0).collect();
        let sum = |order| {
            let mut y = [f32::NAN];
            forward(&s, order, &x, &x, &mut y, 0.0);
            y[0]
        };
        let (plain, lanes, coarse) =
            (sum(PLAIN), sum(Order { lanes: 5, tf32: false }), sum(Order { lanes: 1, tf32: true }));
        assert!(plain != lanes && (plain - lanes).abs() < 1e-3, "{plain} {lanes}");
        assert!((plain - coarse).abs() > 1e-6 && (plain - coarse).abs() < 1.0, "{plain} {coarse}");
    }
}
