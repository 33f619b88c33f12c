// Plots: a figure with a title, a legend of buttons, zoom by keyboard, the drawing, and its numbers as a table.
// The drawing is Apache ECharts; what stands here only frames it.

/** Colours that people who see colours differently tell apart (after Okabe and Ito), on light and on dark ground. */
const COLOURS = {
  light: {
    ink: "#1a2530", soft: "#566270", line: "#c5cbd1", grid: "#e6e9ec", card: "#ffffff", onData: "#ffffff",
    blue: "#0072b2", orange: "#e69f00", green: "#009e73", red: "#d55e00", purple: "#b65c93", sky: "#56b4e9", grey: "#7b8794", black: "#1a2530",
  },
  dark: {
    ink: "#e4eaef", soft: "#a5b1bc", line: "#46535f", grid: "#27323c", card: "#172029", onData: "#0c151b",
    blue: "#4aa3df", orange: "#f0b429", green: "#2fc39a", red: "#f07c3a", purple: "#d993bd", sky: "#8ccdf2", grey: "#8c99a6", black: "#e4eaef",
  },
};

const plots = [];
let printing = false;
const palette = () => (isDark() && !printing ? COLOURS.dark : COLOURS.light);

/**
 * A figure. Of `spec`:
 * - title, caption: words; about: what one sees, for those who do not see it
 * - height(width), on paper paperHeight: pixels; canvas: for thousands of shapes
 * - legend: [{ name, colour, mark, off? }]; colours are names of COLOURS, marks those of `swatch`
 * - option(colours, width): what ECharts draws
 * - zoom: "time" for plots that are zoomed together, which say where they `end()`; hint: how, in words
 * - numbers(): { columns, rows } of the table below
 * - extra: elements between the drawing and its numbers
 */
function plot(spec) {
  const drawing = element("div", { class: "plot" });
  const state = { spec, drawing, chart: null, off: new Set((spec.legend || []).filter((l) => l.off).map((l) => l.name)), range: null };
  const controls = [];
  if (spec.legend) controls.push(legend(state));
  if (spec.zoom) controls.push(zoomButtons(state));
  plots.push(state);
  return element(
    "figure",
    { id: spec.id },
    element("h3", {}, spec.title),
    element("figcaption", {}, spec.caption, spec.zoom && spec.hint ? element("span", { class: "hint" }, ` ${spec.hint}`) : null),
    controls.length ? element("div", { class: "controls" }, controls) : null,
    drawing,
    spec.extra,
    spec.numbers ? numbers(spec) : null,
  );
}

/** The table behind a plot, made when it is first opened. */
function numbers(spec) {
  const details = element("details", { class: "numbers" }, element("summary", {}, "The numbers as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const { columns, rows } = spec.numbers();
    details.append(table(columns, rows, { label: `${spec.title}: the numbers`, filter: rows.length > 20 }));
  });
  return details;
}

function legend(state) {
  const items = state.spec.legend.map((entry) => {
    const button = element("button", { type: "button", "aria-pressed": !state.off.has(entry.name), title: "Show or hide" });
    entry.paint = () => button.replaceChildren(swatch(entry), entry.name);
    entry.paint();
    button.addEventListener("click", () => {
      const shown = state.off.has(entry.name);
      if (shown) state.off.delete(entry.name);
      else state.off.add(entry.name);
      button.setAttribute("aria-pressed", String(shown));
      draw(state);
    });
    return element("li", {}, button);
  });
  return element("ul", { class: "legend", "aria-label": "Shown in this plot" }, items);
}

