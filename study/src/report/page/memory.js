// Bytes over time, and the pool's addresses over time; both on the predicted timeline.

const HOLDS = ["feature map", "gradient", "workspace", "other"];
const HOLD_LOOKS = [
  { colour: "blue", mark: "box" },
  { colour: "orange", mark: "striped" },
  { colour: "grey", mark: "box" },
  { colour: "purple", mark: "hatch" },
];

function memory() {
  const m = report.memory;
  const without = m.keeping_everything_bytes;
  const device = m.resident_bytes + m.pool_bytes;
  return section(
    "memory",
    "What is where in memory",
    "Memory",
    facts([
      ["Device memory", bytes(device), `${percent(device / m.budget_bytes)} of the budget of ${bytes(m.budget_bytes)}`],
      ["Keeping everything", bytes(without), without > m.budget_bytes ? `${digits(without / m.budget_bytes, 3)} times the budget` : "within the budget"],
      ["Always there", bytes(m.resident_bytes), "parameters, optimizer state and what else stays"],
      ["Pool", bytes(m.pool_bytes), `${bytes(m.alive_bytes)} at most in use at one time`],
      ["Host memory", bytes(m.host_bytes), "for what is swapped"],
    ]),
    ...(endOfMemory() > 1 ? [bytesPlot(m), m.addresses.start.length ? addressPlot(m) : null] : [element("p", {}, "No command takes any time here, so that nothing can be drawn over time.")]),
  );
}

/** The end of what is shown of memory, in nanoseconds; all of it is predicted. */
const endOfMemory = () => Math.max(1, ...[report.memory.pool, report.memory.keeping_everything, report.memory.host, report.memory.in_flight].map(endOf));

function bytesPlot(m) {
  const hasHost = m.host.bytes.some((b) => b > 0);
  const drawn = endOf(m.keeping_everything) > 0;
  const moves = m.in_flight.bytes.some((b) => b > 0);
  const lines = [
    { name: "in use on the device", series: m.pool, plus: m.resident_bytes, colour: "blue", mark: "area", style: { width: 2 }, opacity: 0.2 },
    drawn ? { name: "were everything kept", series: m.keeping_everything, plus: m.resident_bytes, colour: "red", mark: "dash", style: { width: 1.8, type: "dashed" } } : null,
    hasHost ? { name: "copies on the host", series: m.host, plus: 0, colour: "green", mark: "line", style: { width: 1.8 } } : null,
    moves ? { name: "on their way", series: m.in_flight, plus: 0, colour: "purple", mark: "dot", style: { width: 1.5, type: "dotted" } } : null,
  ].filter(Boolean).map((line) => ({ ...line, end: endOf(line.series) }));
  const levels = [
    { name: "budget", bytes: m.budget_bytes, colour: "black", mark: "line", style: { width: 2.2 } },
    { name: "always there", bytes: m.resident_bytes, colour: "grey", mark: "dash", style: { width: 1.5, type: "dashed" } },
  ];
  return plot({
    id: "bytes",
    title: "Memory over one iteration",
    caption: `As predicted. ${drawn ? "What keeping everything would need is drawn on its own timeline, which no budget slows down." : ""}`,
    about: `Budget ${bytes(m.budget_bytes)}; in use at most ${bytes(m.resident_bytes + m.alive_bytes)}.`,
    zoom: "time",
    end: endOfMemory,
    height: (width) => (width < 480 ? 330 : 380),
    paperHeight: 300,
    legend: [...lines, ...levels],
    option: (colours) => memoryOption(colours, lines, levels, endOfMemory()),
    numbers: () => memoryNumbers(lines),
  });
}

/** The end of a series: of its own timeline for what is kept, of the predicted one for the rest. */
function endOf(series) {
  const last = series.at[series.at.length - 1] || 0;
  return series === report.memory.keeping_everything ? last : Math.max(last, (report.iteration.timelines[0]?.makespan_seconds || 0) * 1e9);
}

