//! Lowered networks small enough to be checked by hand, op by op: `op: reads -> writes`, with `!` on ops that update resident
//! state. A tensor on both sides is updated in place.

use plimsoll_ir::network::{Axis, LayerKind, Network, NetworkSpec, Window};
use plimsoll_ir::program::Program;
use plimsoll_ir::trace::Phase;
use plimsoll_ir::{LayerId, TensorId};
use plimsoll_networks::{Builder, LowerOptions, Mode, NetworkError, ReluStorage, lower};

/// Returns a network on 4x4x2 images with 3 classes.
fn network(layers: impl Fn(&mut Builder) -> Result<LayerId, NetworkError>) -> Network {
    let spec = NetworkSpec { name: "test".to_owned(), image: [4, 4], channels: 2, classes: 3 };
    let mut builder = Builder::new(&spec).expect("a sound spec");
    let features = layers(&mut builder).expect("sound layers");
    let logits = builder.fully_connected("fc", features, 3).expect("sound layers");
    builder.finish(logits).expect("sound layers")
}

/// Returns the ops of forward and backward, one per line.
fn listing(program: &Program) -> String {
    let names = |ids: &[TensorId]| {
        let names: Vec<&str> = ids.iter().map(|t| program.trace.tensors[t.index()].name.as_str()).collect();
        names.join(" ")
    };
    let ops = program.trace.ops.iter().filter(|op| op.phase != Phase::Update);
    ops.map(|op| {
        let mark = if op.recomputable { "" } else { "!" };
        format!("{}{mark}: {} -> {}\n", op.name, names(&op.reads), names(&op.writes)).replace(" \n", "\n")
    })
    .collect()
}

fn check(network: &Network, mode: Mode, relu: ReluStorage, expected: &str) {
    check_of(network, &LowerOptions { mode, relu, ..LowerOptions::default() }, expected);
}

fn check_of(network: &Network, options: &LowerOptions<'_>, expected: &str) {
    let found = listing(&lower(network, 2, options).expect("it lowers"));
    let expected: String = expected.lines().map(|line| format!("{}\n", line.trim())).collect();
    assert!(found == expected, "expected:\n{expected}\nfound:\n{found}");
}

/// Returns conv - bn - relu - add with a shortcut from the first ReLU - relu, as in a residual network.
fn residual() -> Network {
    network(|b| {
        let stem = b.conv("stem", b.images(), 4, Window::square(3, 1, 1), true)?;
        let first = b.relu("first", stem)?;
        let conv = b.conv("conv", first, 4, Window::square(3, 1, 1), false)?;
        let bn = b.batch_norm("bn", conv)?;
        let add = b.add("add", LayerKind::Add, &[bn, first])?;
        let relu = b.relu("relu", add)?;
        b.add("pool", LayerKind::GlobalAvgPool, &[relu])
    })
}

/// Training of the residual network, op by op.
const RESIDUAL: &str = "\
         stem.forward: images -> stem.y
         first.forward: stem.y -> stem.y
         conv.forward: stem.y -> conv.y
         bn.forward: conv.y -> bn.y bn.stats
         bn.running!: bn.stats ->
         add.forward: bn.y stem.y -> bn.y
         relu.forward: bn.y -> bn.y relu.mask
         pool.forward: bn.y -> pool.y
         fc.forward: pool.y -> fc.y
         loss.forward: fc.y labels -> fc.y
         loss.backward: fc.y labels -> fc.y
         fc.backward_filter: pool.y fc.y ->
         fc.backward_data: fc.y -> pool.dy
         pool.backward: pool.dy -> relu.dy
         relu.backward: relu.mask relu.dy -> relu.dy
         bn.backward: conv.y relu.dy bn.stats -> conv.dy
         conv.backward_filter: stem.y conv.dy ->
         conv.backward_data: conv.dy relu.dy -> relu.dy
         first.backward: stem.y relu.dy -> relu.dy
         stem.backward_filter: images relu.dy ->";

