// One iteration on three lanes, predicted over measured.

/** The end of all timelines, in nanoseconds. */
const endOfTimelines = () => Math.max(1, ...report.iteration.timelines.map((t) => t.makespan_seconds * 1e9));

function iteration() {
  const { iteration } = report;
  const { timelines } = iteration;
  if (!timelines.length) return null;
  const [predicted] = timelines;
  const used = KINDS.map((_, kind) => timelines.some((t) => t.slices.what.includes(kind)));
  const stalled = timelines.some((t) => t.stalls.length);
  const timeline = plot({
    id: "timeline",
    title: `One iteration: ${timelines.map((t) => t.name).join(" over ")}`,
    caption: `Three lanes: what computes, what is offloaded, what is prefetched. ${stalled ? "Hatched, the longest with a triangle: compute waits." : "Compute never waits."}`,
    about: timelines.map((t) => `${t.name}: ${seconds(t.makespan_seconds)}, compute waits ${seconds(stalledSeconds(t))}.`).join(" "),
    canvas: true,
    zoom: "time",
    end: endOfTimelines,
    hint: "Zoom with the buttons, the slider, or Ctrl and the wheel; drag to move. Memory below zooms along.",
    height: (width) => 50 + timelines.length * (width < 480 ? 150 : 168),
    legend: [
      ...KINDS.map((name, kind) => ({ name, ...KIND_LOOKS[kind] })).filter((_, kind) => used[kind]),
      ...(stalled ? [{ name: "compute waits", colour: "black", mark: "hatch" }] : []),
    ],
    option: (colours, width) => timelineOption(colours, width),
    numbers: () => timelineNumbers(),
    extra: stalled ? stallTable() : null,
  });
  const words = timelines.map((t) => `${capital(t.name)}: ${seconds(t.makespan_seconds)}, ${t.stalls.length ? `of which compute waits ${seconds(stalledSeconds(t))} (${percent(stalledSeconds(t) / t.makespan_seconds)})` : "and compute never waits"}.`);
  words.push(`The ops alone take ${seconds(iteration.compute_seconds)}; no schedule within the budget is shorter than ${seconds(iteration.bound_seconds)}, ${aboveBound(predicted.makespan_seconds / iteration.bound_seconds - 1)}.`);
  return section("iteration", "Where the time goes", "Timeline", element("p", {}, words.join(" ")), laneTable(timelines), timeline);
}

const aboveBound = (share) => (share < 0.0005 ? "and the predicted one takes just that" : `and the predicted one is ${percent(share)} above that`);
const stalledSeconds = (view) => view.stalls.reduce((sum, s) => sum + s.length, 0) / 1e9;

function laneTable(timelines) {
  const rows = timelines.flatMap((t) => LANES.map((lane, at) => ({ t, lane, busy: t.busy_seconds[at] })));
  const columns = [
    { title: "lane", value: (r) => `${r.lane}, ${r.t.name}` },
    { title: "at work", csv: "busy_seconds", value: (r) => r.busy, text: (v) => seconds(v) },
    { title: "share of the iteration", csv: "busy_share", value: (r) => r.busy / r.t.makespan_seconds, text: (v) => percent(v) },
  ];
  return element("details", {}, element("summary", {}, "How busy each lane is"), table(columns, rows, { label: "How busy each lane is", fixed: true, cards: false }));
}

function stallTable() {
  const rows = report.iteration.timelines.flatMap((t) => t.stalls.map((s) => ({ ...s, of: t.name })));
  rows.sort((a, b) => b.length - a.length);
  const show = (row) => element("button", { type: "button", onclick: () => zoomTo(row.start, row.start + row.length) }, "show");
  const columns = [
    { title: "waits for", csv: "cause", value: (r) => r.cause },
    { title: "in", value: (r) => r.of },
    { title: "from", csv: "start_ns", value: (r) => r.start, text: (v) => nanoseconds(v, 5) },
    { title: "for", csv: "length_ns", value: (r) => r.length, text: (v) => nanoseconds(v) },
    { title: "on the timeline", csv: "end_ns", value: (r) => r.start + r.length, show },
  ];
  return element("details", { class: "stalls" }, element("summary", {}, `What compute waits for: ${counted(rows.length, "wait")}, the longest first`), table(columns, rows, { label: "What compute waits for", filter: rows.length > 8 }));
}

/** Zooms the plots over time to a span, with as much again on both sides. */
function zoomTo(from, to) {
  const end = endOfTimelines();
  const around = Math.max(to - from, end / 2000);
  const state = plots.find((p) => p.spec.id === "timeline");
  setRange(state, Math.max(0, (100 * (from - around)) / end), Math.min(100, (100 * (to + around)) / end));
  document.getElementById("timeline").scrollIntoView({ block: "nearest" });
}

function timelineOption(colours, width) {
  const { timelines } = report.iteration;
  const narrow = width < 480;
  const left = narrow ? 66 : 78;
  const each = narrow ? 150 : 168;
  const end = endOfTimelines();
  const grid = timelines.map((_, at) => ({ left, right: 16, top: 26 + at * each, height: each - 48 }));
  const last = timelines.length - 1;
  return {
    grid,
    xAxis: timelines.map((_, at) => ({ ...timeAxis(colours, end, at === last ? {} : { name: "" }), gridIndex: at })),
    yAxis: timelines.map((t, at) => ({
      type: "category", gridIndex: at, inverse: true, data: LANES, name: `${t.name}, ${seconds(t.makespan_seconds)}`, nameLocation: "start",
      nameTextStyle: { align: "left", fontWeight: 600, color: colours.ink, fontSize: 13, padding: [0, 0, 0, -left + 8] }, nameGap: 10,
      axisLine: { lineStyle: { color: colours.line } }, axisTick: { show: false }, axisLabel: { color: colours.soft, fontSize: 12 }, splitLine: { show: true, lineStyle: { color: colours.grid } },
    })),
    tooltip: { ...tooltip(colours), formatter: timelineTip },
    series: timelines.flatMap((t, view) => [...KINDS.map((_, kind) => slicesOf(t, view, kind, colours)), stallsOf(t, view, colours)]),
  };
}

