//! The zoo: published parameter counts and FLOPs at the default sizes, and the errors for invalid specs.

use plimsoll_ir::network::{Axis, Extent, LayerKind, Network, NetworkSpec, Window};
use plimsoll_networks::{Builder, LowerOptions, Mode, NetworkError, build, entries, lower, nearest};

fn spec(name: &str, image: u32, channels: u32, classes: u32) -> NetworkSpec {
    NetworkSpec { name: name.to_owned(), image: [image; 2], channels, classes }
}

/// Returns a network at the size that its family was published for.
fn usual(name: &str) -> Network {
    build(&plimsoll_networks::usual(name).expect("it is in the table")).expect("its usual size works")
}

#[test]
fn parameter_counts_are_the_published_ones() {
    let check = |name: &str, published: u64| assert_eq!(usual(name).all_parameters(), published, "{name}");
    // torchvision's model table.
    check("resnet18", 11_689_512);
    check("resnet34", 21_797_672);
    check("resnet50", 25_557_032);
    check("resnet101", 44_549_160);
    check("resnet152", 60_192_808);
    check("vgg11", 132_863_336);
    check("vgg13", 133_047_848);
    check("vgg16", 138_357_544);
    check("vgg19", 143_667_240);
    // Caffe's bvlc_alexnet (two groups).
    check("alexnet", 60_965_224);
    // Layer by layer from Chintala's convnet-benchmarks (overfeat.lua), biases included: 34,944 + 614,656 + 1,180,160 +
    // 4,719,616 + 9,438,208 of the convolutions, 113,249,280 + 12,587,008 + 4,097,000 of the others; table 1 of Sermanet
    // et al. 2014 says 145 million.
    check("overfeat", 145_920_872);
    // torchvision's model table again; Inception v3 has 27,161,264 there, 3,326,696 of them in the auxiliary head.
    check("densenet121", 7_978_856);
    check("densenet161", 28_681_000);
    check("densenet169", 14_149_480);
    check("densenet201", 20_013_928);
    check("googlenet", 6_624_904);
    check("inception_v3", 27_161_264 - 3_326_696);
    check("wide_resnet50_2", 68_883_240);
    check("wide_resnet101_2", 126_886_696);
    check("mobilenet_v2", 3_504_872);
    // Ronneberger et al. 2015, figure 1, counted layer by layer for one channel and two classes; programs that end in one
    // class report 31,030,593, which is 65 fewer. Figures around 31,037,000 are for three channels and with normalisation.
    check("unet", 31_030_593 + 65);
    // Radford et al. 2019, table 2, as in the published weights, the head tied to the table of tokens.
    check("gpt", 124_439_808);
    check("gpt-medium", 354_823_168);
    check("gpt-large", 774_030_080);
    check("gpt-xl", 1_557_611_200);
    // The published bert-base-uncased with its head for masked tokens and without its pooler: tables of 30,522 tokens, 512
    // positions and 2 segments of 768 with their normalisation 23,837,184, 12 blocks of 7,087,872, transform 592,128,
    // bias 30,522.
    check("bert", 109_514_298);
    // 4.4M in Turc et al. 2019, table 1.
    check("bert-tiny", 4_416_698);
    check("bert-large", 335_174_458);
    // (V + T) d of the tables, 12 d^2 + 13 d of each block, 2 d of the last normalisation.
    check("gpt-tiny", (65 + 64) * 128 + 4 * (12 * 128 * 128 + 13 * 128) + 2 * 128);
    // 10.65M in nanoGPT, which does not count positions and has no biases.
    check("gpt-mini", (65 + 256) * 384 + 6 * (12 * 384 * 384 + 13 * 384) + 2 * 384);
    // Zhang et al. 2024: 22 blocks of 2048 with 32 heads, 4 of keys and values, and 5632 within; table and head of 32,000
    // tokens.
    check("tinyllama", 1_100_048_384);
    // 2 V d of table and head; queries and output d^2 each, keys and values half of it, three matrices of 352 d, two scales
    // of d.
    check("llama-tiny", 2 * 65 * 128 + 4 * (3 * 128 * 128 + 3 * 352 * 128 + 2 * 128) + 128);
    // Table of tokens, input and hidden to four gates, one bias, head.
    check("lstm", 65 * 128 + 4 * 512 * (128 + 512 + 1) + 65 * (512 + 1));
    check("lenet", 61_706);
    // 784 x 256, 256 x 256, 256 x 10, and biases.
    check("mlp", 269_322);
    // He et al. table 6 gives 0.27M, 0.85M and 1.7M with option A; option B has 2,752 more.
    check("resnet20", 269_722 + 2_752);
    check("resnet56", 853_018 + 2_752);
    check("resnet110", 1_727_962 + 2_752);
    check("resnet8-cifar", 75_290 + 2_752);
    // Stochastic depth has no parameters.
    // 19.4M in the same table.
    check("resnet1202", 19_421_274 + 2_752);
    // Zagoruyko and Komodakis 2016, table 4, rounds them to 8.9M, 11.0M and 36.5M.
    check("wrn-40-4", 8_949_210);
    check("wrn-16-8", 10_961_370);
    check("wrn-28-10", 36_479_194);
    // Layrub counts the depth as He et al. do: one block per group.
    assert_eq!(usual("wrn-8-256").all_parameters(), usual("wrn-10-256").all_parameters());
    let cifar100 = build(&spec("wrn-28-10", 32, 3, 100)).expect("it is like that for 10 classes");
    assert_eq!(cifar100.all_parameters(), 36_536_884, "as most programs count it");
}

