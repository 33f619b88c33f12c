// What was decided of every layer, and why.

const DECISION_LOOKS = {
  kept: { colour: "blue", path: "M6 1a5 5 0 1 0 .01 0z" },
  swapped: { colour: "green", path: "M4 11V2M1.5 4.5L4 1.5l2.5 3M8 1v9M5.5 7.5L8 10.5l2.5-3" },
  recomputed: { colour: "red", path: "M10.5 6a4.5 4.5 0 1 1-1.6-3.4M9.5 0.5v2.8h-2.8" },
  none: { colour: "grey", path: "M2 6h8" },
};

const decisionsOf = (layer) => layer.decision.split(" + ");

/** A decision: a sign for each way, and the words. */
function decision(layer) {
  const signs = decisionsOf(layer).map((word) => {
    const look = DECISION_LOOKS[word] || DECISION_LOOKS.none;
    const full = word === "kept" ? "currentColor" : "none";
    return drawn("svg", { width: 12, height: 12, "aria-hidden": "true", class: `sign ${look.colour}` }, drawn("path", { d: look.path, fill: full, stroke: "currentColor", "stroke-width": 1.5 }));
  });
  return element("span", { class: "decision" }, signs, layer.decision);
}

function layers() {
  const rows = report.layers;
  if (!rows.length) return null;
  const inTime = (title, key, csv = key) => {
    const { name, text } = column(TIMES, rows.map((r) => r[key]));
    return rows.some((r) => known(r[key])) ? { title, unit: name, csv, value: (r) => r[key], text } : null;
  };
  const inBytes = (title, key) => {
    const { name, text } = column(SIZES, rows.map((r) => r[key]));
    return { title, unit: name, csv: key, value: (r) => r[key], text };
  };
  const columns = [
    { title: "layer", value: (r) => r.layer },
    { title: "type", value: (r) => r.kind },
    { title: "decision", value: (r) => r.decision, show: decision },
    { title: "reason", value: (r) => r.reason, wide: true },
    inBytes("feature maps", "feature_map_bytes"),
    inTime("forward", "forward_seconds"),
    inTime("backward", "backward_seconds"),
    inTime("measured, both", "measured_seconds"),
    inTime("transfer both ways", "transfer_seconds"),
    inTime("slack", "slack_seconds"),
    inBytes("swapped", "offloaded_bytes"),
    inBytes("recomputed", "recomputed_bytes"),
    inTime("recomputing", "recomputed_seconds"),
  ].filter(Boolean);
  const total = rows.reduce((sum, r) => sum + r.feature_map_bytes, 0);
  const sums = new Map();
  for (const r of rows) {
    const name = decisionsOf(r).length > 1 ? "treated in several ways" : r.decision;
    const [many, size] = sums.get(name) || [0, 0];
    sums.set(name, [many + 1, size + r.feature_map_bytes]);
  }
  sums.delete("none");
  const words = [...sums].sort((a, b) => b[1][1] - a[1][1]).map(([name, [many, size]]) => `${bytes(size)} of ${counted(many, "layer")} ${many === 1 ? "is" : "are"} ${name}`);
  return section(
    "layers",
    "Layer by layer",
    "Layers",
    element("p", {}, `${counted(rows.length, "layer")} with ${bytes(total)} of feature maps that the backward pass reads${words.length ? `: ${listed(words)}` : ""}.`),
    element("p", { class: "note" }, "Slack is the time between the last use of a layer's feature maps in the forward pass and the first one in the backward pass; a transfer out and back can hide in it. Times are predicted unless it says measured."),
    table(columns, rows, { label: "Layers, decisions and reasons", filter: true, chips: { title: "Only layers with this decision", of: decisionsOf } }),
  );
}