function addressPlot(m) {
  const a = m.addresses;
  const used = HOLDS.map((_, what) => a.what.includes(what));
  return plot({
    id: "addresses",
    title: "The pool's addresses over time",
    caption: "Every rectangle is a tensor for as long as it lies there: its bytes from bottom to top. What is empty is free.",
    about: `${counted(a.start.length, "residency", "residencies")} in a pool of ${bytes(m.pool_bytes)}.`,
    canvas: true,
    zoom: "time",
    end: endOfMemory,
    height: (width) => (width < 480 ? 380 : 460),
    paperHeight: 400,
    legend: HOLDS.map((name, what) => ({ name, ...HOLD_LOOKS[what] })).filter((_, what) => used[what]),
    option: (colours) => addressOption(m, colours),
    numbers: () => ({
      columns: [
        { title: "tensor", value: (at) => nameOf(a.name[at]) },
        { title: "what", value: (at) => HOLDS[a.what[at]] },
        { title: "from", csv: "start_ns", value: (at) => a.start[at], text: (v) => nanoseconds(v, 6) },
        { title: "for", csv: "length_ns", value: (at) => a.length[at], text: (v) => nanoseconds(v) },
        { title: "first byte", csv: "offset", value: (at) => a.offset[at], text: count },
        { title: "size", csv: "bytes", value: (at) => a.bytes[at], text: (v) => bytes(v) },
      ],
      rows: a.start.map((_, at) => at),
    }),
  });
}

function addressOption(m, colours) {
  const a = m.addresses;
  const y = byteAxis(m.pool_bytes);
  const fills = [{ color: colours.blue }, { color: colours.orange, decal: stripes(colours) }, { color: colours.grey }, { color: colours.purple, decal: hatching(colours.card) }];
  const series = HOLDS.map((name, what) => {
    const data = [];
    for (let i = 0; i < a.start.length; i += 1) if (a.what[i] === what) data.push([a.start[i], a.start[i] + a.length[i], a.offset[i], a.offset[i] + a.bytes[i], i]);
    return {
      type: "custom", name, data, encode: { x: [0, 1], y: [2, 3] }, itemStyle: fills[what], progressive: 0,
      renderItem: (frame, api) => {
        const [x0, y0] = api.coord([api.value(0), api.value(2)]);
        const [x1, y1] = api.coord([api.value(1), api.value(3)]);
        const shape = cut(x0, y1, Math.max(x1 - x0, 0.6), Math.max(y0 - y1, 0.6), frame.coordSys);
        if (!shape) return null;
        const roomy = shape.width > 60 && shape.height > 13;
        const thick = shape.width > 4 && shape.height > 4;
        const style = { fill: fills[what].color, decal: thick ? fills[what].decal : undefined, stroke: colours.card, lineWidth: thick ? 0.7 : 0 };
        return named({ type: "rect", shape, style }, roomy ? nameOf(a.name[api.value(4)]) : "", HOLD_LOOKS[what], colours);
      },
    };
  });
  const end = { symbol: "none", silent: true, lineStyle: { color: colours.ink, width: 1.5, type: "solid" }, label: { formatter: `end of the pool, ${bytes(m.pool_bytes)}`, position: "insideEndTop", color: colours.ink, fontSize: 12 } };
  series[0].markLine = { ...end, data: [{ yAxis: m.pool_bytes }] };
  return {
    grid: { left: 62, right: 18, top: 24, bottom: 76 },
    xAxis: timeAxis(colours, endOfMemory()),
    yAxis: axis(colours, { name: `address in the pool (${y.name})`, nameGap: 44, min: 0, max: Math.max(y.max, m.pool_bytes * 1.06), interval: y.interval, axisLabel: { formatter: y.label, showMaxLabel: false } }),
    tooltip: {
      ...tooltip(colours),
      formatter: ({ value }) => {
        const at = value[4];
        return tip(nameOf(a.name[at]), [
          ["what", HOLDS[a.what[at]]],
          ["size", bytes(a.bytes[at])],
          ["first byte", count(a.offset[at])],
          ["from", nanoseconds(a.start[at], 6)],
          ["for", nanoseconds(a.length[at])],
        ]);
      },
    },
    series,
  };
}
