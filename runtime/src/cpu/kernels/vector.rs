//! The loops of most kernels: a map over rows of channels, and a sum over rows of channels; and for kernels that go through
//! a row several times, a map and a sum over one row.
//!
//! They are written once, on arrays of [`LANES`] numbers that the compiler turns into vectors, and compiled three times: for
//! any x86-64, for AVX2 and for AVX-512; the best that the machine supports is chosen at run time. Each number is computed
//! by the same operations in the same order at every level, and no multiply and add are fused, so the three agree to the
//! bit.
//!
//! A map reads a whole array before it writes one: inputs may be the output (in place), which is why the loops use raw
//! pointers. References would have to be exclusive or shared, and in place they are both.
//!
//! Deliberately does not share work among threads.

/// Numbers that are computed at once.
const LANES: usize = 16;

/// An address in the device's memory, which threads may share: kernels give each task its own places.
#[derive(Debug)]
pub(super) struct Ptr<T>(pub *mut T);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

// SAFETY: a pointer is only a number; each read or write through it must promise that no other task writes.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Ptr<T> {}

impl<T: Copy> Ptr<T> {
    /// Address of untyped device memory.
    pub fn of(bytes: *mut u8) -> Ptr<T> {
        Ptr(bytes.cast())
    }

    /// Address `count` elements further.
    #[inline(always)]
    pub fn at(self, count: usize) -> Ptr<T> {
        Ptr(self.0.wrapping_add(count))
    }

    /// Reads the element here.
    ///
    /// # Safety
    /// It lies in live memory that no other thread writes.
    #[inline(always)]
    pub unsafe fn get(self) -> T {
        // SAFETY: the caller's promise; kernels' operands are aligned for every element type.
        unsafe { self.0.read() }
    }

    /// Writes the element here.
    ///
    /// # Safety
    /// It lies in live memory that no other thread reads or writes.
    #[inline(always)]
    pub unsafe fn set(self, value: T) {
        // SAFETY: the caller's promise.
        unsafe { self.0.write(value) }
    }

    /// Elements from here on, for reading.
    ///
    /// # Safety
    /// They lie in live memory, hold values, and nothing writes them for as long as the slice is used.
    #[inline(always)]
    pub unsafe fn slice<'a>(self, len: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0, len) }
    }

    /// Elements from here on, for writing. Every bit pattern is a value of the element types that kernels use, and device
    /// memory is never uninitialised, as the allocator gives it zeroed.
    ///
    /// # Safety
    /// They lie in live memory, and nothing else reads or writes them for as long as the slice is used.
    #[inline(always)]
    pub unsafe fn slice_mut<'a>(self, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0, len) }
    }
}

impl Ptr<f32> {
    /// Reads [`LANES`] elements.
    ///
    /// # Safety
    /// They lie in live memory that no other thread writes.
    #[inline(always)]
    unsafe fn lanes(self) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        unsafe { self.0.cast::<[f32; LANES]>().read() }
    }
}

/// Sum of f over a row, in [`LANES`] sums that are combined in pairs, and the last four in f64. For use in [`vectorized`]
/// functions.
///
/// # Safety
/// The inputs have as many elements as the row has channels, and nothing writes them.
#[inline(always)]
pub(super) unsafe fn along<const N: usize>(
    inputs: [Ptr<f32>; N],
    channels: usize,
    f: impl Fn([f32; N]) -> f32,
) -> f64 {
    let mut parts = [0.0f32; LANES];
    let whole = channels / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        for (l, part) in parts.iter_mut().enumerate() {
            // SAFETY: start + l < channels.
            *part += f(inputs.map(|p| unsafe { p.at(start + l).get() }));
        }
    }
    for (c, part) in (whole..channels).zip(&mut parts) {
        // SAFETY: c < channels.
        *part += f(inputs.map(|p| unsafe { p.at(c).get() }));
    }
    for half in [8, 4] {
        for l in 0..half {
            parts[l] += parts[l + half];
        }
    }
    parts[..4].iter().map(|part| f64::from(*part)).sum()
}

/// `outputs = f(inputs)`, channel by channel of a row; an input may be an output. For use in [`vectorized`] functions.
///
/// # Safety
/// All have as many elements as the row has channels, and nothing else touches them; two overlap only if they are equal.
#[inline(always)]
pub(super) unsafe fn map_row<const N: usize, const K: usize>(
    inputs: [Ptr<f32>; N],
    outputs: [Ptr<f32>; K],
    channels: usize,
    f: impl Fn([f32; N]) -> [f32; K],
) {
    let whole = channels / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        let mut all = [[0.0; LANES]; K];
        for l in 0..LANES {
            // SAFETY: start + l < channels.
            let out = f(inputs.map(|p| unsafe { p.at(start + l).get() }));
            all.iter_mut().zip(out).for_each(|(of_output, o)| of_output[l] = o);
        }
        for (p, of_output) in outputs.iter().zip(all) {
            // SAFETY: start + LANES <= channels.
            unsafe { p.at(start).0.cast::<[f32; LANES]>().write(of_output) };
        }
    }
    for c in whole..channels {
        // SAFETY: c < channels.
        let out = f(inputs.map(|p| unsafe { p.at(c).get() }));
        for (p, o) in outputs.iter().zip(out) {
            // SAFETY: as above.
            unsafe { p.at(c).set(o) };
        }
    }
}