#[test]
fn enlarged_networks_have_the_layers_that_their_papers_say() {
    let weighted = |name: &str| {
        let network = usual(name);
        let counts = |l: &&plimsoll_ir::network::Layer| {
            let shortcut = l.name.contains("downsample") || l.name.ends_with("shortcut");
            !shortcut && matches!(l.kind, LayerKind::Conv { .. } | LayerKind::FullyConnected { .. })
        };
        network.layers.iter().filter(counts).count()
    };
    for (name, layers) in [
        ("vgg16", 16),
        ("vgg116", 116),
        ("vgg416", 416),
        // vDNN's VGG-116 and VGG-516 (§4.3), which count the 16 + 100k convolutions.
        ("vgg119", 119),
        ("vgg519", 519),
        ("resnet35", 35),
        ("resnet50", 50),
        ("resnet302", 302),
        ("resnet1001", 1001),
        ("resnet1517", 1517),
        ("resnet20", 20),
        ("resnet110", 110),
        // Layrub tables 6 and 8.
        ("resnet1172", 1172),
        ("resnet1304", 1304),
        ("resnet1202", 1202),
        ("resnet1202-imagenet", 1202),
        ("resnet50-imagenet", 50),
        ("resnet50-cifar", 50),
        ("wrn-8-128", 8),
        ("wrn-28-10", 26),
        ("overfeat", 8),
        ("densenet121", 121),
        ("densenet161", 161),
        ("densenet169", 169),
        ("densenet201", 201),
    ] {
        assert_eq!(weighted(name), layers, "{name}");
    }
}

#[test]
fn multiply_adds_are_the_published_ones() {
    // torchvision's table of GFLOPS counts a multiply-add as one, convolutions and fully connected layers only.
    let check = |name: &str, published: f64| {
        let network = usual(name);
        let counted = |l: &&plimsoll_ir::network::Layer| {
            matches!(l.kind, LayerKind::Conv { .. } | LayerKind::FullyConnected { .. })
        };
        let flops: u64 = network.layers.iter().filter(counted).map(|l| l.forward_flops).sum();
        let giga = flops as f64 / 2e9;
        assert!((giga - published).abs() < 0.0101, "{name}: {giga} instead of {published}");
    };
    check("resnet18", 1.81);
    check("resnet34", 3.66);
    check("resnet50", 4.09);
    check("resnet101", 7.80);
    check("resnet152", 11.51);
    check("vgg11", 7.61);
    check("vgg16", 15.47);
    check("vgg19", 19.63);
    check("densenet121", 2.83);
    check("densenet161", 7.73);
    check("mobilenet_v2", 0.30);
    check("googlenet", 1.50);
    check("inception_v3", 5.71);
    check("wide_resnet50_2", 11.40);
}