#[test]
fn a_residual_block_copies_nothing() {
    // The convolution's parameter gradient needs `first`, so its ReLU keeps the output and the sum overwrites `bn.y`; no op
    // needs the last ReLU's output, so it keeps a mask and everything is in `bn.y`. The gradient of the sum (pool's) serves
    // both of its terms, and takes the convolution's contribution.
    check(&residual(), Mode::Train, ReluStorage::Auto, RESIDUAL);
}

#[test]
fn a_relu_keeps_what_it_is_told_to() {
    let expected = RESIDUAL.replace(" relu.mask\n", "\n").replace("relu.mask", "bn.y");
    check(&residual(), Mode::Train, ReluStorage::Output, &expected);
    let masked = lower(&residual(), 2, &LowerOptions { relu: ReluStorage::Mask, ..LowerOptions::default() });
    let masked = listing(&masked.expect("it lowers"));
    assert!(masked.contains("first.forward: stem.y -> stem.y first.mask\n"), "{masked}");
    assert!(masked.contains("first.backward: first.mask relu.dy -> relu.dy\n"), "{masked}");
}

#[test]
fn a_normalisation_takes_over_the_sum_and_the_relu_that_follow() {
    // The ReLU's mask is the normalisation's, whose op gives the gradients of both terms; `first` adds to its own. Tensors
    // and their live intervals are those of the unfused block, except that the sum has no ops.
    check_of(
        &residual(),
        &LowerOptions { fuse: true, ..LowerOptions::default() },
        "stem.forward: images -> stem.y
         first.forward: stem.y -> stem.y
         conv.forward: stem.y -> conv.y
         bn.forward: conv.y stem.y -> bn.y bn.stats bn.mask
         bn.running!: bn.stats ->
         pool.forward: bn.y -> pool.y
         fc.forward: pool.y -> fc.y
         loss.forward: fc.y labels -> fc.y
         loss.backward: fc.y labels -> fc.y
         fc.backward_filter: pool.y fc.y ->
         fc.backward_data: fc.y -> pool.dy
         pool.backward: pool.dy -> relu.dy
         bn.backward: conv.y relu.dy bn.stats bn.mask -> conv.dy relu.dy
         conv.backward_filter: stem.y conv.dy ->
         conv.backward_data: conv.dy relu.dy -> relu.dy
         first.backward: stem.y relu.dy -> relu.dy
         stem.backward_filter: images relu.dy ->",
    );
}

#[test]
fn a_term_that_has_a_gradient_already_is_added_to() {
    let read_later = network(|b| {
        let stem = b.conv("stem", b.images(), 4, Window::square(3, 1, 1), true)?;
        let bn = b.batch_norm("bn", stem)?;
        let other = b.conv("other", b.images(), 4, Window::square(3, 1, 1), true)?;
        let conv = b.conv("conv", stem, 4, Window::square(3, 1, 1), false)?;
        let second = b.batch_norm("second", conv)?;
        let add = b.add("add", LayerKind::Add, &[other, second])?;
        let relu = b.relu("relu", add)?;
        let late = b.conv("late", other, 4, Window::square(1, 1, 0), false)?;
        let sum = b.add("sum", LayerKind::Add, &[relu, bn])?;
        b.concat("cat", &[sum, late])
    });
    let program = lower(&read_later, 2, &LowerOptions { fuse: true, ..LowerOptions::default() });
    let found = listing(&program.expect("it lowers"));
    // `sum` gives its gradient to both terms, so the gradient past the ReLU needs a separate tensor; `late` has written
    // `other.dy`.
    for line in [
        "second.forward: conv.y other.y -> second.y second.stats second.mask\n",
        "second.backward: conv.y sum.dy second.stats second.mask -> conv.dy add.dy\n",
        "add.sum0.backward: add.dy other.dy -> add.dy\n",
        "bn.backward: stem.y sum.dy bn.stats stem.dy -> stem.dy\n",
    ] {
        assert!(found.contains(line), "{line} is not in\n{found}");
    }
}

