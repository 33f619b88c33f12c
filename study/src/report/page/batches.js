// Throughput and epoch time over batch size.

function batches() {
  const b = report.batches;
  if (!b || !b.points.length) return null;
  const shortest = b.points.reduce((a, p) => (p.epoch_seconds < a.epoch_seconds ? p : a));
  const equal = shortest.epoch_seconds * (1 + b.within);
  const marks = [
    [b.chosen, "chosen", "ink", "solid"],
    [shortest.batch, "shortest epoch", "blue", "dotted"],
    [b.yours, "yours", "purple", "dashed"],
    [b.keeps_all, "keeps everything up to", "green", "dotted"],
    [b.largest, "largest", "soft", "dashed"],
  ];
  const words = [
    b.chosen === b.yours ? `Batch ${count(b.chosen)} is chosen, and it is yours.` : `Batch ${count(b.chosen)} is chosen, yours is ${count(b.yours)}.`,
    b.keeps_all === null ? "No batch that was tried keeps everything within the budget." : `Up to batch ${count(b.keeps_all)} everything stays on the device;`,
    b.keeps_all === null ? `Up to ${count(b.largest)} can be trained at all.` : `up to ${count(b.largest)} can be trained at all.`,
    equalWords(b, shortest),
    b.no_plan.length ? `No plan fits for ${listed(b.no_plan.slice(0, 6).map(count))}${b.no_plan.length > 6 ? " and more" : ""}.` : "",
  ];
  const notes = element("p", {}, words.join(" "));
  const iterations = (p) => b.samples / p.batch;
  const floor = (p) => p.epoch_seconds - (p.iteration_seconds - p.compute_seconds) * iterations(p);
  const through = batchPlot({
    id: "throughput", b, marks, title: "Throughput over batch size", value: (p) => p.batch / p.iteration_seconds,
    low: (p) => p.batch / (p.iteration_seconds * (1 + p.relative_error)), high: (p) => p.batch / (p.iteration_seconds * Math.max(1e-3, 1 - p.relative_error)),
    limit: (p) => p.batch / p.compute_seconds, measured: (m) => m.batch / m.iteration_seconds, axis: "samples per second", text: (v) => `${digits(v)} samples/s`,
    caption: "Higher is better. The dashed line is the limit that the ops alone set: it has no transfers, no stalls and no recomputing.",
  });
  const epoch = batchPlot({
    id: "epoch", b, marks, title: "Epoch time over batch size", value: (p) => p.epoch_seconds, low: (p) => p.epoch_seconds * (1 - p.relative_error),
    high: (p) => p.epoch_seconds * (1 + p.relative_error), equal: b.within ? equal : null, limit: floor, measured: (m) => m.epoch_seconds, axis: "time of an epoch", text: seconds, time: true,
    caption: `Lower is better. One epoch is ${count(b.samples)} samples, with what passes between iterations. The dashed line is the floor: the ops alone.`,
  });
  return section("batches", "Why this batch size", "Batch size", notes, element("div", { class: "pair" }, through, epoch));
}

/** Which epochs count as equal, where some do. */
function equalWords(b, shortest) {
  if (!b.within) return "The shortest epoch was asked for.";
  return `The shortest epoch is that of batch ${count(shortest.batch)}; of all within ${percent(b.within)} of it, the batch is taken that swaps and recomputes for the fewest seconds, then the smallest.`;
}

function batchPlot(of) {
  const { b } = of;
  const points = b.points;
  const scale = of.time ? unit(TIMES, Math.max(...points.map(of.value))) : { size: 1, name: null };
  const rows = points.map((p) => [p.batch, ...[of.value(p), of.low(p), of.high(p), of.limit(p)].map((v) => v / scale.size)]);
  const xs = [...points.map((p) => p.batch), ...b.measured.map((m) => m.batch), b.yours];
  return plot({
    id: of.id,
    title: of.title,
    caption: of.caption,
    about: `${of.text(of.value(points[0]))} predicted at batch ${points[0].batch}, ${of.text(of.value(points[points.length - 1]))} at batch ${points[points.length - 1].batch}; chosen is ${b.chosen}.`,
    height: (width) => (width < 480 ? 330 : 380),
    paperHeight: 300,
    legend: [
      { name: "predicted", colour: "blue", mark: "line" },
      { name: "its stated error", colour: "blue", mark: "band" },
      { name: of.time ? "floor" : "limit", colour: "grey", mark: "dash" },
      b.measured.length ? { name: "measured", colour: "red", mark: "diamond" } : null,
    ].filter(Boolean),
    tooltip: { trigger: "item" },
    option: (colours, width) => batchOption(of, { rows, scale, xs }, colours, width),
    numbers: () => ({
      columns: [
        field("batch", "batch", count), field("iteration", "iteration_seconds", seconds), field("stated error", "relative_error", percent),
        field("epoch", "epoch_seconds", seconds), field("ops alone", "compute_seconds", seconds),
        { title: "samples per second", csv: "samples_per_second", value: (p) => p.batch / p.iteration_seconds, text: (v) => digits(v) },
        field("peak", "peak_bytes", bytes), field("feature maps at peak", "at_peak_bytes", bytes), field("swapped", "offloaded_bytes", bytes),
        field("swapping", "swapping_seconds", seconds), field("recomputed", "recomputed_bytes", bytes),
        field("recomputing", "recomputing_seconds", seconds), field("ops recomputed", "recomputed_ops", count),
        { title: "measured iteration", csv: "measured_iteration_seconds", value: (p) => measuredAt(b, p, "iteration_seconds"), text: (v) => seconds(v) },
        { title: "measured epoch", csv: "measured_epoch_seconds", value: (p) => measuredAt(b, p, "epoch_seconds"), text: (v) => seconds(v) },
      ],
      rows: points,
    }),
  });
}

