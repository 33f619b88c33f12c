//! How a value of the graph lies in the output of one of our layers: which of its dimensions run over which axes.
//!
//! Exporters write attention, flattening and position embeddings as chains of reshapes, transpositions and slices. None of
//! them computes anything; so none becomes a layer, and only what is read in the end must be the whole of an output, or a
//! part that a layer of ours takes. An [`Atom`] is a run over one axis: dimension 8 of a value may run over the batch, or
//! over four heads and then the two channels of each. Axes of length 1 have no atoms.
//!
//! What this file does not do: know any operator of ONNX, or move data.

use plimsoll_ir::LayerId;
use plimsoll_ir::network::Shape;

/// What a dimension runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Axis {
    /// The samples.
    Batch,
    /// The rows of a sample; the positions of tokens.
    Row,
    /// The columns of a sample.
    Column,
    /// The channels of a position.
    Channel,
    /// The positions that attention looks at from each row.
    Key,
    /// Nothing: what lies elsewhere in the value is there as often, as are keys and values that several heads share.
    Repeat,
}

/// A run over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atom {
    /// The axis.
    pub axis: Axis,
    /// Steps, at least 2.
    pub size: u64,
    /// Positions of the axis between two steps.
    pub stride: u64,
}

/// The dimensions of a value, each a product of runs, the innermost last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Whose output it lies in.
    pub layer: LayerId,
    /// Outermost first.
    pub dims: Vec<Vec<Atom>>,
    /// Where on the channels it begins.
    pub channel: u64,
    /// Where on the rows it begins.
    pub row: u64,
}

/// A run over a whole axis; nothing for one of length 1.
pub fn whole(axis: Axis, size: u64) -> Vec<Atom> {
    if size == 1 { Vec::new() } else { vec![Atom { axis, size, stride: 1 }] }
}

/// Steps of some runs, one in the other.
pub fn size(dim: &[Atom]) -> u64 {
    dim.iter().map(|atom| atom.size).product()
}

/// Runs that go on where the one before ends, made one.
fn merged(atoms: impl IntoIterator<Item = Atom>) -> Vec<Atom> {
    let mut all: Vec<Atom> = Vec::new();
    for atom in atoms {
        match all.last_mut() {
            Some(last) if last.axis == atom.axis && last.stride == atom.stride * atom.size => {
                *last = Atom { size: last.size * atom.size, ..atom };
            }
            _ => all.push(atom),
        }
    }
    all
}

impl View {
    /// The whole output of a layer, with these dimensions.
    pub fn of(layer: LayerId, dims: Vec<Vec<Atom>>) -> View {
        View { layer, dims, channel: 0, row: 0 }
    }

    /// The whole output of a layer as ONNX has images: batch, channels, rows, columns.
    pub fn image(layer: LayerId, batch: u64, shape: Shape) -> View {
        let [height, width, channels] = [shape.height, shape.width, shape.channels].map(u64::from);
        let sizes =
            [(Axis::Batch, batch), (Axis::Channel, channels), (Axis::Row, height), (Axis::Column, width)];
        View::of(layer, sizes.into_iter().map(|(axis, size)| whole(axis, size)).collect())
    }

    /// The dimensions.
    pub fn sizes(&self) -> Vec<u64> {
        self.dims.iter().map(|dim| size(dim)).collect()
    }

    /// All runs, outermost first.
    pub fn atoms(&self) -> Vec<Atom> {
        merged(self.dims.iter().flatten().copied())
    }

    /// How many positions of an axis it runs over, one next to the other and in order; none where it does otherwise.
    pub fn run(&self, axis: Axis) -> Option<u64> {
        let mut size = 1;
        for atom in self.dims.iter().flatten().filter(|atom| atom.axis == axis).rev() {
            if atom.stride != size {
                return None;
            }
            size *= atom.size;
        }
        Some(size)
    }

    /// Whether it runs over everything that its layer gives, in whatever order.
    pub fn is_whole(&self, batch: u64, shape: Shape) -> bool {
        let over = |axis: Axis| {
            let atoms = self.dims.iter().flatten().filter(|atom| atom.axis == axis);
            atoms.map(|atom| atom.size).product::<u64>()
        };
        let [height, width, channels] = [shape.height, shape.width, shape.channels].map(u64::from);
        self.channel == 0
            && self.row == 0
            && over(Axis::Batch) == batch
            && over(Axis::Row) == height
            && over(Axis::Column) == width
            && over(Axis::Channel) == channels
            && over(Axis::Key) == 1
            && !self.repeats()
    }

    /// Whether some of what it runs over is there several times.
    pub fn repeats(&self) -> bool {
        self.dims.iter().flatten().any(|atom| atom.axis == Axis::Repeat)
    }

    /// The same with dimensions of one step repeated, and further ones before them; none where others would change.
    pub fn expand(&self, sizes: &[u64]) -> Option<View> {
        let mut dims = vec![Vec::new(); sizes.len().checked_sub(self.dims.len())?];
        dims.extend(self.dims.iter().cloned());
        for (dim, wanted) in dims.iter_mut().zip(sizes) {
            match size(dim) {
                own if own == *wanted => {}
                1 => *dim = vec![Atom { axis: Axis::Repeat, size: *wanted, stride: 0 }],
                _ => return None,
            }
        }
        Some(View { dims, ..self.clone() })
    }