/// Returns the kinds of the forward ops that are batch normalisations or could be part of one.
fn fused(of: impl Fn(&mut Builder) -> Result<LayerId, NetworkError>) -> Vec<String> {
    let program = lower(&network(of), 2, &LowerOptions { fuse: true, ..LowerOptions::default() });
    let ops = program.expect("it lowers").trace.ops.into_iter();
    let ops = ops.filter(|op| op.phase == Phase::Forward && op.name.ends_with(".forward"));
    ops.filter(|op| ["bn", "add", "relu"].iter().any(|kind| op.kind.starts_with(kind)))
        .map(|op| op.kind)
        .collect()
}

#[test]
fn a_normalisation_takes_over_what_nobody_else_reads() {
    let square = Window::square(3, 1, 1);
    let bn_relu = fused(|b| {
        let bn = b.batch_norm("bn", b.images())?;
        b.add("relu6", LayerKind::Relu { ceiling: 6.0 }, &[bn])
    });
    assert_eq!(bn_relu, ["bn+relu"]);
    let bn_add = fused(|b| {
        let conv = b.conv("conv", b.images(), 2, square, false)?;
        let bn = b.batch_norm("bn", conv)?;
        let add = b.add("add", LayerKind::Add, &[b.images(), bn])?;
        b.conv("last", add, 2, square, false)
    });
    assert_eq!(bn_add, ["bn+add"]);
    let the_later_of_two = fused(|b| {
        let [left, right] = ["left", "right"].map(|name| b.conv(name, b.images(), 2, square, false));
        let left = b.batch_norm("left bn", left?)?;
        let right = b.batch_norm("right bn", right?)?;
        let add = b.add("add", LayerKind::Add, &[left, right])?;
        b.relu("relu", add)
    });
    assert_eq!(the_later_of_two, ["bn", "bn+add+relu"]);
    let read_twice = fused(|b| {
        let bn = b.batch_norm("bn", b.images())?;
        let relu = b.relu("relu", bn)?;
        b.concat("cat", &[bn, relu])
    });
    assert_eq!(read_twice, ["bn", "relu"]);
    let sum_read_twice = fused(|b| {
        let conv = b.conv("conv", b.images(), 2, square, false)?;
        let bn = b.batch_norm("bn", conv)?;
        let add = b.add("add", LayerKind::Add, &[bn, b.images()])?;
        let relu = b.relu("relu", add)?;
        b.concat("cat", &[add, relu])
    });
    assert_eq!(sum_read_twice, ["bn+add", "relu"]);
    let its_own_input = fused(|b| {
        let conv = b.conv("conv", b.images(), 2, square, false)?;
        let bn = b.batch_norm("bn", conv)?;
        let add = b.add("add", LayerKind::Add, &[bn, conv])?;
        b.relu("relu", add)
    });
    assert_eq!(its_own_input, ["bn", "add", "relu"]);
    let with_itself = fused(|b| {
        let bn = b.batch_norm("bn", b.images())?;
        b.add("add", LayerKind::Add, &[bn, bn])
    });
    assert_eq!(with_itself, ["bn", "add"]);
    let something_between = fused(|b| {
        let bn = b.batch_norm("bn", b.images())?;
        let other = b.conv("other", b.images(), 2, square, false)?;
        let add = b.add("add", LayerKind::Add, &[bn, other])?;
        b.relu("relu", add)
    });
    assert_eq!(something_between, ["bn", "add", "relu"]);
}

