//! The same checks on random shapes, new in every run and valid by construction; a failing one is shrunk and printed.
//!
//! Deliberately does not hold a formula, or compare; each case is one that `main` also has for fixed shapes.

use super::*;
use plimsoll_ir::network::Function;
use plimsoll_ir::philox::philox4x32;
use proptest::prelude::*;

/// A window that fits some image, and the image.
fn windows() -> impl Strategy<Value = (Window, [u32; 2])> {
    let along = || {
        (1u32..=4, 1u32..=3, 1u32..=3, 0u32..=3).prop_flat_map(|(size, stride, dilation, padding)| {
            // The smallest image that the window fits, and up to 12 more.
            let reach = dilation * (size - 1) + 1;
            let least = reach.saturating_sub(2 * padding).max(1);
            (Just([size, stride, padding, dilation]), least..least + 12)
        })
    };
    (along(), along()).prop_map(|((y, image_y), (x, image_x))| {
        let [size, stride, padding, dilation] = [0, 1, 2, 3].map(|i| [y[i], x[i]]);
        (Window { size, stride, padding, dilation }, [image_y, image_x])
    })
}

/// Channels of a group: some fill tiles of four and eight, others do not.
fn channels() -> impl Strategy<Value = u32> {
    prop_oneof![1u32..=9, (1u32..=6).prop_map(|n| 4 * n)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "minutes: CI runs it"]
    fn convolutions((window, image) in windows(), sides in [channels(), channels()], groups in 1u32..=3,
                    batch in 1u64..=4, bias: bool, seed in 0u32..60_000) {
        convolution(conv_shape(batch, image, sides.map(|n| n * groups), window, groups, bias), seed);
    }

    #[test]
    fn pooling((window, image) in windows(), channels in 1u32..=9, batch in 1u64..=3, ceil: bool, seed in 0u32..60_000) {
        // Less padding than window, and no gaps: each window has an element to be the largest.
        let padding = [0, 1].map(|d| window.padding[d].min(window.size[d] - 1));
        let window = Window { padding, dilation: [1; 2], ..window };
        let [height, width] = image;
        let output = if ceil { window.output_ceil(height, width) } else { window.output(height, width) };
        let output = output.expect("it fits as it did");
        pooling_of(PoolShape { batch, input: image, output, channels, window }, seed);
    }

    #[test]
    #[ignore = "minutes: CI runs it"]
    fn batch_norm(rows in 8usize..2000, channels in 1usize..70, seed in 0u32..60_000) {
        batch_norm::some_after(rows, channels, seed);
        batch_norm_after_training_of(rows as u64, channels, seed);
    }

    #[test]
    #[ignore = "minutes: CI runs it"]
    fn elements(n in 1usize..5000, seed in 0u32..60_000, probability in 0f32..0.99, more: [u32; 4]) {
        add_of(n, seed);
        relu_of(n, if seed % 2 == 0 { 0.3 } else { f32::INFINITY }, seed);
        descent_of(n, seed);
        dropout_of(n, probability, more);
        activation::activation_of(Function::ALL[seed as usize % Function::ALL.len()], n, seed);
        multiply::product_of(n, seed);
    }

    #[test]
    #[ignore = "minutes: CI runs it"]
    fn layer_norm(rows in 1usize..300, channels in 1usize..300, seed in 0u32..60_000) {
        layer_norm::layer_norm_of(rows, channels, seed);
        layer_norm::rms_norm_of(rows, channels, seed);
    }

    #[test]
    #[ignore = "minutes: CI runs it"]
    fn attention(sides in (1u64..4, 1u64..90, 1u64..4, 1u64..4, 1u64..20), causal: bool, seed in 0u32..60_000) {
        let (batch, length, kv_heads, group, of_head) = sides;
        attention::attention_of([batch, length, kv_heads, group, of_head], causal, seed);
    }

    #[test]
    fn rotary(sides in (1u64..4, 1u64..90, 1u64..4, 1u64..40), base in 2f32..1e5, seed in 0u32..60_000) {
        let (batch, length, heads, half) = sides;
        attention::rotary_of([batch, length, heads, 2 * half], base, seed);
    }

    #[test]
    fn sequences(rows in 1usize..90, channels in 1usize..90, before in 0u64..9, count in 1u64..40, after in 0u64..9,
                 seed in 0u32..60_000) {
        sequences::bias_of(rows, channels, seed);
        sequences::lstm_of(rows.min(20), channels, seed);
        let (vocabulary, width) = (rows as u64, channels as u64);
        sequences::embedding_of([rows as u64 % 3 + 1, before + count + after, before, count, vocabulary, width], seed);
    }

    #[test]
    #[ignore = "minutes: CI runs it"]
    fn parts(rows in 1usize..100, before in 0usize..40, channels in 1usize..40, after in 0usize..40, seed in 0u32..60_000) {
        part_of(rows, [before, channels, before + channels + after], seed);
    }

    #[test]
    #[ignore = "minutes: CI runs it"]
    fn local_response(rows in 1usize..30, channels in 1usize..12, size in 1u32..8, seed in 0u32..60_000) {
        for beta in [0.75, 0.6] {
            local_response_normalisation_of(rows, channels, size, beta, seed);
        }
    }

    #[test]
    #[ignore = "minutes: CI runs it"]
    fn losses(channels in 1usize..90, rows in 1usize..40, seed in 0u32..60_000) {
        let label = |row: usize| (philox4x32(u64::from(seed), [row as u32, 0, 0, 0])[0] % (channels as u32 + 1)) as i32 - 1;
        softmax_cross_entropy_of(channels, &(0..rows).map(label).collect::<Vec<_>>(), seed);
    }
}