/** The sign of a legend's entry: how the data are drawn, so that colour alone never tells. */
function swatch({ colour, mark }) {
  const hue = palette()[colour];
  const stroke = { stroke: hue, "stroke-width": 2.5, fill: "none" };
  const shape = {
    line: () => drawn("path", { d: "M1 7h24", ...stroke }),
    dash: () => drawn("path", { d: "M1 7h24", "stroke-dasharray": "7 4", ...stroke }),
    dot: () => drawn("path", { d: "M1 7h24", "stroke-dasharray": "2.5 3", ...stroke }),
    band: () => drawn("path", { d: "M1 2h24v10h-24z", fill: hue, "fill-opacity": 0.25 }),
    area: () => drawn("path", { d: "M1 13v-8h24v8z", fill: hue, "fill-opacity": 0.3, stroke: hue }),
    box: () => drawn("path", { d: "M5 1h16v12h-16z", fill: hue }),
    hatch: () => drawn("path", { d: "M5 1h16v12h-16zM5 7l6-6M5 13l12-12M11 13l10-10M17 13l4-4", fill: "none", stroke: hue, "stroke-width": 1.5 }),
    striped: () =>
      drawn("g", {}, drawn("path", { d: "M5 1h16v12h-16z", fill: hue }), drawn("path", { d: "M5 9l8-8M8 13l12-12M14 13l7-7", stroke: palette().card, "stroke-width": 1.6 })),
    circle: () => drawn("circle", { cx: 13, cy: 7, r: 4.5, fill: hue }),
    diamond: () => drawn("path", { d: "M13 1l6 6-6 6-6-6z", fill: hue }),
    triangle: () => drawn("path", { d: "M13 1l6 11h-12z", fill: hue }),
    rect: () => drawn("path", { d: "M8 2h10v10h-10z", fill: hue }),
  }[mark];
  return drawn("svg", { width: 26, height: 14, "aria-hidden": "true" }, shape());
}

function zoomButtons(state) {
  const step = (label, sign, change) =>
    element("button", { type: "button", "aria-label": label, title: label, onclick: () => change(state) }, sign);
  return element(
    "div",
    { class: "zoom", role: "group", "aria-label": "Zoom" },
    step("Zoom in", "+", (s) => scaleRange(s, 0.5, 0)),
    step("Zoom out", "−", (s) => scaleRange(s, 2, 0)),
    step("Earlier", "‹", (s) => scaleRange(s, 1, -0.5)),
    step("Later", "›", (s) => scaleRange(s, 1, 0.5)),
    step("Show all", "all", (s) => setRange(s, 0, 100)),
  );
}

function scaleRange(state, factor, shift) {
  const [from, to] = state.range || [0, 100];
  const width = Math.min(100, (to - from) * factor);
  const middle = (from + to) / 2 + shift * (to - from);
  const start = Math.max(0, Math.min(100 - width, middle - width / 2));
  setRange(state, start, start + width);
}

/** Zooms a plot, in percent of its width, and with it all that show the same time; not `drawnAlready`, which is there already. */
function setRange(state, from, to, drawnAlready) {
  const whole = from <= 0 && to >= 100;
  for (const other of plots) {
    if (other !== state && !(state.spec.zoom === "time" && other.spec.zoom === "time")) continue;
    const scale = other === state ? 1 : state.spec.end() / other.spec.end();
    const [start, end] = whole ? [0, 100] : [from * scale, Math.min(100, to * scale)];
    // A span that lies after the end of what the other shows moves nothing there.
    if (start >= end) continue;
    other.range = [start, end];
    if (other.chart && other !== drawnAlready) other.chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start, end, quiet: true });
  }
}

/** Draws a plot as it is now: its width, its colours, what is hidden, where it is zoomed to. */
function draw(state) {
  const { spec, drawing } = state;
  const colours = palette();
  const width = printing ? 680 : drawing.clientWidth;
  if (!width) return;
  const height = (printing && spec.paperHeight) || spec.height(width);
  if (!state.chart) {
    drawing.style.height = `${height}px`;
    state.chart = echarts.init(drawing, null, { renderer: spec.canvas && !printing ? "canvas" : "svg", width, height });
    state.chart.on("datazoom", (event) => {
      const moved = (event.batch || [event])[0];
      if (event.quiet || moved.quiet || !known(moved.start)) return;
      setRange(state, moved.start, moved.end, state);
    });
  } else if (state.chart.getWidth() !== width || state.chart.getHeight() !== height) {
    drawing.style.height = `${height}px`;
    state.chart.resize({ width, height });
  }
  const option = spec.option(colours, width);
  const range = state.range || [0, 100];
  state.chart.setOption(
    {
      animation: false,
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: colours.ink },
      aria: { enabled: true, label: { description: `${spec.title}. ${spec.about || spec.caption}` } },
      tooltip: tooltip(colours, spec.tooltip),
      legend: { show: false, selected: Object.fromEntries([...state.off].map((name) => [name, false])) },
      dataZoom: spec.zoom ? zoomParts(colours, option, range) : [],
      ...option,
    },
    { notMerge: true },
  );
}