#[test]
fn evaluation_runs_in_few_tensors() {
    let with_dropout = network(|b| {
        let conv = b.conv("conv", b.images(), 4, Window::square(3, 1, 1), false)?;
        let bn = b.batch_norm("bn", conv)?;
        let relu = b.relu("relu", bn)?;
        b.add("drop", LayerKind::Dropout { probability: 0.5 }, &[relu])
    });
    check(
        &with_dropout,
        Mode::Evaluate,
        ReluStorage::Mask,
        "conv.forward: images -> conv.y
         bn.forward: conv.y -> conv.y
         relu.forward: conv.y -> conv.y
         fc.forward: conv.y -> fc.y
         loss.forward: fc.y labels -> fc.y",
    );
    let lowered = |fuse| {
        lower(&with_dropout, 2, &LowerOptions { mode: Mode::Evaluate, fuse, ..LowerOptions::default() })
    };
    assert_eq!(lowered(true).expect("it lowers"), lowered(false).expect("it lowers"));
}

#[test]
fn parts_pools_and_dropout_copy_only_what_they_must() {
    let branches = network(|b| {
        let conv = b.add(
            "conv",
            LayerKind::Conv { out_channels: 4, window: Window::square(3, 1, 1), groups: 2, bias: true },
            &[b.images()],
        )?;
        let lrn = b.add("lrn", LayerKind::Lrn { size: 3, alpha: 1.0, beta: 0.5, bias: 1.0 }, &[conv])?;
        let left = b.relu("left", lrn)?;
        let right = b.add("right", LayerKind::Dropout { probability: 0.5 }, &[lrn])?;
        let cat = b.add("cat", LayerKind::Concat { along: Axis::Channels }, &[left, lrn, right])?;
        b.max_pool("pool", cat, Window::square(2, 2, 0))
    });
    // The concatenation reads `lrn.y` last, so neither ReLU nor dropout may overwrite it. The gradient of `lrn` is first
    // written by its part of the concatenation; dropout and ReLU add to it.
    check(
        &branches,
        Mode::Train,
        ReluStorage::Auto,
        "conv.forward: images -> conv.y
         lrn.forward: conv.y -> lrn.y
         left.forward: lrn.y -> left.y left.mask
         right.forward: lrn.y -> right.y
         cat.part0.forward: left.y -> cat.y
         cat.part1.forward: lrn.y cat.y -> cat.y
         cat.part2.forward: right.y cat.y -> cat.y
         pool.forward: cat.y -> pool.y pool.places
         fc.forward: pool.y -> fc.y
         loss.forward: fc.y labels -> fc.y
         loss.backward: fc.y labels -> fc.y
         fc.backward_filter: pool.y fc.y ->
         fc.backward_data: fc.y -> pool.dy
         pool.backward: pool.places pool.dy -> cat.dy
         cat.part0.backward: cat.dy -> left.dy
         cat.part1.backward: cat.dy -> lrn.dy
         cat.part2.backward: cat.dy -> right.dy
         right.backward: right.dy lrn.dy -> lrn.dy
         left.backward: left.mask left.dy lrn.dy -> lrn.dy
         lrn.backward: conv.y lrn.dy -> conv.dy
         conv.backward_filter: images conv.dy ->",
    );
}