/// Compiles a function for three levels of vectors and calls the best that the machine supports.
macro_rules! vectorized {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident
     [$($generic:tt)*] ($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "shapes are clearer side by side than in a struct used once")]
        $vis unsafe fn $name<$($generic)*>($($arg: $ty),*) {
            /// The loop itself.
            ///
            /// # Safety
            /// As the enclosing function.
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "as above")]
            unsafe fn body<$($generic)*>($($arg: $ty),*) $body
            /// For AVX2.
            ///
            /// # Safety
            /// As above, and the machine has it.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            #[allow(clippy::too_many_arguments, reason = "as above")]
            unsafe fn avx2<$($generic)*>($($arg: $ty),*) {
                // SAFETY: passed on.
                unsafe { body($($arg),*) }
            }
            /// For AVX-512.
            ///
            /// # Safety
            /// As above, and the machine has it.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
            #[allow(clippy::too_many_arguments, reason = "as above")]
            unsafe fn avx512<$($generic)*>($($arg: $ty),*) {
                // SAFETY: passed on.
                unsafe { body($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::is_x86_feature_detected as has;
                if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                    // SAFETY: passed on, and the machine supports it.
                    return unsafe { avx512($($arg),*) };
                }
                if has!("avx2") {
                    // SAFETY: passed on, and the machine supports it.
                    return unsafe { avx2($($arg),*) };
                }
            }
            // SAFETY: passed on.
            unsafe { body($($arg),*) }
        }
    };
}
pub(super) use vectorized;

vectorized! {
    /// For each of `rows` rows of `channels` elements: `y = f(inputs at the same place, parameters of the channel)`.
    /// Rows follow one another without gaps. An input may be `y`.
    ///
    /// # Safety
    /// All lie in live memory of that length; nothing else touches `y` meanwhile, and it overlaps an input only if it is
    /// that input.
    pub(super) unsafe fn map_rows [const N: usize, const M: usize, F: Fn([f32; N], [f32; M]) -> f32 + Copy]
        (inputs: [Ptr<f32>; N], parameters: [Ptr<f32>; M], y: Ptr<f32>, rows: usize, channels: usize, f: F)
    {
        let whole = channels / LANES * LANES;
        for row in 0..rows {
            let start = row * channels;
            let mut c = 0;
            while c < whole {
                // SAFETY: c + LANES <= channels.
                unsafe {
                    let mut out = [0.0; LANES];
                    for (l, o) in out.iter_mut().enumerate() {
                        *o = f(inputs.map(|p| p.at(start + c + l).get()), parameters.map(|p| p.at(c + l).get()));
                    }
                    y.at(start + c).0.cast::<[f32; LANES]>().write(out);
                }
                c += LANES;
            }
            while c < channels {
                // SAFETY: c < channels.
                unsafe { y.at(start + c).set(f(inputs.map(|p| p.at(start + c).get()), parameters.map(|p| p.at(c).get()))) };
                c += 1;
            }
        }
    }
}

vectorized! {
    /// For each channel: `sums = sum over rows of f(inputs, parameters of the channel)`, in an order that depends only on
    /// `rows`. Rows follow one another without gaps.
    ///
    /// # Safety
    /// All lie in live memory of that length; nothing else touches `sums` meanwhile, and it does not overlap an input.
    pub(super) unsafe fn sum_rows [const N: usize, const M: usize, F: Fn([f32; N], [f32; M]) -> f32 + Copy]
        (inputs: [Ptr<f32>; N], parameters: [Ptr<f32>; M], sums: Ptr<f32>, rows: usize, channels: usize, f: F)
    {
        /// Number of separate partial sums: more precise, and no addition waits for the previous one.
        const APART: usize = 4;
        let mut c = 0;
        while c + LANES <= channels {
            let mut part = [[0.0f32; LANES]; APART];
            // SAFETY: c + LANES <= channels, and row < rows.
            unsafe {
                let q = parameters.map(|p| p.at(c).lanes());
                let mut row = 0;
                while row + APART <= rows {
                    for (a, part) in part.iter_mut().enumerate() {
                        let x = inputs.map(|p| p.at((row + a) * channels + c).lanes());
                        for (l, sum) in part.iter_mut().enumerate() {
                            *sum += f(x.map(|x| x[l]), q.map(|q| q[l]));
                        }
                    }
                    row += APART;
                }
                while row < rows {
                    let x = inputs.map(|p| p.at(row * channels + c).lanes());
                    for (l, sum) in part[0].iter_mut().enumerate() {
                        *sum += f(x.map(|x| x[l]), q.map(|q| q[l]));
                    }
                    row += 1;
                }
                let mut out = [0.0; LANES];
                for (l, o) in out.iter_mut().enumerate() {
                    *o = (part[0][l] + part[1][l]) + (part[2][l] + part[3][l]);
                }
                sums.at(c).0.cast::<[f32; LANES]>().write(out);
            }
            c += LANES;
        }
        while c < channels {
            let mut part = [0.0f32; APART];
            // SAFETY: c < channels and row < rows.
            unsafe {
                let q = parameters.map(|p| p.at(c).get());
                for row in 0..rows {
                    // The same order as above: rows that do not fill a group of APART go to the first part.
                    let a = if row < rows / APART * APART { row % APART } else { 0 };
                    part[a] += f(inputs.map(|p| p.at(row * channels + c).get()), q);
                }
                sums.at(c).set((part[0] + part[1]) + (part[2] + part[3]));
            }
            c += 1;
        }
    }
}
