// Two studies side by side: which trains faster, in which settings they differ, what each chose, their curves, their memory.

const SIDE_LOOKS = [
  { colour: "blue", mark: "line", type: "solid", symbol: "diamond" },
  { colour: "orange", mark: "dash", type: "dashed", symbol: "triangle" },
];
const sides = report.studies.map((study, at) => ({ ...study, look: SIDE_LOOKS[at] }));
const names = sides.map((side) => side.name);

/** Each side's name cut to what fits beside a line of a plot. */
const briefly = (name) => (name.length > 18 ? `${name.slice(0, 17)}…` : name);

/** The second over the first, less 1. */
const change = (value) => offBy(value(sides[1]), value(sides[0]));

function verdictSection() {
  const { verdict } = report;
  document.getElementById("sections").append(element("li", {}, element("a", { href: "#page" }, "Answer")));
  const times = (side) => `± ${percent(side.choice.epoch_error)}, ${side.about.modelled ? "modelled" : "measured"}`;
  const speed = (side) => `${digits(side.choice.goodput ?? side.choice.samples_per_second)}/s`;
  const card = {
    epoch: (side) => [`Epoch, ${side.name}`, seconds(side.choice.epoch_seconds), times(side)],
    goodput: (side) => [`Goodput, ${side.name}`, speed(side), `samples by what they are worth; ${times(side)}`],
    samples: (side) => [`Throughput, ${side.name}`, speed(side), `samples; ${times(side)}`],
  }[verdict.by];
  const rates = (side) => `learning rate ${digits(side.choice.learning_rate)}`;
  return element(
    "section",
    { id: "answer", class: "answer", "aria-label": "The answer" },
    sides.map((side) => element("p", { class: "about" }, [element("b", {}, side.name), ` · ${[side.about.network, `budget ${bytes(side.about.budget_bytes)}`, side.about.device].filter(Boolean).join(" · ")}`])),
    element("h1", {}, verdict.headline.replace(/(\d) %/g, "$1\u00a0%")),
    element("p", { class: "lead" }, verdict.why),
    warningsBox(report.warnings),
    facts([
      ...sides.map(card),
      ...sides.map((side) => [`Batch, ${side.name}`, count(side.choice.batch), rates(side)]),
      ["Difference", percent(verdict.less), verdict.faster === null ? `no more than the ${percent(verdict.equal)} that count as equal` : `less time with ${verdict.faster}`],
    ]),
    element("h2", {}, "What each says by itself"),
    pairs(sides.map((side) => [side.name, `${side.headline}.`])),
  );
}

function differences() {
  const rows = report.settings.map((setting) => [setting.setting, (at) => setting.values[at], (at) => setting.values[at]]);
  const columns = [{ title: "setting", value: (row) => row[0] }, ...names.map((name, at) => ({ title: name, value: (row) => row[2](at) }))];
  return section(
    "settings",
    "Settings that differ",
    "Settings",
    rows.length ? sideBySide("Settings that differ", { heads: names, things: [0, 1], rows, columns }) : element("p", {}, "All settings are the same in both."),
  );
}

/** What each chose: [name, show(side), value(side)]; rows that neither has are left out. */
function choiceRows() {
  const of = (key) => (side) => side.choice[key];
  const shown = (name, key, text) => [name, (side) => text(side.choice[key]), of(key)];
  return [
    shown("batch", "batch", count),
    sides.some((side) => side.choice.global_batch !== side.choice.batch) && shown("global batch", "global_batch", count),
    shown("policy", "policy", (text) => text),
    shown("learning rate", "learning_rate", digits),
    ["learning rate rule", of("learning_rate_rule"), of("learning_rate_rule")],
    shown("warm-up iterations", "warmup_iterations", count),
    ["iteration, predicted", ({ choice }) => withError(choice.predicted_iteration_seconds, choice.predicted_error, "stated"), of("predicted_iteration_seconds")],
    ["iteration, measured", ({ choice }) => withError(choice.iteration_seconds, choice.relative_error, "spread"), of("iteration_seconds")],
    ["samples per second", ({ choice }) => digits(choice.samples_per_second), of("samples_per_second")],
    shown("efficiency of samples", "efficiency", percent),
    ["goodput, samples per second", ({ choice }) => digits(choice.goodput), of("goodput")],
    ["epoch", ({ choice }) => seconds(choice.epoch_seconds), of("epoch_seconds")],
    shown("swapped", "offloaded_bytes", bytes),
    shown("swapping", "swapping_seconds", seconds),
    shown("recomputed", "recomputed_bytes", bytes),
    shown("recomputing", "recomputing_seconds", seconds),
    shown("ops recomputed", "recomputed_ops", count),
    shown("compute waits", "stalled_seconds", seconds),
    shown("peak of device memory", "peak_bytes", bytes),
    shown("feature maps at peak", "at_peak_bytes", bytes),
    shown("host memory", "host_bytes", bytes),
    ["largest batch that keeps everything", ({ batches }) => count(batches.keeps_all), ({ batches }) => batches.keeps_all],
    ["largest batch", ({ batches }) => count(batches.largest), ({ batches }) => batches.largest],
  ].filter((row) => row && sides.some((side) => row[2](side) !== null));
}