#[test]
fn usual_images_are_those_of_the_family() {
    let check = |name: &str, expected: Option<(u32, u32, u32)>| {
        let found = plimsoll_networks::usual(name).map(|s| (s.image[0], s.channels, s.classes));
        assert_eq!(found, expected, "{name}");
    };
    check("resnet20", Some((32, 3, 10)));
    check("resnet1001", Some((224, 3, 1000)));
    check("vgg116", Some((224, 3, 1000)));
    check("lenet", Some((28, 1, 10)));
    check("resnet", None);
    check("vgg<N>", None);
    check("resnet1202-imagenet", Some((224, 3, 1000)));
    check("resnet1202", Some((32, 3, 10)));
    check("wrn-8-256", Some((32, 3, 10)));
    check("overfeat", Some((231, 3, 1000)));
    check("wrn-8", None);
    check("wrn-<D>-<W>", None);
    check("densenet", None);
}

#[test]
fn every_network_is_built_for_any_images() {
    for entry in entries().iter().filter(|e| !e.name.contains('<')) {
        let text = entry.image[1] == 1;
        let shapes = match entry.name {
            "unet" => [([16, 16], 3, 10), ([96, 80], 1, 2), ([48, 128], 5, 1)],
            _ if text => [([1, 1], 1, 10), ([9, 1], 1, 2), ([40, 1], 1, 1)],
            _ => [([75, 75], 3, 10), ([97, 82], 1, 2), ([76, 130], 5, 1)],
        };
        for (image, channels, classes) in shapes {
            let spec = NetworkSpec { name: entry.name.to_owned(), image, channels, classes };
            let network = build(&spec).unwrap_or_else(|e| panic!("{}: {e}", entry.name));
            assert_eq!(network.spec, spec);
            assert_eq!(network.layers.last().map(|l| l.output.channels), Some(classes));
        }
    }
    // The shipped digits are 8x8 in one channel: three groups at 8x8, 4x4, 2x2.
    let digits = build(&spec("resnet20", 8, 1, 10)).expect("8x8 is enough");
    let pooled = digits.layers.iter().find(|l| l.kind == LayerKind::GlobalAvgPool).expect("it has one");
    assert_eq!(digits.input_shape(pooled).to_string(), "2x2x64");
}

#[test]
fn only_near_names_are_proposed() {
    let check = |asked: &str, expected: &[&str]| {
        let names = entries().iter().map(|entry| entry.name);
        assert_eq!(nearest(asked, names), expected, "{asked}");
    };
    check("vit", &[]);
    check("transformer", &[]);
    check("", &[]);
    check("x", &[]);
    check("resnt18", &["resnet18"]);
    check("renset18", &["resnet18"]);
    check("ResNet-18", &["resnet18", "resnet110"]);
    check("alex", &["alexnet"]);
    check("gpt2", &["gpt"]);
    let error = build(&spec("vit", 32, 3, 10)).expect_err("there is none").to_string();
    assert_eq!(error, "no network is called `vit`");
}

#[test]
fn specs_that_make_no_sense_are_refused_with_what_to_do() {
    let check = |name: &str, image: u32, channels: u32, classes: u32, words: &[&str]| {
        let error = build(&spec(name, image, channels, classes)).expect_err(name).to_string();
        for word in words {
            assert!(error.contains(word), "{name}: `{error}` does not say `{word}`");
        }
    };
    check("resnet19", 32, 3, 10, &["resnet18", "resnet20"]);
    check("resnet36", 32, 3, 10, &["resnet35", "resnet38"]);
    check("resnet99999999999999", 32, 3, 10, &["resnet9998"]);
    check("resnet0", 32, 3, 10, &["no network is called", "resnet20"]);
    check("vgg17", 64, 3, 10, &["vgg16", "vgg19"]);
    check("vgg22", 64, 3, 10, &["vgg21", "vgg24"]);
    check("resnet51-imagenet", 224, 3, 10, &["resnet50-imagenet", "resnet53-imagenet", "3n + 2"]);
    check("resnet51-cifar", 32, 3, 10, &["resnet50-cifar", "resnet56-cifar", "6n + 2"]);
    check("wrn-9-4", 32, 3, 10, &["wrn-8-4", "wrn-10-4", "6n + 4"]);
    check("wrn-28-0", 32, 3, 10, &["no network is called"]);
    check("wrn-28-99999999999", 32, 3, 10, &["weights of layer", "smaller"]);
    check("densenet122", 224, 3, 10, &["did you mean densenet121"]);
    check("inception_v3", 64, 3, 10, &["64x64", "at least 75x75"]);
    check("unet", 100, 3, 10, &["100x100", "multiples of 16", "give 112x112"]);
    check("gpt", 100, 3, 10, &["`wte`", "one column"]);
    check("lstm", 100, 3, 10, &["`embedding.0`", "one column"]);
    let long = NetworkSpec { image: [u32::MAX, 1], ..spec("lstm", 1, 1, 10) };
    assert!(build(&long).expect_err("too long").to_string().contains("at most 65536"));
    check("overfeat", 70, 3, 10, &["`pool5`", "at least 71x71"]);
    check("ResNet-18", 32, 3, 10, &["no network is called `ResNet-18`", "resnet18"]);
    check("alexnt", 64, 3, 10, &["did you mean alexnet"]);
    check("", 64, 3, 10, &["no network is called ``"]);
    check("alexnet", 62, 3, 10, &["62x62", "`pool5`", "at least 63x63"]);
    check("vgg16", 31, 3, 10, &["`pool5`", "at least 32x32"]);
    check("lenet", 8, 1, 10, &["`conv2`", "at least 12x12"]);
    check("mlp", 0, 1, 10, &["height is 0"]);
    check("mlp", 8, 0, 10, &["channels is 0"]);
    check("mlp", 8, 1, 0, &["classes is 0"]);
    check("resnet18", u32::MAX, u32::MAX, 10, &["images", "smaller"]);
    check("mlp", 65_535, 1_000, 10, &["fc1", "2^32"]);
}