function measuredAt(b, point, what) {
  const found = b.measured.find((m) => m.batch === point.batch);
  return found ? found[what] : null;
}

function batchOption(of, { rows, scale, xs }, colours, width) {
  const { b } = of;
  const frame = { left: 62, right: 18, top: 62, bottom: 50 };
  const { place, axis: xAxis } = batchAxis(colours, xs, frame, width);
  const ran = b.measured.map((m) => of.measured(m) / scale.size);
  const room = roomFor([...rows.map((r) => r[1]), ...ran], [...rows.map((r) => r[3]), ...rows.map((r) => r[4]), ...ran]);
  const line = (name, at, style) => ({ type: "line", name, showSymbol: rows.length < 40, symbol: "circle", symbolSize: 5, data: rows.map((r) => [r[0], r[at]]), ...style });
  const at = new Map();
  for (const [x, words, colour, type] of b.keeps_all === b.chosen ? of.marks.slice(0, 4) : of.marks) {
    if (x === null || x === undefined) continue;
    if (at.has(x)) at.get(x).words += `, ${words}`;
    else at.set(x, { x, words, colour, type, strong: x === b.chosen });
  }
  const lines = [...at.values()].map((m) => ({ ...m, words: `${m.words} ${count(m.x)}` }));
  return {
    grid: frame,
    xAxis,
    yAxis: axis(colours, {
      name: of.time ? `${of.axis} (${scale.name})` : of.axis, nameGap: 44, ...room,
      axisLabel: { formatter: (v) => digits(v) },
    }),
    tooltip: { ...tooltip(colours), formatter: (item) => batchTip(of, item) },
    series: [
      band("its stated error", rows.map((r) => [r[0], r[2], r[3]]), colours.blue),
      line(of.time ? "floor" : "limit", 4, { lineStyle: { type: "dashed", color: colours.grey, width: 2 }, itemStyle: { color: colours.grey }, showSymbol: false, z: 3 }),
      line("predicted", 1, {
        lineStyle: { color: colours.blue, width: 2.5 }, itemStyle: { color: colours.blue },
        markLine: { silent: true, symbol: "none", data: [...uprights(colours, lines, place, width), ...level(of, scale, colours)] },
      }),
      spreads("measured", b.measured.map((m) => spread(m.batch, of.measured(m) / scale.size, m.relative_error)), colours.red),
      {
        type: "scatter", name: "measured", symbol: "diamond", symbolSize: 13, z: 5,
        data: b.measured.map((m, at) => ({ value: [m.batch, of.measured(m) / scale.size], at })), itemStyle: { color: colours.red, borderColor: colours.card, borderWidth: 1.5 },
      },
    ],
  };
}

/** Up to where an epoch counts as equal to the shortest, as a level line. */
function level(of, scale, colours) {
  if (!of.equal) return [];
  const label = { formatter: `within ${percent(of.b.within)}`, position: "insideEndTop", color: colours.blue };
  return [{ yAxis: of.equal / scale.size, label, lineStyle: { color: colours.blue, type: "dotted", width: 1.5 } }];
}

function batchTip(of, item) {
  if (item.seriesName === "measured") {
    const m = of.b.measured[item.data.at];
    return tip(`Batch ${count(m.batch)}, ${m.what}`, [
      ["iteration, measured", seconds(m.iteration_seconds)],
      ["spread", `± ${percent(m.relative_error)}`],
      ["samples per second", digits(m.batch / m.iteration_seconds)],
      ["epoch", seconds(m.epoch_seconds)],
    ]);
  }
  const p = of.b.points[item.dataIndex];
  return tip(`Batch ${count(p.batch)}, predicted`, [
    ["iteration", `${seconds(p.iteration_seconds)} ± ${percent(p.relative_error)}`],
    ["samples per second", digits(p.batch / p.iteration_seconds)],
    ["epoch", seconds(p.epoch_seconds)],
    ["ops alone", seconds(p.compute_seconds)],
    ["peak", bytes(p.peak_bytes)],
    ["feature maps at peak", bytes(p.at_peak_bytes)],
    ["swapped", `${bytes(p.offloaded_bytes)}, ${seconds(p.swapping_seconds)} of the link`],
    ["recomputed", `${bytes(p.recomputed_bytes)} by ${counted(p.recomputed_ops, "op")}, ${seconds(p.recomputing_seconds)}`],
  ]);
}