function tooltip(colours, own) {
  return {
    trigger: "item",
    confine: true,
    className: "tip",
    backgroundColor: colours.card,
    borderColor: colours.line,
    textStyle: { color: colours.ink, fontSize: 13 },
    transitionDuration: 0,
    extraCssText: "max-width:min(24rem,90vw);white-space:normal;",
    ...own,
  };
}

function zoomParts(colours, option, [start, end]) {
  const xAxisIndex = Array.isArray(option.xAxis) ? option.xAxis.map((_, at) => at) : [0];
  const both = { xAxisIndex, start, end, filterMode: "none" };
  return [
    { type: "inside", ...both, zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, moveOnMouseWheel: false, preventDefaultMouseMove: false },
    {
      type: "slider", ...both, show: !printing, height: 18, bottom: 6, brushSelect: false, showDetail: false, showDataShadow: false,
      borderColor: colours.line, fillerColor: `${colours.blue}33`, backgroundColor: "transparent",
      handleStyle: { color: colours.card, borderColor: colours.blue }, moveHandleSize: 0,
    },
  ];
}

/** What a tooltip says: a title, names and values, and a sentence; all of them texts. */
function tip(title, pairs, sentence) {
  return element(
    "div",
    {},
    element("b", {}, title),
    element("dl", {}, pairs.filter(Boolean).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
    sentence ? element("p", {}, sentence) : null,
  );
}

/** An axis of values, named, with its unit. */
function axis(colours, more) {
  return {
    type: "value",
    nameLocation: "middle",
    nameTextStyle: { color: colours.soft, fontSize: 12 },
    axisLine: { show: true, lineStyle: { color: colours.line } },
    axisTick: { show: true, lineStyle: { color: colours.line } },
    axisLabel: { color: colours.soft, fontSize: 12, hideOverlap: true, ...(more.axisLabel || {}) },
    splitLine: { lineStyle: { color: colours.grid } },
    ...Object.fromEntries(Object.entries(more).filter(([name]) => name !== "axisLabel")),
  };
}

/** Round steps for an axis of bytes, in powers of two as its unit is. */
function byteAxis(largest) {
  const { size, name } = unit(SIZES, largest || 1);
  const rough = largest / size / 6 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const interval = Math.max(step, size === 1 ? 1 : 0) * size;
  return { name, interval, max: Math.ceil((largest * 1.02) / interval) * interval, label: (value) => digits(value / size) };
}

/** Round steps for an axis from 0 that holds bands as well, as far as they do not dwarf what they are about. */
function roomFor(values, highs) {
  const [value, high] = [values, highs].map((all) => Math.max(...all.filter(known)));
  const largest = Math.min(high, 2 * value) || 1;
  const power = 10 ** Math.floor(Math.log10(largest / 6));
  const interval = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= largest / 6);
  return { min: 0, interval, max: Math.ceil((largest * 1.02) / interval) * interval };
}

/** An axis of times in nanoseconds, from 0. */
function timeAxis(colours, end, more) {
  const { size, name } = unit(TIMES, end / 1e9);
  return axis(colours, {
    name: `time from the start of the iteration (${name})`,
    nameGap: 26,
    min: 0,
    max: end,
    // Where it is zoomed, it begins at no round number.
    axisLabel: { formatter: (value, at) => (at === 0 && value !== 0 ? "" : digits(value / 1e9 / size, 6)), showMaxLabel: false },
    ...more,
  });
}

/** A logarithmic axis's range that holds all values, with a little air. */
function logRange(values) {
  const all = values.filter((v) => known(v) && v > 0);
  const low = Math.min(...all);
  const high = Math.max(...all);
  return { min: 10 ** (Math.floor(Math.log10(low * 0.9) * 5) / 5), max: 10 ** (Math.ceil(Math.log10(high * 1.1) * 5) / 5) };
}