#[test]
fn the_smallest_image_of_the_table_is_the_smallest() {
    for (name, smallest) in [
        ("alexnet", 63),
        ("overfeat", 71),
        ("inception_v3", 75),
        ("densenet121", 29),
        ("vgg11", 32),
        ("lenet", 12),
        ("resnet50", 1),
        ("mlp", 1),
    ] {
        assert!(build(&spec(name, smallest, 3, 10)).is_ok(), "{name}");
        assert!(build(&spec(name, smallest - 1, 3, 10)).is_err(), "{name}");
    }
}

#[test]
fn layers_that_make_no_sense_are_refused() {
    let check = |word: &str, layer: &dyn Fn(&mut Builder) -> Result<(), NetworkError>| {
        let mut builder = Builder::new(&spec("test", 8, 4, 10)).expect("a sound spec");
        let error = layer(&mut builder).expect_err(word).to_string();
        assert!(error.contains(word), "`{error}` does not say `{word}`");
    };
    let conv = |out_channels, window, groups| LayerKind::Conv { out_channels, window, groups, bias: false };
    let one = |kind: LayerKind| move |b: &mut Builder| b.add("l", kind.clone(), &[b.images()]).map(drop);
    check("groups", &one(conv(6, Window::square(1, 1, 0), 4)));
    check("at least 1", &one(conv(4, Window::square(1, 1, 0), 0)));
    check("at least 1", &one(conv(4, Window::square(1, 0, 0), 1)));
    check("a window of 9x9 does not fit its input of 8x8x4", &one(conv(4, Window::square(9, 1, 0), 1)));
    check("the weights of layer `l` would take", &one(conv(u32::MAX, Window::square(255, 1, 127), 1)));
    check("256 positions", &one(LayerKind::MaxPool { window: Window::square(17, 1, 8), ceil: false }));
    check("wholly in the padding", &one(LayerKind::MaxPool { window: Window::square(2, 2, 2), ceil: false }));
    check("from 0 to below 1", &one(LayerKind::Dropout { probability: 1.0 }));
    check("from 0 to below 1", &one(LayerKind::Dropout { probability: f32::NAN }));
    check("cannot be multiplied", &|b: &mut Builder| {
        let pool = b.max_pool("pool", b.images(), Window::square(2, 2, 0))?;
        b.add("l", LayerKind::Multiply, &[b.images(), pool]).map(drop)
    });
    check("it takes 2 input", &one(LayerKind::Multiply));
    check("odd", &one(LayerKind::Lrn { size: 4, alpha: 1.0, beta: 1.0, bias: 1.0 }));
    for epsilon in [0.0, f32::NAN, f32::INFINITY] {
        check("epsilon is above 0", &one(LayerKind::LayerNorm { epsilon }));
        check("epsilon is above 0", &one(LayerKind::RmsNorm { epsilon }));
    }
    check("at least 2", &|b| {
        let conv = b.conv("conv", b.images(), 1, Window::square(1, 1, 0), false)?;
        b.layer_norm("l", conv).map(drop)
    });
    check("takes 2 input", &one(LayerKind::Add));
    check("the builder itself", &one(LayerKind::Input));
    check("the name is taken", &|b| b.relu("images", b.images()).map(drop));
    check("does not exist", &|b| b.relu("l", plimsoll_ir::LayerId(7)).map(drop));
    check("takes 1 input(s), not 0", &|b| {
        b.add("l", LayerKind::Concat { along: Axis::Channels }, &[]).map(drop)
    });
    check("cannot be added", &|b| {
        let pool = b.max_pool("pool", b.images(), Window::square(2, 2, 0))?;
        b.add("l", LayerKind::Add, &[b.images(), pool]).map(drop)
    });
    check("side by side", &|b| {
        let pool = b.max_pool("pool", b.images(), Window::square(2, 2, 0))?;
        b.add("l", LayerKind::Concat { along: Axis::Channels }, &[b.images(), pool]).map(drop)
    });
    let finish = |used: bool| {
        move |b: &mut Builder| {
            let logits = b.fully_connected("fc", b.images(), if used { 9 } else { 10 })?;
            b.relu("unused", b.images())?;
            b.clone().finish(logits).map(drop)
        }
    };
    check("`fc`: the loss needs 10 channels, one for each class, not 1x1x9", &finish(true));
    check("`unused`: no layer uses its output", &finish(false));
}