#[test]
fn a_shared_gradient_is_not_written_over() {
    // `a` and `other` share the gradient of their sum; when `scaled` has a second gradient for `a`, `other` still needs the
    // shared one, so the two are summed elsewhere; from then on the shared one is `mid`'s alone.
    let shared = network(|b| {
        let conv = b.conv("conv", b.images(), 2, Window::square(1, 1, 0), false)?;
        let a = b.add("a", LayerKind::Lrn { size: 1, alpha: 1.0, beta: 1.0, bias: 1.0 }, &[conv])?;
        let other = b.conv("other", b.images(), 2, Window::square(1, 1, 0), false)?;
        let other = b.relu("mid", other)?;
        let scaled = b.add("scaled", LayerKind::AvgPool { window: Window::square(1, 1, 0) }, &[a])?;
        let inner = b.add("inner", LayerKind::Add, &[a, other])?;
        b.add("outer", LayerKind::Add, &[scaled, inner])
    });
    check(
        &shared,
        Mode::Train,
        ReluStorage::Auto,
        "conv.forward: images -> conv.y
         a.forward: conv.y -> a.y
         other.forward: images -> other.y
         mid.forward: other.y -> other.y mid.mask
         scaled.forward: a.y -> scaled.y
         inner.forward: a.y other.y -> a.y
         outer.forward: scaled.y a.y -> scaled.y
         fc.forward: scaled.y -> fc.y
         loss.forward: fc.y labels -> fc.y
         loss.backward: fc.y labels -> fc.y
         fc.backward_filter: scaled.y fc.y ->
         fc.backward_data: fc.y -> outer.dy
         scaled.backward: outer.dy -> a.dy
         scaled.sum0.backward: a.dy outer.dy -> a.dy
         mid.backward: mid.mask outer.dy -> outer.dy
         other.backward_filter: images outer.dy ->
         a.backward: conv.y a.dy -> conv.dy
         conv.backward_filter: images conv.dy ->",
    );
}

/// Returns ln - conv - gelu - conv - add with a shortcut around them - ln, as in a transformer.
fn transformer() -> Network {
    network(|b| {
        let stem = b.conv("stem", b.images(), 4, Window::square(2, 2, 0), true)?;
        let ln = b.layer_norm("ln", stem)?;
        let up = b.conv("up", ln, 16, Window::square(1, 1, 0), true)?;
        let gelu = b.gelu("gelu", up)?;
        let down = b.conv("down", gelu, 4, Window::square(1, 1, 0), true)?;
        let add = b.add("add", LayerKind::Add, &[down, stem])?;
        let norm = b.layer_norm("norm", add)?;
        b.add("pool", LayerKind::GlobalAvgPool, &[norm])
    })
}

#[test]
fn a_transformers_block_keeps_what_gelu_and_normalisation_read() {
    // Both need their inputs again, so neither overwrites them; their gradients overwrite those of their outputs, and that of
    // `ln` is added to the shortcut's.
    check(
        &transformer(),
        Mode::Train,
        ReluStorage::Auto,
        "stem.forward: images -> stem.y
         ln.forward: stem.y -> ln.y ln.stats
         up.forward: ln.y -> up.y
         gelu.forward: up.y -> gelu.y
         down.forward: gelu.y -> down.y
         add.forward: down.y stem.y -> down.y
         norm.forward: down.y -> norm.y norm.stats
         pool.forward: norm.y -> pool.y
         fc.forward: pool.y -> fc.y
         loss.forward: fc.y labels -> fc.y
         loss.backward: fc.y labels -> fc.y
         fc.backward_filter: pool.y fc.y ->
         fc.backward_data: fc.y -> pool.dy
         pool.backward: pool.dy -> norm.dy
         norm.backward: down.y norm.dy norm.stats -> norm.dy
         down.backward_filter: gelu.y norm.dy ->
         down.backward_data: norm.dy -> gelu.dy
         gelu.backward: up.y gelu.dy -> gelu.dy
         up.backward_filter: ln.y gelu.dy ->
         up.backward_data: gelu.dy -> ln.dy
         ln.backward: stem.y ln.dy ln.stats norm.dy -> norm.dy
         stem.backward_filter: images norm.dy ->",
    );
    check(
        &transformer(),
        Mode::Evaluate,
        ReluStorage::Auto,
        "stem.forward: images -> stem.y
         ln.forward: stem.y -> ln.y ln.stats
         up.forward: ln.y -> up.y
         gelu.forward: up.y -> up.y
         down.forward: up.y -> down.y
         add.forward: down.y stem.y -> down.y
         norm.forward: down.y -> down.y norm.stats
         pool.forward: down.y -> pool.y
         fc.forward: pool.y -> fc.y
         loss.forward: fc.y labels -> fc.y",
    );
}