/** Cuts a rectangle to the plot's frame; null where nothing is left. */
function cut(x, y, width, height, frame) {
  const left = Math.max(x, frame.x);
  const right = Math.min(x + width, frame.x + frame.width);
  const top = Math.max(y, frame.y);
  const bottom = Math.min(y + height, frame.y + frame.height);
  return right > left && bottom > top ? { x: left, y: top, width: right - left, height: bottom - top } : null;
}

/** A rectangle with a name in it where there is one; on stripes the name stands on plain ground. */
function named(rectangle, words, { colour, mark }, colours) {
  if (!words) return rectangle;
  const { x, y, width, height } = rectangle.shape;
  const dark = colours.onData === "#ffffff" && ["orange", "sky"].includes(colour);
  const ground = mark === "box" ? {} : { backgroundColor: rectangle.style.fill, padding: [3, 4] };
  const place = { x: x + width / 2, y: y + height / 2, align: "center", verticalAlign: "middle" };
  const fitted = { width: width - 12, overflow: "truncate", ellipsis: "…" };
  const style = { text: words, fill: dark ? colours.ink : colours.onData, fontSize: 11, ...place, ...fitted, ...ground };
  return { type: "group", children: [rectangle, { type: "text", silent: true, z2: 9, style }] };
}

/** A band between two lines: a polygon through [x, low, high]. */
function band(name, points, colour) {
  return {
    type: "custom", name, silent: true, z: 1, clip: true,
    data: points.length > 1 ? [[points[0][0], points[0][1]]] : [],
    renderItem: (_, api) => ({
      type: "polygon",
      shape: { points: [...points.map((p) => api.coord([p[0], p[2]])), ...points.map((p) => api.coord([p[0], p[1]])).reverse()] },
      style: { fill: colour, opacity: 0.22 },
    }),
  };
}

const spread = (x, value, share) => [x, value * (1 - share), value * (1 + share)];

/** What lies between two values at a place, as upright lines through [x, low, high]. */
function spreads(name, points, colour) {
  return {
    type: "custom", name, silent: true, z: 4, data: points, encode: { x: 0, y: [1, 2] },
    renderItem: (_, api) => {
      const [x, low] = api.coord([api.value(0), api.value(1)]);
      const [, high] = api.coord([api.value(0), api.value(2)]);
      return { type: "line", shape: { x1: x, y1: low, x2: x, y2: high }, style: { stroke: colour, lineWidth: 2 } };
    },
  };
}

/** The points of a step function up to its end, with what comes on top of it. */
function stepPoints(series, plus, end) {
  const points = series.at.map((at, i) => [at, series.bytes[i] + plus]);
  const last = points[points.length - 1];
  return last && end > last[0] ? [...points, [end, last[1]]] : points;
}