/// Checks that a layer on six tokens is refused with an error that contains this word.
fn refused_on_six_tokens(word: &str, layer: &dyn Fn(&mut Builder) -> Result<(), NetworkError>) {
    let spec = NetworkSpec { image: [6, 1], ..spec("test", 6, 1, 5) };
    let mut builder = Builder::new(&spec).expect("a sound spec");
    let error = layer(&mut builder).expect_err(word).to_string();
    assert!(error.contains(word), "`{error}` does not say `{word}`");
}

fn lookup(first: u32, length: u32) -> LayerKind {
    LayerKind::Embedding { vocabulary: 5, width: 8, first, length }
}

/// Returns a layer of this kind on the six tokens' embeddings.
fn on_tokens(kind: LayerKind) -> impl Fn(&mut Builder) -> Result<(), NetworkError> {
    move |b: &mut Builder| {
        let x = b.add("tokens", lookup(0, 6), &[b.images()])?;
        b.add("l", kind.clone(), &[x]).map(drop)
    }
}

#[test]
fn layers_of_sequences_that_make_no_sense_are_refused() {
    let check = refused_on_six_tokens;
    let pixel = Window::square(1, 1, 0);
    for (first, length) in [(0, 7), (6, 1), (u32::MAX, 2)] {
        check("are not among the 6", &|b| b.add("l", lookup(first, length), &[b.images()]).map(drop));
    }
    check("at least 1", &|b| b.add("l", lookup(0, 0), &[b.images()]).map(drop));
    check("only the input holds", &on_tokens(lookup(0, 6)));
    check("can hold one of them", &|b| {
        b.add("tokens", lookup(0, 6), &[b.images()])?;
        b.conv("l", b.images(), 4, pixel, false).map(drop)
    });
    check("can hold one of them", &|b| {
        b.conv("conv", b.images(), 4, pixel, false)?;
        b.add("l", lookup(0, 6), &[b.images()]).map(drop)
    });
    let attention = |heads, kv_heads| on_tokens(LayerKind::Attention { heads, kv_heads, causal: true });
    check("1 heads of queries, 1 of keys and 1 of values", &attention(1, 1));
    check("4 heads of queries, 4 of keys and 4 of values", &attention(4, 4));
    for [heads, kv_heads] in [[3, 2], [2, 4], [0, 1], [1, 0], [0, 0]] {
        check("cannot share", &attention(heads, kv_heads));
    }
    check("cannot share", &attention(u32::MAX, 2));
    check("side by side", &attention(u32::MAX, u32::MAX));
    for width in [0, 1, 3, 6, 16] {
        check("which must be even", &on_tokens(LayerKind::Rotary { width, base: 1e4 }));
    }
    for base in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        check("base of rotary embeddings is above 0", &on_tokens(LayerKind::Rotary { width: 4, base }));
    }
    check("four gates", &|b| {
        let x = b.add("tokens", lookup(0, 1), &[b.images()])?;
        let gates = b.fully_connected("gates", x, 6)?;
        b.add("l", LayerKind::LstmCell, &[gates]).map(drop)
    });
    check("the step before, another memory cell", &|b| {
        let x = b.add("tokens", lookup(0, 1), &[b.images()])?;
        let before = b.fully_connected("before", x, 2)?;
        b.add("l", LayerKind::LstmCell, &[x, before]).map(drop)
    });
    check("the cell state goes to one", &|b| {
        let x = b.add("tokens", lookup(0, 1), &[b.images()])?;
        let before = b.add("before", LayerKind::LstmCell, &[x])?;
        b.add("next", LayerKind::LstmCell, &[x, before])?;
        b.add("l", LayerKind::LstmCell, &[x, before]).map(drop)
    });
}

