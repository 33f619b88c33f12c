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

/** What one quotes beside a number: machine, version, command and seed. */
function originOf(about) {
  const when = known(about.unix_seconds) ? new Date(about.unix_seconds * 1000).toISOString().replace("T", " ").slice(0, 16) : null;
  return pairs([
    ["network", about.network],
    ["data", about.data],
    ["device", about.device],
    ...about.machine,
    [about.modelled ? "modelled" : "measured", when ? `${when} UTC` : null],
    ["Plimsoll", about.commit ? `${about.plimsoll}, commit ${about.commit}` : about.plimsoll],
    ["command", about.command ? element("code", {}, about.command) : null],
    ["seed", known(about.seed) ? String(about.seed) : null],
  ]);
}

/** What to know before one relies on the numbers. */
function warningsBox(warnings) {
  if (!warnings.length) return null;
  return element("div", { class: "warnings" }, element("h2", {}, "Before you rely on the numbers"), element("ul", {}, warnings.map((w) => element("li", {}, w))));
}

/** Things as columns, quantities as rows: one compares along a line. A row is [name, show(thing), value(thing)]. */
function sideBySide(label, { heads, things, rows, columns, notes, chosen }) {
  const row = ([name, show]) => element("tr", {}, element("th", { scope: "row" }, name), things.map((thing, at) => element("td", { class: at === chosen ? "chosen" : "" }, show(thing))));
  const made = element(
    "table",
    { class: "settings" },
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, element("span", { class: "aside" }, "quantity")), heads.map((words) => element("th", { scope: "col" }, words)))),
    element("tbody", {}, rows.map(row)),
  );
  return element("div", { class: "table-block settings-block" }, element("div", { class: "table-frame", tabindex: 0, role: "region", "aria-label": label }, made), notes, element("div", { class: "tools", style: "margin-top:.5rem" }, copyButton(columns, () => rows)));
}

/** A time with the error that goes with it. */
const withError = (value, error, words) => (known(value) ? [seconds(value), known(error) ? element("small", {}, `± ${percent(error)} ${words}`) : null] : MISSING);