/** The value of a step function at a time; null before its first step and after its end. */
function stepAt(series, time, end) {
  let [low, high] = [0, series.at.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (series.at[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low && time <= end ? series.bytes[low - 1] : null;
}

/**
 * What a plot of memory over time draws, up to `end`: of `lines` the steps ({ name, series, plus, end, colour, style, opacity under
 * it }), and `levels` ({ name, bytes, colour, style }).
 */
function memoryOption(colours, lines, levels, end) {
  const peak = (l) => l.plus + l.series.bytes.reduce((a, b) => Math.max(a, b), 0);
  const y = byteAxis(Math.max(...levels.map((l) => l.bytes), ...lines.map(peak)));
  const style = (l) => ({ itemStyle: { color: colours[l.colour] }, lineStyle: { color: colours[l.colour], ...l.style } });
  const step = (l) => ({
    type: "line", name: l.name, step: "end", showSymbol: false, data: stepPoints(l.series, l.plus, l.end), ...style(l),
    areaStyle: l.opacity ? { color: colours[l.colour], opacity: l.opacity } : undefined, emphasis: { disabled: true },
  });
  const level = (l) => ({ type: "line", name: l.name, showSymbol: false, silent: true, data: [[0, l.bytes], [end, l.bytes]], ...style(l) });
  return {
    grid: { left: 62, right: 18, top: 20, bottom: 76 },
    xAxis: timeAxis(colours, end),
    yAxis: axis(colours, { name: `memory (${y.name})`, nameGap: 44, min: 0, max: y.max, interval: y.interval, axisLabel: { formatter: y.label } }),
    tooltip: { ...tooltip(colours), trigger: "axis", axisPointer: { type: "line", lineStyle: { color: colours.soft } }, formatter: (items) => memoryTip(lines, items[0].axisValue) },
    series: [...lines.map(step), ...levels.map(level)],
  };
}

function memoryTip(lines, time) {
  const rows = lines.map((l) => [l.name, stepAt(l.series, time, l.end), l.plus]).filter(([, value]) => value !== null);
  return tip(nanoseconds(time, 6), rows.map(([name, value, plus]) => [name, bytes(value + plus)]));
}

/** The numbers of such lines. */
const memoryNumbers = (lines) => ({
  columns: [
    { title: "what", value: (r) => r.line.name },
    { title: "from", csv: "at_ns", value: (r) => r.line.series.at[r.at], text: (v) => nanoseconds(v, 6) },
    { title: "bytes", csv: "bytes", value: (r) => r.line.plus + r.line.series.bytes[r.at], text: (v) => bytes(v, 5) },
  ],
  rows: lines.flatMap((line) => line.series.at.map((_, at) => ({ line, at }))),
});

/** An axis of batch sizes that holds all of them, and the pixel of each; logarithmic where they lie far apart. */
function batchAxis(colours, batches, frame, width) {
  const [least, most] = [Math.min(...batches), Math.max(...batches)];
  const wide = most / least > 12;
  // A logarithmic axis lives in powers of its base; a plain one starts at 0.
  const [min, max] = wide ? [2 ** Math.floor(Math.log2(least)), 2 ** Math.ceil(Math.log2(most * 1.02))] : [0, most * 1.06];
  const within = width - frame.left - frame.right;
  const place = (x) => frame.left + within * (wide ? Math.log(x / min) / Math.log(max / min) : (x - min) / (max - min));
  const shown = { type: wide ? "log" : "value", logBase: 2, min, max, name: "batch (samples of one iteration)", nameGap: 28, splitLine: { show: false }, axisLabel: { formatter: count, showMaxLabel: wide } };
  return { place, axis: axis(colours, shown) };
}

/** Vertical lines with words on top, in rows so that words do not run into each other. `place(x)` is its pixel. */
function uprights(colours, lines, place, width) {
  const used = [];
  return lines
    .map((line) => ({ ...line, at: place(line.x) }))
    .sort((a, b) => a.at - b.at)
    .map((line) => {
      const half = (line.words.length * (line.strong ? 7.2 : 6.2)) / 2 + 4;
      const middle = Math.max(half, Math.min(width - half, line.at));
      let row = 0;
      while ((used[row] ?? -Infinity) > middle - half) row += 1;
      used[row] = middle + half;
      return { ...line, row, shift: middle - line.at };
    })
    .map((line) => ({
      xAxis: line.x,
      lineStyle: { color: colours[line.colour], type: line.type, width: line.strong ? 2 : 1.5 },
      label: { formatter: line.words, color: colours.ink, fontSize: 12, fontWeight: line.strong ? 600 : 400, distance: 9 + line.row * 16, offset: [line.shift, 0] },
    }));
}

function drawAll() {
  for (const state of plots) draw(state);
}

/** Anew, with the other colours. */
function repaint() {
  for (const state of plots) for (const entry of state.spec.legend || []) entry.paint();
  drawAll();
}

/** For paper: drawn as lines and areas, light, and as wide as the paper. */
function forPaper(on) {
  printing = on;
  for (const state of plots) {
    if (state.chart) state.chart.dispose();
    state.chart = null;
  }
  repaint();
  if (!on) return;
  for (const { drawing, chart } of plots) {
    const svg = drawing.querySelector("svg");
    if (svg) svg.setAttribute("viewBox", `0 0 ${chart.getWidth()} ${chart.getHeight()}`);
  }
}