#[test]
fn layers_whose_shapes_do_not_fit_are_refused() {
    let check = refused_on_six_tokens;
    let pixel = Window::square(1, 1, 0);
    check("are of another shape", &|b| {
        let table = b.add("tokens", lookup(0, 6), &[b.images()])?;
        let head = LayerKind::Conv { out_channels: 5, window: pixel, groups: 1, bias: true };
        b.add_sharing("l", head, &[table], table).map(drop)
    });
    check("are of another shape", &|b| {
        let table = b.add("tokens", lookup(0, 6), &[b.images()])?;
        let norm = b.layer_norm("norm", table)?;
        b.add_sharing("l", LayerKind::LayerNorm { epsilon: 1e-5 }, &[norm], norm).map(drop)
    });
    check("lie below one another", &|b| {
        let [x, y] = [(0, 8), (1, 9)].map(|(first, width)| {
            let kind = LayerKind::Embedding { vocabulary: 5, width, first, length: 1 };
            b.add(&format!("tokens{width}"), kind, &[b.images()])
        });
        b.add("l", LayerKind::Concat { along: Axis::Rows }, &[x?, y?]).map(drop)
    });
    for ceiling in [0.0, -1.0, f32::NAN] {
        check("ceiling is above 0", &on_tokens(LayerKind::Relu { ceiling }));
    }
    let grow = |out_channels, window| LayerKind::ConvTranspose { out_channels, window };
    check("at least 1", &on_tokens(grow(0, pixel)));
    check("at least 1", &on_tokens(grow(4, Window::square(2, 0, 0))));
    check("leaves nothing", &on_tokens(grow(4, Window::square(2, 1, 9))));
    check("spare rows", &on_tokens(LayerKind::Bias { over: Extent::Channels, spare: 1024 }));
}

#[test]
fn windows_reach_beyond_the_padding_only_where_they_start_on_the_input() {
    // Sizes of PyTorch's MaxPool2d with ceil_mode.
    for (input, window, plain, ceil) in [
        (112, Window::square(3, 2, 0), 55, 56),
        (56, Window::square(3, 2, 1), 28, 29),
        (7, Window::square(2, 2, 0), 3, 4),
        (5, Window::square(2, 3, 1), 2, 2),
        (4, Window::square(2, 3, 1), 2, 2),
        (6, Window::square(3, 3, 0), 2, 2),
    ] {
        assert_eq!(window.output(input, input), Some([plain; 2]), "{input} {window:?}");
        assert_eq!(window.output_ceil(input, input), Some([ceil; 2]), "{input} {window:?}");
    }
}

#[test]
fn batches_that_make_no_sense_are_refused() {
    let check = |name: &str, image: u32, batch: u64, word: &str| {
        let network = build(&spec(name, image, 3, 10)).expect("a sound spec");
        let error = lower(&network, batch, &LowerOptions::default()).expect_err(word).to_string();
        assert!(error.contains(word), "`{error}` does not say `{word}`");
    };
    check("mlp", 8, 0, "the batch size is 0");
    check("mlp", 8, 1 << 40, "at a batch of 1099511627776 would take");
    check("resnet152", 224, u64::MAX, "smaller");
    check("resnet20", 4, 1, "`layer3.0.bn1` sees one position");
    let network = build(&spec("resnet20", 4, 3, 10)).expect("a sound spec");
    let evaluate = LowerOptions { mode: Mode::Evaluate, ..LowerOptions::default() };
    assert!(lower(&network, 1, &evaluate).is_ok(), "evaluation needs no variance");
}
