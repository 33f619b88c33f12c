// Tables that sort by every column, filter, and are copied as CSV; on a narrow screen every row is a card.

/**
 * A table. Columns: { title, unit?, value(row), text?(value, row), show?(row) }; `value` is what sorts and what CSV gets,
 * `text` what is read, `show` an element instead of a text; what is `hidden` is only in the CSV. Numbers stand right.
 * Options: { label, filter: true, chips: { title, of(row) }, fixed: true (no sorting), file }.
 */
function table(all, rows, options = {}) {
  const columns = all.filter((c) => !c.hidden);
  const lines = rows.map((row, index) => ({ row, index, line: null, search: "" }));
  const numeric = columns.map((c) => rows.some((row) => typeof c.value(row) === "number"));
  const body = element("tbody", { role: "rowgroup" });
  const heads = columns.map((c, at) => head(c, numeric[at], options.fixed));
  const state = { by: -1, down: false, words: "", chip: null };
  const shownCount = element("output", { class: "count" });

  for (const entry of lines) {
    const cells = columns.map((c, at) => cell(c, at, entry.row, numeric[at]));
    entry.line = element("tr", { role: "row" }, cells);
    entry.search = entry.line.textContent.toLowerCase().replaceAll(JOINED, " ");
  }

  function arrange() {
    const visible = lines.filter(
      (l) => l.search.includes(state.words) && (state.chip === null || options.chips.of(l.row).includes(state.chip)),
    );
    if (state.by >= 0) {
      const { value } = columns[state.by];
      visible.sort((a, b) => compare(value(a.row), value(b.row), state.down) || a.index - b.index);
    }
    body.replaceChildren(...visible.map((l) => l.line));
    if (!visible.length) body.append(element("tr", {}, element("td", { colspan: columns.length }, "Nothing fits the filter.")));
    shownCount.textContent = visible.length === lines.length ? counted(lines.length, "row") : `${count(visible.length)} of ${counted(lines.length, "row")}`;
    heads.forEach((th, at) => {
      if (at === state.by) th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    });
    sortSelect.value = String(state.by);
    turn.textContent = state.down ? "↓" : "↑";
    turn.setAttribute("aria-label", state.down ? "Descending; turn around" : "Ascending; turn around");
  }

  function sortBy(at, down) {
    state.down = down;
    state.by = at;
    arrange();
  }
  heads.forEach((th, at) => {
    const button = th.querySelector("button");
    if (button) button.addEventListener("click", () => sortBy(at, state.by === at ? !state.down : numeric[at]));
  });
  const sortSelect = element(
    "select",
    { onchange: () => sortBy(Number(sortSelect.value), numeric[Number(sortSelect.value)] || false) },
    element("option", { value: -1 }, "as it comes"),
    columns.map((c, at) => element("option", { value: at }, c.title)),
  );
  const turn = element("button", { type: "button", onclick: () => sortBy(state.by, !state.down) });

  const asCards = columns.length > 5 && options.cards !== false;
  const tools = [];
  if (options.chips) tools.push(chips(lines, options.chips, state, arrange));
  if (options.filter) {
    const field = element("input", { type: "search", placeholder: "any text", oninput: () => search() });
    const search = () => {
      state.words = field.value.trim().toLowerCase();
      arrange();
    };
    tools.push(element("label", {}, "Filter ", field));
  }
  if (asCards && !options.fixed) tools.push(element("span", { class: "narrow-sort" }, element("label", {}, "Sort by ", sortSelect), turn));
  if (options.filter || options.chips) tools.push(shownCount);
  tools.push(copyButton(all, () => lines.map((l) => l.row)));
  arrange();

  const made = element(
    "table",
    { role: "table", "aria-label": options.label, class: asCards ? "cards" : "plain" },
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, heads)),
    body,
  );
  const frame = element("div", { class: "table-frame", tabindex: 0, role: "region", "aria-label": options.label }, made);
  return element("div", { class: "table-block" }, element("div", { class: "tools" }, tools), frame);
}

/** What these columns say of a row, as names and values. */
const readings = (columns, row) => columns.map((c) => [c.title, c.text ? c.text(c.value(row)) : c.value(row)]);

/** A column of a field of the rows, under its own name in the CSV. */
const field = (title, key, text) => ({ title, csv: key, value: (row) => row[key], text: (value) => text(value) });

function head(c, isNumber, fixed) {
  const words = [c.title, c.unit ? element("span", { class: "unit" }, c.unit) : null];
  const attributes = { scope: "col", role: "columnheader", class: isNumber ? "number" : "" };
  if (fixed) return element("th", attributes, words);
  return element("th", attributes, element("button", { type: "button", title: "Sort by this column" }, words));
}

function cell(c, at, row, isNumber) {
  const value = c.value(row);
  const shown = c.show ? c.show(row) : c.text ? c.text(value, row) : value === null || value === undefined ? MISSING : String(value);
  const label = c.unit ? `${c.title}, ${c.unit}` : c.title;
  const attributes = { class: isNumber ? "number" : c.wide ? "wide" : "", "data-label": label };
  if (at === 0) return element("th", { ...attributes, scope: "row", role: "rowheader" }, shown);
  return element("td", { ...attributes, role: "cell" }, shown);
}

/** Missing values last, whichever way it goes. */
function compare(a, b, down) {
  const none = (x) => x === null || x === undefined || Number.isNaN(x);
  if (none(a) || none(b)) return none(a) - none(b);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return down ? -order : order;
}

/** One button for each value that rows have, to show only those. */
function chips(lines, { title, of }, state, arrange) {
  const counts = new Map();
  for (const { row } of lines) for (const word of of(row)) counts.set(word, (counts.get(word) || 0) + 1);
  const buttons = [[null, lines.length], ...counts].map(([word, many]) =>
    element(
      "button",
      { type: "button", class: "chip", "aria-pressed": word === null, onclick: () => choose(word) },
      word === null ? "all" : word,
      element("span", { class: "unit" }, count(many)),
    ),
  );
  const words = [null, ...counts.keys()];
  const choose = (word) => {
    state.chip = word;
    buttons.forEach((b, at) => b.setAttribute("aria-pressed", String(words[at] === word)));
    arrange();
  };
  return element("div", { class: "chips", role: "group", "aria-label": title }, buttons);
}

/** Rows as CSV: titles with their units, values as they are (seconds, bytes, shares). */
function csv(columns, rows) {
  const quoted = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const titles = columns.map((c) => quoted(c.csv || c.title));
  return [titles.join(","), ...rows.map((row) => columns.map((c) => quoted(c.value(row))).join(","))].join("\n") + "\n";
}

function copyButton(columns, rows) {
  const button = element("button", { type: "button", class: "copy", onclick: () => copy() }, "Copy as CSV");
  const say = (words) => {
    button.textContent = words;
    setTimeout(() => (button.textContent = "Copy as CSV"), 2000);
  };
  const copy = async () => {
    const text = csv(columns, rows());
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say(copyBySelection(text) ? "Copied" : "The browser forbids it");
    }
  };
  return button;
}

/** For browsers that keep the clipboard from pages on a disk. */
function copyBySelection(text) {
  const area = element("textarea", { "aria-hidden": "true", class: "aside" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