function choices() {
  const rows = choiceRows();
  const [first, second] = sides;
  const things = [...sides, null];
  const compared = rows.map(([name, show, value]) => [name, (side) => (side ? show(side) : typeof value(first) === "string" ? "" : percent(change(value), true)), (side) => (side ? value(side) : change(value))]);
  const heads = [...names, `${second.name} over ${first.name}`];
  const columns = [{ title: "quantity", value: (row) => row[0] }, ...things.map((side, at) => ({ title: heads[at], value: (row) => row[2](side) }))];
  return section(
    "choices",
    "What each chose",
    "Choices",
    element("p", {}, sides.map((side) => `${side.name}: ${side.times}.`).join(" "), " Swapping, recomputing, waiting and memory are those of the predicted iteration."),
    sideBySide("What each chose", { heads, things, rows: compared, columns }),
  );
}

function curves() {
  const { by } = report.verdict;
  const speed = (p, side) => side.batches.samples / p.epoch_seconds;
  const goodput = by === "goodput";
  const through = curvePlot({
    id: "throughput", title: goodput ? "Goodput over batch size" : "Throughput over batch size", axis: "samples per second",
    value: (p, side) => (goodput ? (known(p.efficiency) ? speed(p, side) * p.efficiency : null) : speed(p, side)), text: (v) => `${digits(v)} samples/s`,
    caption: `Higher is better. ${goodput ? "Samples count by what they are worth in an update of this batch." : "All samples of an epoch over its time, with what passes between iterations."}`,
  });
  const epoch = by === "samples" ? null : curvePlot({
    id: "epoch", title: "Epoch time over batch size", axis: "time of an epoch", value: (p) => p.epoch_seconds, text: (v) => seconds(v), time: true,
    caption: `Lower is better. One epoch is ${count(sides[0].batches.samples)} samples, with what passes between iterations.`,
  });
  const words = sides.map((side) => `${side.name} chose batch ${count(side.batches.chosen)} of those up to ${count(side.batches.largest)}.`);
  return section("batches", "Both curves over the batch size", "Batch size", element("p", {}, words.join(" ")), epoch ? element("div", { class: "pair" }, through, epoch) : through);
}

/** Both curves on the same axes. */
function curvePlot(of) {
  const curves = sides.map((side) => {
    const point = (p) => ({ batch: p.batch, value: of.value(p, side), error: p.relative_error, what: p.what });
    const all = (list) => list.map(point).filter((p) => known(p.value));
    return { side, points: all(side.batches.points), measured: all(side.batches.measured), predicted: `${side.name}, predicted`, ran: `${side.name}, measured` };
  });
  const values = curves.flatMap((curve) => [...curve.points, ...curve.measured].map((p) => p.value));
  if (!values.length) return null;
  const scale = of.time ? unit(TIMES, Math.max(...values)) : { size: 1, name: null };
  const legend = curves.flatMap(({ side: { look }, measured, predicted, ran }) => [
    { name: predicted, colour: look.colour, mark: look.mark },
    measured.length ? { name: ran, colour: look.colour, mark: look.symbol } : null,
  ]).filter(Boolean);
  const rows = curves.flatMap((curve) => [...curve.points.map((p) => ({ ...p, curve, what: "predicted" })), ...curve.measured.map((p) => ({ ...p, curve }))]);
  return plot({
    id: of.id,
    title: of.title,
    caption: `${of.caption} Bands and upright lines are stated errors and spreads.`,
    about: curves.filter(({ points }) => points.length).map(({ side, points }) => `${side.name}: ${of.text(points[0].value)} predicted at batch ${points[0].batch}, ${of.text(points[points.length - 1].value)} at batch ${points[points.length - 1].batch}`).join("; "),
    height: (width) => (width < 480 ? 330 : 380),
    paperHeight: 300,
    legend,
    option: (colours, width) => curveOption(of, curves, scale, colours, width),
    numbers: () => ({
      columns: [
        { title: "study", value: (r) => r.curve.side.name },
        { title: "what", value: (r) => r.what },
        { title: "batch", value: (r) => r.batch, text: count },
        { title: of.axis, csv: of.time ? "epoch_seconds" : "samples_per_second", value: (r) => r.value, text: (v) => (of.time ? seconds(v) : digits(v)) },
        { title: "error or spread", csv: "relative_error", value: (r) => r.error, text: (v) => percent(v) },
      ],
      rows,
    }),
  });
}