function slicesOf(t, view, kind, colours) {
  const { slices } = t;
  const data = [];
  for (let i = 0; i < slices.start.length; i += 1) if (slices.what[i] === kind) data.push([slices.start[i], slices.start[i] + slices.length[i], slices.lane[i], i]);
  const fill = colours[KIND_LOOKS[kind].colour];
  const decal = KIND_LOOKS[kind].mark === "striped" ? stripes(colours) : undefined;
  return {
    type: "custom", name: KINDS[kind], xAxisIndex: view, yAxisIndex: view, data, encode: { x: [0, 1], y: 2 }, itemStyle: { color: fill }, progressive: 0,
    renderItem: (frame, api) => {
      const shape = laneBox(frame, api, 0.76);
      if (!shape) return null;
      const words = shape.width > 46 ? nameOf(slices.name[api.value(3)]) : "";
      const style = { fill, decal: shape.width > 6 ? decal : undefined, stroke: colours.card, lineWidth: shape.width > 4 ? 0.7 : 0 };
      return named({ type: "rect", shape, style }, words, KIND_LOOKS[kind], colours);
    },
  };
}

/** "offload of x" of what moves; an op by its name. */
function commandName(slices, at) {
  const name = nameOf(slices.name[at]);
  return slices.what[at] >= 4 ? `${KINDS[slices.what[at]]} of ${name}` : name;
}

/** The rectangle of a span of time on its lane. A transfer is never thinner than one can see; ops stand side by side, and one that
 *  is too thin for that would hide its neighbours. */
function laneBox(frame, api, share) {
  const [x0, y] = api.coord([api.value(0), api.value(2)]);
  const [x1] = api.coord([api.value(1), api.value(2)]);
  const height = api.size([0, 1])[1] * share;
  return cut(x0, y - height / 2, Math.max(x1 - x0, api.value(2) === 0 ? 0 : 0.6), height, frame.coordSys);
}

function stallsOf(t, view, colours) {
  const longest = [...t.stalls].sort((a, b) => b.length - a.length)[Math.min(9, t.stalls.length - 1)]?.length;
  return {
    type: "custom", name: "compute waits", xAxisIndex: view, yAxisIndex: view, encode: { x: [0, 1], y: 2 }, z: 4, progressive: 0,
    data: t.stalls.map((s, at) => [s.start, s.start + s.length, 0, at]), itemStyle: { color: colours.ink },
    renderItem: (frame, api) => {
      const shape = laneBox(frame, api, 0.76);
      if (!shape) return null;
      const middle = shape.x + shape.width / 2;
      const words = shape.width > 90 ? t.stalls[api.value(3)].cause : "";
      return {
        type: "group",
        children: [
          { type: "rect", shape, style: { fill: colours.card, decal: hatching(colours.soft), stroke: colours.soft, lineWidth: shape.width > 3 ? 1 : 0 } },
          ...(shape.width > 8 || t.stalls[api.value(3)].length >= longest ? [{ type: "polygon", shape: { points: [[middle - 4.5, shape.y - 8], [middle + 4.5, shape.y - 8], [middle, shape.y]] }, style: { fill: colours.ink } }] : []),
          ...(words ? [{ type: "text", silent: true, z2: 9, style: { x: middle, y: shape.y + shape.height / 2, text: words, align: "center", verticalAlign: "middle", fill: colours.ink, backgroundColor: colours.card, padding: [4, 6], fontSize: 11, width: shape.width - 12, overflow: "truncate" } }] : []),
        ],
      };
    },
  };
}

function timelineTip(item) {
  const view = item.seriesIndex < KINDS.length + 1 ? 0 : 1;
  const t = report.iteration.timelines[view];
  const at = item.value[3];
  if (item.seriesName === "compute waits") {
    const s = t.stalls[at];
    return tip(`Compute waits for ${s.cause}`, [["from", nanoseconds(s.start, 6)], ["for", nanoseconds(s.length)], ["in", t.name]]);
  }
  const { slices } = t;
  const moved = slices.bytes[at];
  return tip(commandName(slices, at), [
    ["what", `${KINDS[slices.what[at]]}, ${t.name}`],
    ["from", nanoseconds(slices.start[at], 6)],
    ["takes", nanoseconds(slices.length[at])],
    moved ? ["moves", bytes(moved)] : null,
    moved ? ["at", rate(moved / (slices.length[at] / 1e9))] : null,
  ]);
}

function timelineNumbers() {
  const rows = report.iteration.timelines.flatMap((t) => t.slices.start.map((_, at) => ({ t, at })));
  const of = (key) => (r) => r.t.slices[key][r.at];
  return {
    columns: [
      { title: "command", value: (r) => commandName(r.t.slices, r.at) },
      { title: "timeline", value: (r) => r.t.name },
      { title: "lane", value: (r) => LANES[of("lane")(r)] },
      { title: "what", value: (r) => KINDS[of("what")(r)] },
      { title: "from", csv: "start_ns", value: of("start"), text: (v) => nanoseconds(v, 6) },
      { title: "takes", csv: "length_ns", value: of("length"), text: (v) => nanoseconds(v) },
      { title: "bytes moved", csv: "bytes", value: of("bytes"), text: (v) => (v ? bytes(v) : "0") },
    ],
    rows,
  };
}
