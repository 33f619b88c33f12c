// The report, and what its sections have in common.

const report = JSON.parse(document.getElementById("report").textContent);
const KINDS = ["forward", "backward", "update", "recomputed", "offload", "prefetch"];
const KIND_LOOKS = [
  { colour: "blue", mark: "box" },
  { colour: "orange", mark: "box" },
  { colour: "grey", mark: "box" },
  { colour: "red", mark: "striped" },
  { colour: "green", mark: "box" },
  { colour: "purple", mark: "box" },
];
const LANES = ["compute", "swap-out", "swap-in"];
const stripes = (colours) => ({ symbol: "rect", color: colours.card, dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -Math.PI / 4 });
const hatching = (colour) => ({ symbol: "rect", color: colour, dashArrayX: [1, 0], dashArrayY: [1.4, 5], rotation: -Math.PI / 4 });
const nameOf = (index) => report.iteration.names[index] ?? MISSING;

/** A section, and its place in the bar on top. */
function section(id, title, short, ...children) {
  document.getElementById("sections").append(element("li", {}, element("a", { href: `#${id}` }, short)));
  return element("section", { id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title` }, title), ...children);
}

function pairs(rows) {
  return element("dl", { class: "pairs" }, rows.filter(([, value]) => value).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

/** Numbers that one reads first: name, value, and what to know about it. */
function facts(rows) {
  return element(
    "dl",
    { class: "facts" },
    rows.filter(Boolean).map(([name, value, more]) => element("div", {}, element("dt", {}, name), element("dd", {}, value, more ? element("small", {}, more) : null))),
  );
}

