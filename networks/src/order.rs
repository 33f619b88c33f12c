//! In which order one tensor has the elements of another.
//!
//! What this file does not do: hold elements.

/// For each element of a tensor, in its order: where another tensor has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// At even distances in each of some dimensions.
    Strided {
        /// Where the first element lies.
        first: i64,
        /// Dimensions, outermost first.
        dims: Vec<u64>,
        /// Elements of the other tensor from one step of a dimension to the next.
        strides: Vec<i64>,
    },
    /// At these places.
    Listed(Vec<usize>),
}

impl Order {
    /// The order of the tensor itself.
    pub fn same(elements: u64) -> Order {
        Order::Strided { first: 0, dims: vec![elements], strides: vec![1] }
    }

    /// Calls `each` with the place of every element.
    pub fn each(&self, mut each: impl FnMut(usize)) {
        match self {
            Order::Strided { first, dims, strides } => place_each(dims, *first, strides, each),
            Order::Listed(places) => places.iter().for_each(|place| each(*place)),
        }
    }

    /// Whether it is seen at once that it has each of so many places exactly once: dimensions in another order. One that is
    /// [listed](Order::Listed) is not looked at.
    pub fn is_permutation(&self, elements: u64) -> bool {
        let Order::Strided { first: 0, dims, strides } = self else { return false };
        let mut steps: Vec<(i64, u64)> =
            strides.iter().copied().zip(dims.iter().copied()).filter(|(_, dim)| *dim != 1).collect();
        steps.sort_unstable();
        let inner = steps.iter().try_fold(1_u64, |inner, (stride, dim)| {
            (u64::try_from(*stride) == Ok(inner)).then(|| inner.checked_mul(*dim)).flatten()
        });
        inner == Some(elements)
    }

    /// Copies elements of 4 bytes from these places to those of another order of as many.
    pub fn copy(&self, from: &[u8], other: &Order, to: &mut [u8]) {
        let (from, to) = (from.as_chunks::<4>().0, to.as_chunks_mut::<4>().0);
        let mut elements = Vec::with_capacity(to.len().min(from.len()));
        self.each(|place| elements.push(from.get(place).copied().unwrap_or_default()));
        let mut elements = elements.into_iter();
        other.each(|place| {
            if let (Some(place), Some(element)) = (to.get_mut(place), elements.next()) {
                *place = element;
            }
        });
    }
}

/// Calls `each` with where every element of a result of these dimensions is read from.
pub fn place_each(dims: &[u64], first: i64, strides: &[i64], mut each: impl FnMut(usize)) {
    let mut index = vec![0_u64; dims.len()];
    let mut at = first;
    let elements = dims.iter().try_fold(1_u64, |all, dim| all.checked_mul(*dim));
    for _ in 0..elements.unwrap_or(0) {
        each(usize::try_from(at).unwrap_or(usize::MAX));
        for d in (0..dims.len()).rev() {
            index[d] += 1;
            // A step beyond the last position may be of any size, and is taken back at once.
            at = at.wrapping_add(strides[d]);
            if index[d] < dims[d] {
                break;
            }
            at = at.wrapping_sub(strides[d].wrapping_mul(dims[d] as i64));
            index[d] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_in_any_order_are_a_permutation() {
        let check = |first: i64, dims: &[u64], strides: &[i64], expected: bool| {
            let order = Order::Strided { first, dims: dims.to_vec(), strides: strides.to_vec() };
            assert_eq!(order.is_permutation(24), expected, "{order:?}");
        };
        check(0, &[24], &[1], true);
        check(0, &[4, 2, 3], &[1, 4, 8], true);
        check(0, &[2, 1, 12], &[1, 99, 2], true);
        check(0, &[12, 3], &[1, 8], false);
        check(0, &[2, 24], &[0, 1], false);
        check(0, &[24], &[-1], false);
        check(0, &[12], &[2], false);
        check(12, &[24], &[1], false);
        assert!(!Order::same(23).is_permutation(24) && Order::same(24).is_permutation(24));
    }

    #[test]
    fn what_is_copied_into_an_order_is_copied_back() {
        let numbers: Vec<u8> = (0..6_u32).flat_map(u32::to_le_bytes).collect();
        for order in [
            Order::Strided { first: 0, dims: vec![3, 2], strides: vec![1, 3] },
            Order::Listed(vec![0, 3, 1, 4, 2, 5]),
        ] {
            let [mut turned, mut back] = [(); 2].map(|()| vec![0; numbers.len()]);
            order.copy(&numbers, &Order::same(6), &mut turned);
            assert_eq!([turned[0], turned[4], turned[8]], [0, 3, 1]);
            Order::same(6).copy(&turned, &order, &mut back);
            assert_eq!(back, numbers);
        }
    }
}
