// All policies side by side, with the lower bound; and where the report comes from.

function policies() {
  const p = report.policies;
  if (!p.rows.length) return null;
  const planned = p.rows.filter((r) => known(r.makespan_seconds));
  const failed = p.rows.length - planned.length;
  const columns = [
    { title: "policy", value: (r) => r.policy },
    { title: "from", value: (r) => r.paper },
    { title: "iteration", csv: "makespan_seconds", value: (r) => r.makespan_seconds, text: (v) => (known(v) ? seconds(v) : "no plan") },
    { title: "above the bound", csv: "above_bound", value: (r) => (known(r.makespan_seconds) ? r.makespan_seconds / p.bound_seconds - 1 : null), text: (v) => percent(v) },
    ofPlan("compute waits", "stalled_seconds", seconds), ofPlan("offloaded", "offloaded_bytes", bytes),
    ofPlan("prefetched", "prefetched_bytes", bytes), ofPlan("recomputed", "recomputed_bytes", bytes),
    ofPlan("recomputing", "recomputed_seconds", seconds),
    field("device memory", "device_bytes", bytes),
    { title: "planned in", csv: "planning_seconds", value: (r) => r.planning_seconds, text: (v) => seconds(v, 3) },
    { title: "note", value: (r) => r.note, hidden: true },
  ];
  const policyTip = (r) => tip(`${r.policy} (${r.paper})`, readings(columns.slice(2, 9), r));
  return section(
    "policies",
    "All policies side by side",
    "Policies",
    element("p", {}, `All at batch ${count(report.about.batch)} within ${bytes(report.about.budget_bytes)}. No schedule is shorter than ${seconds(p.bound_seconds)}; the ops alone take ${seconds(p.compute_seconds)}. ${failed ? `${capital(counted(failed, "policy has", "policies have"))} no plan that fits.` : ""}`),
    planned.length ? policyPlot(p, planned, policyTip) : null,
    table(columns, p.rows, { label: "All policies side by side" }),
    element("ul", { class: "notes note" }, p.rows.filter((r) => r.note).map((r) => element("li", {}, element("b", {}, r.policy), `: ${r.note}`))),
  );
}

/** A column that only policies with a plan fill. */
const ofPlan = (title, key, text) => ({ ...field(title, key, text), value: (row) => (known(row.makespan_seconds) ? row[key] : null) });

function policyPlot(p, planned, policyTip) {
  const longest = Math.max(...planned.map((r) => r.makespan_seconds));
  const { size, name } = unit(TIMES, longest);
  return plot({
    id: "policy-times",
    title: "Time of an iteration under every policy",
    caption: "Shorter is better. A bar is what the ops take once, recomputing, and stalls.",
    about: planned.map((r) => `${r.policy} ${seconds(r.makespan_seconds)}`).join(", "),
    height: () => 92 + planned.length * 34,
    legend: [
      { name: "ops, once", colour: "blue", mark: "box" },
      { name: "recomputing", colour: "red", mark: "striped" },
      { name: "compute waits", colour: "grey", mark: "hatch" },
    ],
    option: (colours, width) => {
      const bar = (title, value, itemStyle, more) => ({ type: "bar", name: title, stack: "all", barWidth: 20, data: planned.map(value), itemStyle, emphasis: { disabled: true }, ...more });
      const once = (r) => Math.max(0, r.makespan_seconds - r.recomputed_seconds - r.stalled_seconds);
      const total = { show: true, position: "right", color: colours.ink, fontSize: 12, formatter: (item) => seconds(planned[item.dataIndex].makespan_seconds) };
      const place = (x) => 110 + (width - 110 - 70) * (x / (longest * 1.02));
      return {
        grid: { left: 110, right: 70, top: 28, bottom: 48 },
        xAxis: axis(colours, { min: 0, max: longest * 1.02, name: `time of an iteration (${name})`, nameGap: 28, axisLabel: { formatter: (v) => digits(v / size), showMaxLabel: false } }),
        yAxis: { type: "category", inverse: true, data: planned.map((r) => r.policy), axisTick: { show: false }, axisLine: { lineStyle: { color: colours.line } }, axisLabel: { color: colours.ink, fontSize: 12.5, interval: 0, width: 100, overflow: "truncate" } },
        tooltip: { ...tooltip(colours), formatter: (item) => policyTip(planned[item.dataIndex]) },
        series: [
          bar("ops, once", once, { color: colours.blue }, {
            markLine: { silent: true, symbol: "none", precision: 12, label: { position: "start" }, data: uprights(colours, [{ x: p.bound_seconds, words: `lower bound ${seconds(p.bound_seconds)}`, colour: "ink", type: "dashed", strong: true }], place, width) },
          }),
          bar("recomputing", (r) => r.recomputed_seconds, { color: colours.red, decal: stripes(colours) }),
          bar("compute waits", (r) => r.stalled_seconds, { color: colours.card, borderColor: colours.grey, borderWidth: 1, decal: hatching(colours.grey) }, { label: total }),
        ],
      };
    },
  });
}

const origin = () => section("origin", "Where this comes from", "Origin", originOf(report.about));