    /// The same for another layer of the same shape.
    pub fn with_layer(&self, layer: LayerId) -> View {
        View { layer, ..self.clone() }
    }

    /// Dimensions in another order, each named once.
    pub fn transpose(&self, order: &[usize]) -> View {
        View { dims: order.iter().map(|d| self.dims[*d].clone()).collect(), ..self.clone() }
    }

    /// The same elements in order under other dimensions; none where these cut a run in uneven pieces.
    pub fn reshape(&self, sizes: &[u64]) -> Option<View> {
        let mut atoms = self.atoms().into_iter().rev().collect::<Vec<_>>();
        let mut dims = Vec::new();
        for wanted in sizes {
            let (mut dim, mut left) = (Vec::new(), *wanted);
            while left > 1 {
                let atom = atoms.pop()?;
                if left.is_multiple_of(atom.size) {
                    left /= atom.size;
                    dim.push(atom);
                } else if atom.size.is_multiple_of(left) {
                    let inner = atom.size / left;
                    dim.push(Atom { size: left, stride: atom.stride * inner, ..atom });
                    atoms.push(Atom { size: inner, ..atom });
                    left = 1;
                } else {
                    return None;
                }
            }
            dims.push(dim);
        }
        atoms.is_empty().then(|| View { dims, ..self.clone() })
    }

    /// So many steps of a dimension from one on; none where the dimension is no single run over rows or channels.
    pub fn slice(&self, dim: usize, start: u64, length: u64) -> Option<View> {
        if start == 0 && length == size(&self.dims[dim]) {
            return Some(self.clone());
        }
        let [atom] = merged(self.dims[dim].iter().copied())[..] else { return None };
        let mut cut = self.clone();
        let first = start * atom.stride;
        match atom.axis {
            Axis::Channel => cut.channel += first,
            Axis::Row => cut.row += first,
            _ => return None,
        }
        cut.dims[dim] = if length == 1 { Vec::new() } else { vec![Atom { size: length, ..atom }] };
        Some(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> View {
        // Three samples of four positions with 3 x 2 x 5 channels.
        let dims = vec![whole(Axis::Batch, 3), whole(Axis::Row, 4), whole(Axis::Channel, 30)];
        View::of(LayerId(1), dims)
    }

    #[test]
    fn heads_are_split_off_and_put_back() {
        let split = tokens().reshape(&[3, 4, 3, 2, 5]).expect("it divides");
        let value = split.transpose(&[2, 0, 3, 1, 4]).slice(0, 2, 1).expect("one run");
        assert_eq!((value.channel, value.sizes()), (20, vec![1, 3, 2, 4, 5]));
        let back = value.transpose(&[0, 1, 3, 2, 4]).reshape(&[12, 10]).expect("it divides");
        let channels = Atom { axis: Axis::Channel, size: 10, stride: 1 };
        assert_eq!(back.dims[1], [channels], "the pieces are whole again");
    }

    #[test]
    fn uneven_pieces_are_refused() {
        assert_eq!(tokens().reshape(&[4, 90]), None);
        assert_eq!(tokens().reshape(&[3, 4]), None);
        assert_eq!(tokens().reshape(&[3, 4, 30, 2]), None);
        let flat = tokens().reshape(&[12, 30]).expect("it divides");
        assert_eq!(flat.slice(0, 0, 2), None, "samples and positions are two runs");
    }

    #[test]
    fn repeated_heads_are_no_whole_output() {
        let split = tokens().reshape(&[3, 4, 6, 1, 5]).expect("it divides");
        let repeated = split.expand(&[3, 4, 6, 2, 5]).expect("one step");
        let together = repeated.reshape(&[3, 4, 12, 5]).expect("it divides");
        assert_eq!(together.dims[2].len(), 2, "six heads, each twice");
        let shape = Shape { height: 4, width: 1, channels: 30 };
        assert!(split.is_whole(3, shape) && !together.is_whole(3, shape));
        assert_eq!(split.expand(&[2, 3, 4, 6, 1, 5]).map(|view| view.sizes()), Some(vec![2, 3, 4, 6, 1, 5]));
        assert_eq!(split.expand(&[3, 4, 7, 1, 5]), None, "six are not seven");
        assert_eq!(split.expand(&[6, 1, 5]), None);
    }

    #[test]
    fn a_whole_output_is_whole_in_any_order() {
        let shape = Shape { height: 4, width: 1, channels: 30 };
        assert!(tokens().is_whole(3, shape));
        assert!(tokens().transpose(&[2, 0, 1]).is_whole(3, shape));
        assert!(!tokens().slice(2, 0, 10).expect("one run").is_whole(3, shape));
        assert!(!tokens().slice(1, 3, 1).expect("one run").is_whole(3, shape));
    }
}
