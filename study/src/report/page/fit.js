// How well the model fits: ops by type, whole iterations that were held out, and the link.

const SYMBOLS = ["circle", "diamond", "triangle", "rect"];
const HUES = ["blue", "orange", "green", "purple", "red", "sky", "grey"];
const looks = (at) => ({ colour: HUES[at % HUES.length], mark: SYMBOLS[(at + Math.floor(at / HUES.length)) % SYMBOLS.length] });

function fit() {
  const f = report.fit;
  if (!f) return null;
  const kinds = f.kinds.filter((k) => k.predicted.length);
  return section(
    "fit",
    "Whether to believe the predictions",
    "Fit",
    f.notes.length ? element("ul", { class: "notes" }, f.notes.map((n) => element("li", {}, n))) : null,
    f.held_out.length ? heldOut(f.held_out) : null,
    kinds.length ? element("div", { class: "pair" }, fitPlot(kinds), residualPlot(kinds)) : null,
    kinds.length ? kindTable(kinds) : null,
    f.link.length ? linkPlot(f.link) : null,
  );
}

function heldOut(rows) {
  const columns = [
    field("batch", "batch", count),
    { title: "the fit knows", value: (r) => (r.inside ? "smaller and larger batches" : "only one side") },
    field("predicted", "predicted_seconds", seconds), field("measured", "measured_seconds", seconds),
    { title: "off by", csv: "off", value: (r) => offBy(r.measured_seconds, r.predicted_seconds), text: (v) => percent(v, true) },
  ];
  return element("div", {}, element("h3", { style: "margin-top:1.2rem" }, "Whole iterations at batch sizes that the fit never saw"), table(columns, rows, { label: "Iterations that were held out of the fit" }));
}

function kindTable(kinds) {
  const columns = [
    { title: "layer type", value: (k) => k.kind },
    { title: "samples", value: (k) => k.predicted.length, text: count },
    field("error, median", "median_error", percent), field("error, worst", "worst_error", percent),
    { title: "measured, in all", csv: "measured_seconds", value: (k) => k.measured.reduce((a, b) => a + b, 0), text: (v) => seconds(v) },
  ];
  return element("div", {}, element("h3", { style: "margin-top:1.4rem" }, "Errors by layer type"), table(columns, kinds, { label: "Errors by layer type", filter: kinds.length > 12 }));
}

const samplesOf = (k) => k.predicted.map((p, at) => ({ kind: k.kind, op: nameOf(k.op[at]), batch: k.batch[at], predicted: p, measured: k.measured[at] }));
const sampleColumns = [
  { title: "op", value: (s) => s.op },
  { title: "layer type", value: (s) => s.kind },
  field("batch", "batch", count),
  { title: "predicted", csv: "predicted_seconds", value: (s) => s.predicted, text: (v) => seconds(v) },
  { title: "measured", csv: "measured_seconds", value: (s) => s.measured, text: (v) => seconds(v) },
  { title: "off by", csv: "off", value: (s) => offBy(s.measured, s.predicted), text: (v) => percent(v, true) },
];
const sampleTip = (s) => tip(s.op, readings(sampleColumns.slice(1), s));

function timeLog(colours, range, name, more) {
  return axis(colours, { type: "log", ...range, name, axisLabel: { formatter: (v) => seconds(v, 1), hideOverlap: true, showMinLabel: false, showMaxLabel: false }, ...more });
}

function fitPlot(kinds) {
  const all = kinds.map(samplesOf);
  const range = logRange(all.flat().flatMap((s) => [s.predicted, s.measured]));
  return plot({
    id: "fit-samples",
    title: "Predicted over measured, op by op",
    caption: "On the line a prediction is right; the dotted lines are 10 % off.",
    canvas: all.flat().length > 800,
    height: (width) => (width < 480 ? 340 : 420),
    legend: kinds.map((k, at) => ({ name: k.kind, ...looks(at) })),
    option: (colours) => {
      const line = (factor, type) => ({
        type: "line", showSymbol: false, silent: true, z: 1, data: [[range.min, range.min * factor], [range.max, range.max * factor]],
        lineStyle: { color: type === "solid" ? colours.soft : colours.line, type, width: 1.3 },
      });
      return {
        grid: { left: 66, right: 18, top: 16, bottom: 48 },
        xAxis: timeLog(colours, range, "measured", { nameGap: 28 }),
        yAxis: timeLog(colours, range, "predicted", { nameGap: 50 }),
        tooltip: { ...tooltip(colours), formatter: (item) => sampleTip(all[item.seriesIndex - 3][item.dataIndex]) },
        series: [
          line(1, "solid"), line(1.1, "dotted"), line(1 / 1.1, "dotted"),
          ...kinds.map((k, at) => ({
            type: "scatter", name: k.kind, symbol: looks(at).mark, symbolSize: 7.5, data: all[at].map((s) => [s.measured, s.predicted]),
            itemStyle: { color: colours[looks(at).colour], borderColor: colours.card, borderWidth: 0.6, opacity: 0.85 },
          })),
        ],
      };
    },
    numbers: () => ({ columns: sampleColumns, rows: all.flat() }),
  });
}