function curveOption(of, curves, scale, colours, width) {
  const frame = { left: 62, right: 18, top: 46, bottom: 50 };
  const drawn = curves.flatMap((curve) => [...curve.points, ...curve.measured]);
  const { place, axis: xAxis } = batchAxis(colours, drawn.map((p) => p.batch), frame, width);
  const room = roomFor(drawn.map((p) => p.value / scale.size), drawn.map((p) => (p.value * (1 + p.error)) / scale.size));
  const chosen = curves.map(({ side }) => ({ x: side.batches.chosen, words: `${briefly(side.name)}: ${count(side.batches.chosen)}`, colour: side.look.colour, type: side.look.type, strong: true }));
  const marks = chosen[0].x === chosen[1].x ? [{ ...chosen[0], words: `both: ${count(chosen[0].x)}`, colour: "ink" }] : chosen;
  const series = curves.flatMap(({ side: { look }, points, measured, predicted, ran }, at) => {
    const colour = colours[look.colour];
    const spreadOf = (p) => spread(p.batch, p.value / scale.size, Math.min(p.error, 1));
    return [
      band(predicted, points.map(spreadOf), colour),
      {
        type: "line", name: predicted, showSymbol: points.length < 40, symbol: "circle", symbolSize: 5, data: points.map((p) => ({ value: [p.batch, p.value / scale.size], at: p })),
        lineStyle: { color: colour, width: 2.5, type: look.type }, itemStyle: { color: colour },
        markLine: at ? undefined : { silent: true, symbol: "none", data: uprights(colours, marks, place, width) },
      },
      spreads(ran, measured.map(spreadOf), colour),
      { type: "scatter", name: ran, symbol: look.symbol, symbolSize: 13, z: 5, data: measured.map((p) => ({ value: [p.batch, p.value / scale.size], at: p })), itemStyle: { color: colour, borderColor: colours.card, borderWidth: 1.5 } },
    ];
  });
  return {
    grid: frame,
    xAxis,
    yAxis: axis(colours, { name: of.time ? `${of.axis} (${scale.name})` : of.axis, nameGap: 44, ...room, axisLabel: { formatter: (v) => digits(v) } }),
    tooltip: {
      ...tooltip(colours),
      formatter: ({ seriesName, data: { at } }) => tip(`Batch ${count(at.batch)}`, [["study", seriesName], at.what ? ["what ran", at.what] : null, [of.axis, of.text(at.value)], [at.what ? "spread" : "stated error", `± ${percent(at.error)}`]]),
    },
    series,
  };
}

/** The end of the longer of both iterations, in nanoseconds. */
const endOfBoth = () => Math.max(1, ...sides.map((side) => side.memory.end));

function memoryOfBoth() {
  const held = (side) => side.choice.peak_bytes;
  const cards = sides.flatMap((side) => [
    [`Device memory, ${side.name}`, bytes(held(side)), `budget: ${bytes(side.memory.budget_bytes)}`],
    [`Host memory, ${side.name}`, bytes(side.choice.host_bytes), "for what is swapped"],
  ]);
  const drawn = endOfBoth() > 1;
  return section("memory", "Memory over one iteration of each", "Memory", facts(cards), drawn ? memoryPlot() : element("p", {}, "No command takes any time here, so that nothing can be drawn over time."));
}

function memoryPlot() {
  const lines = sides.flatMap((side) => {
    const { memory, look, name } = side;
    const hasHost = memory.host.bytes.some((b) => b > 0);
    return [
      { name: `${name}, in use on the device`, series: memory.pool, plus: memory.resident_bytes, end: memory.end, colour: look.colour, mark: look.mark, style: { width: 2, type: look.type }, opacity: 0.14 },
      hasHost ? { name: `${name}, copies on the host`, series: memory.host, plus: 0, end: memory.end, colour: look.colour, mark: "dot", style: { width: 1.6, type: "dotted" } } : null,
    ].filter(Boolean);
  });
  const [first, second] = sides.map((side) => ({ name: `${side.name}, budget`, bytes: side.memory.budget_bytes, colour: side.look.colour, mark: side.look.mark, style: { width: 2.2, type: side.look.type } }));
  const budgets = first.bytes === second.bytes ? [{ ...first, name: "budget of both", colour: "black" }] : [first, second];
  return plot({
    id: "bytes",
    title: "Memory over time",
    caption: "As predicted, both from the start of an iteration. A level line is a budget.",
    about: sides.map((side) => `${side.name}: ${bytes(side.choice.peak_bytes)} within ${bytes(side.memory.budget_bytes)}, ${nanoseconds(side.memory.end)}`).join("; "),
    zoom: "time",
    end: endOfBoth,
    hint: "Zoom with the buttons, the slider, or Ctrl and the wheel; drag to move.",
    height: (width) => (width < 480 ? 350 : 420),
    paperHeight: 300,
    legend: [...lines, ...budgets],
    option: (colours) => memoryOption(colours, lines, budgets, endOfBoth()),
    numbers: () => memoryNumbers(lines),
  });
}

const origins = () => section("origin", "Where this comes from", "Origin", sides.map((side) => [element("h3", {}, side.name), originOf(side.about)]).flat());

start([verdictSection, differences, choices, curves, memoryOfBoth, origins]);
