// The workers that the study was tuned for: an update of theirs, which resource it takes, and how it scales.

function workers() {
  const w = report.workers;
  if (!w) return null;
  const { single } = w;
  const how = report.about.modelled ? "modelled" : "measured";
  return section(
    "workers",
    `${count(w.workers)} workers, ${w.interconnect} between them`,
    "Workers",
    facts([
      ["Update", seconds(w.update_seconds), `${count(w.global_batch)} samples; ${counted(w.passes, "pass", "passes")} of each worker`],
      ["Exchange adds", seconds(w.exchange_seconds), known(w.hidden) ? `predicted; overlap hides ${percent(w.hidden)} of it` : "predicted"],
      ["Throughput", `${digits(w.samples_per_second)}/s`, "samples, of all workers"],
      single && ["Over one worker alone", `${digits(single.times, 3)} times`, `${single.what} at batch ${count(single.batch)}: ${digits(single.samples_per_second)} samples/s, ${how}`],
    ]),
    element(
      "p",
      {},
      `Simulated, an update takes ${seconds(w.predicted_update_seconds)}; where nothing is exchanged before the backward pass is over, ${seconds(w.without_overlap_seconds)}; no order of the same work takes less than ${seconds(w.bound_seconds)}. `,
      w.nccl ? "The workers' GPUs sum by NCCL." : "The workers' hosts sum.",
    ),
    element("h3", { style: "margin-top:1.5rem" }, "What an update keeps busy"),
    table(
      [
        { title: "resource", value: (r) => r.resource },
        field("at work", "busy_seconds", seconds), field("share of an update", "share", percent),
      ],
      w.resources,
      { label: "What an update keeps busy" },
    ),
    element("h3", { style: "margin-top:1.5rem" }, "How it scales"),
    scalingPlot(w),
    table(
      [
        field("workers", "workers", count), field("global batch", "global_batch", count), field("update", "update_seconds", seconds),
        field("samples per second", "samples_per_second", digits), field("of as many without exchange", "efficiency", percent),
        { title: `times one worker, ${single ? single.what : "as here"}`, csv: "times_single", value: (s) => s.samples_per_second / one(w), text: (v) => digits(v, 3) },
      ],
      w.scaling,
      { label: "How it scales" },
    ),
    element(
      "p",
      { class: "note" },
      "Predicted; each worker makes as many passes of the same batch, so that a larger number of workers has larger updates. The last column compares with one worker that trains ",
      single ? (single.what === "yours" ? "by your own setting, as AccUDNN reckons efficiency: it counts what the larger batch gains, too." : "with everything kept, as AccUDNN reckons efficiency.") : "as each of these does.",
    ),
  );
}

/** Samples per second of one worker alone, as predicted. */
const one = (w) => w.single?.predicted_samples_per_second ?? w.scaling[0].samples_per_second;

function scalingPlot(w) {
  const alone = w.scaling[0].samples_per_second;
  const points = w.scaling.map((s) => [s.workers, s.samples_per_second]);
  return plot({
    id: "scaling",
    title: "Samples per second over the number of workers",
    caption: "Both axes are logarithmic. Grey: as many workers that exchange nothing.",
    about: w.scaling.map((s) => `${count(s.workers)} workers ${digits(s.samples_per_second)}/s`).join(", "),
    height: () => 300,
    legend: [
      { name: "predicted", colour: "blue", mark: "line" },
      { name: "without exchange", colour: "grey", mark: "dash" },
    ],
    option: (colours) => ({
      grid: { left: 78, right: 30, top: 20, bottom: 52 },
      xAxis: axis(colours, { type: "log", logBase: 2, min: 1, max: points[points.length - 1][0], name: "workers", nameGap: 30 }),
      yAxis: axis(colours, { type: "log", name: "samples per second", nameGap: 58, axisLabel: { formatter: (v) => digits(v) } }),
      tooltip: { ...tooltip(colours), formatter: (item) => tip(`${count(item.data[0])} workers`, [[item.seriesName, `${digits(item.data[1])} samples/s`]]) },
      series: [
        { type: "line", name: "without exchange", data: points.map(([n]) => [n, n * alone]), symbolSize: 4, lineStyle: { color: colours.grey, type: "dashed" }, itemStyle: { color: colours.grey } },
        { type: "line", name: "predicted", data: points, symbolSize: 7, lineStyle: { color: colours.blue }, itemStyle: { color: colours.blue } },
      ],
    }),
  });
}