function residualPlot(kinds) {
  const all = kinds.map((k) => samplesOf(k).filter((s) => known(offBy(s.measured, s.predicted))));
  const off = (s) => offBy(s.measured, s.predicted);
  const largest = Math.max(0.02, ...all.flat().map((s) => Math.abs(off(s))));
  const reach = Math.ceil(largest * 1.05 * 20) / 20;
  return plot({
    id: "residuals",
    title: "How far predictions are off, by layer type",
    caption: "Right of the middle an op took longer than predicted. The upright stroke is the median.",
    canvas: all.flat().length > 800,
    height: (width) => Math.max(width < 480 ? 340 : 420, 90 + kinds.length * 26),
    option: (colours, width) => ({
      grid: { left: width < 480 ? 118 : 170, right: 18, top: 16, bottom: 48 },
      xAxis: axis(colours, { min: -reach, max: reach, name: "measured against predicted (%)", nameGap: 28, axisLabel: { formatter: (v) => (v > 0 ? "+" : v < 0 ? "−" : "") + digits(Math.abs(v) * 100, 3) } }),
      yAxis: { type: "category", inverse: true, data: kinds.map((k) => k.kind), axisTick: { show: false }, axisLine: { lineStyle: { color: colours.line } }, axisLabel: { color: colours.ink, fontSize: 12, width: width < 480 ? 108 : 158, overflow: "truncate", interval: 0 } },
      tooltip: { ...tooltip(colours), formatter: (item) => sampleTip(all[item.value[1]][item.value[2]]) },
      series: [
        {
          type: "scatter", name: "samples", symbolSize: 7, itemStyle: { color: colours.blue, opacity: 0.55 },
          data: all.flatMap((samples, row) => samples.map((s, at) => [off(s), row, at])),
          markLine: { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: colours.soft, type: "solid", width: 1.3 }, data: [{ xAxis: 0 }] },
        },
        {
          type: "custom", name: "median", silent: true, z: 4, encode: { x: 0, y: 1 }, data: all.map((samples, row) => [median(samples.map(off)), row]),
          renderItem: (_, api) => {
            const [x, y] = api.coord([api.value(0), api.value(1)]);
            return { type: "line", shape: { x1: x, x2: x, y1: y - 9, y2: y + 9 }, style: { stroke: colours.red, lineWidth: 3 } };
          },
        },
      ],
    }),
    numbers: () => ({ columns: sampleColumns, rows: all.flat() }),
  });
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

function linkPlot(link) {
  const sizes = link.flatMap((l) => l.bytes);
  const rates = link.flatMap((l) => l.bytes.map((b, at) => b / l.seconds[at]));
  if (!sizes.length) return element("div", {}, linkTable(link));
  const xs = { min: Math.min(...sizes), max: Math.max(...sizes) };
  const power = (value, round) => 16 ** round(Math.log2(value) / 4);
  const top = Math.max(...rates, ...link.map((l) => l.bytes_per_second));
  const scale = unit(RATES, top);
  return plot({
    id: "link",
    title: "The link: rate over the size of a transfer",
    caption: "Points are measured, curves are fitted: latency plus bytes at a rate. Small transfers are slow because of the latency.",
    height: (width) => (width < 480 ? 320 : 360),
    paperHeight: 300,
    legend: link.map((l, at) => ({ name: l.what, ...looks(at) })),
    extra: linkTable(link),
    option: (colours) => ({
      grid: { left: 62, right: 22, top: 16, bottom: 48 },
      xAxis: axis(colours, { type: "log", logBase: 16, min: power(xs.min, Math.floor), max: power(xs.max, Math.ceil), splitNumber: 8, name: "bytes of one transfer", nameGap: 28, axisLabel: { formatter: (v) => bytes(v, 3), hideOverlap: true } }),
      yAxis: axis(colours, { name: `rate (${scale.name})`, nameGap: 44, min: 0, axisLabel: { formatter: (v) => digits(v / scale.size) } }),
      tooltip: { ...tooltip(colours), formatter: (item) => linkTip(link, item) },
      series: link.flatMap((l, at) => {
        const hue = colours[looks(at).colour];
        const curve = Array.from({ length: 41 }, (_, i) => xs.min * (xs.max / xs.min) ** (i / 40));
        return [
          { type: "line", name: l.what, silent: true, showSymbol: false, smooth: true, data: curve.map((b) => [b, b / (l.latency_seconds + b / l.bytes_per_second)]), lineStyle: { color: hue, width: 1.8, type: ["solid", "dashed", "dotted"][at % 3] }, itemStyle: { color: hue } },
          { type: "scatter", name: l.what, symbol: looks(at).mark, symbolSize: 8, data: l.bytes.map((b, i) => [b, b / l.seconds[i], at, i]), itemStyle: { color: hue, borderColor: colours.card, borderWidth: 0.6 } },
        ];
      }),
    }),
    numbers: () => ({
      columns: [
        { title: "way", value: ([l]) => l.what },
        { title: "bytes", value: ([l, at]) => l.bytes[at], text: (v) => bytes(v) },
        { title: "took", csv: "seconds", value: ([l, at]) => l.seconds[at], text: (v) => seconds(v) },
        { title: "rate", csv: "bytes_per_second", value: ([l, at]) => l.bytes[at] / l.seconds[at], text: (v) => rate(v) },
      ],
      rows: link.flatMap((l) => l.bytes.map((_, at) => [l, at])),
    }),
  });
}

function linkTip(link, item) {
  const [size, speed, at, sample] = item.value;
  return tip(link[at].what, [
    ["bytes", bytes(size)],
    ["took", seconds(link[at].seconds[sample])],
    ["rate", rate(speed)],
    ["fitted", seconds(link[at].latency_seconds + size / link[at].bytes_per_second)],
  ]);
}

function linkTable(link) {
  const columns = [
    { title: "way", value: (l) => l.what },
    field("rate", "bytes_per_second", rate), field("latency", "latency_seconds", seconds), field("error, median", "median_error", percent),
    field("error, worst", "worst_error", percent),
    { title: "samples", value: (l) => l.bytes.length, text: count },
  ];
  return table(columns, link, { label: "The link's ways", fixed: true });
}
