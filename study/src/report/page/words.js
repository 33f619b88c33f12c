// Elements, and numbers in words. Texts become text nodes, never markup.

const MISSING = "–";

/** An element with attributes and children; a text among the children stays a text. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== undefined && child !== null) made.append(child);
  return made;
}

/** An element of a drawing. */
function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

// Between a number and its unit, so that no line ends there.
const JOINED = "\u00a0";

const known = (value) => typeof value === "number" && Number.isFinite(value);
/** How far a measurement lies off its prediction; null where one of them is missing, or nothing was predicted. */
const offBy = (measured, predicted) => (known(measured) && predicted > 0 ? measured / predicted - 1 : null);

/** A number with so many significant digits, thousands grouped, none after the point that only fills up. */
function digits(value, significant = 4) {
  if (!known(value)) return MISSING;
  return value.toLocaleString("en-US", { maximumSignificantDigits: significant });
}

const count = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : MISSING);

/** "1 op", "2 ops". */
const counted = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

const TIMES = [[1e-9, "ns"], [1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"]];
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"].map((name, power) => [1024 ** power, name]);
const RATES = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"].map((name, power) => [1000 ** power, name]);

/** The largest unit in which a value is at least one; the first for nothing. Minutes and hours only where they read better. */
function unit(units, value) {
  let found = units[0];
  for (const one of units) {
    const least = one[1] === "min" ? 120 : one[1] === "h" ? 7200 : one[0];
    if (Math.abs(value) >= least) found = one;
  }
  return { size: found[0], name: found[1] };
}

function inUnits(units, value, significant) {
  if (!known(value)) return MISSING;
  if (value === 0) return `0${JOINED}${units === TIMES ? "s" : units[0][1]}`;
  const { size, name } = unit(units, value);
  return `${digits(value / size, significant)}${JOINED}${name}`;
}

const seconds = (value, significant = 4) => inUnits(TIMES, value, significant);
const nanoseconds = (value, significant = 4) => seconds(value / 1e9, significant);
const bytes = (value, significant = 4) => inUnits(SIZES, value, significant);
const rate = (value, significant = 4) => inUnits(RATES, value, significant);

/** A share: 0.0123 is "1.2 %". */
function percent(value, sign = false) {
  if (!known(value)) return MISSING;
  const shown = value * 100;
  const places = Math.abs(shown) >= 99.95 ? 0 : 1;
  const text = Math.abs(shown).toFixed(places);
  const zero = Number(text) === 0;
  return `${shown < 0 && !zero ? "−" : sign && !zero ? "+" : ""}${text}${JOINED}%`;
}

/** How a column of numbers is written: one unit for all, as many places as the largest needs for four digits. */
function column(units, values) {
  const all = values.filter(known).map(Math.abs);
  const largest = all.reduce((a, b) => Math.max(a, b), 0);
  const { size, name } = unit(units, largest || units[units === TIMES ? 2 : 0][0]);
  const whole = size === 1 && units === SIZES;
  const places = whole || largest === 0 ? 0 : Math.max(0, Math.min(4, 3 - Math.floor(Math.log10(largest / size))));
  const least = 10 ** -places;
  const text = (value) => {
    if (!known(value)) return MISSING;
    if (value === 0) return "0";
    const shown = value / size;
    if (Math.abs(shown) < least / 2) return `< ${least}`;
    return shown.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  };
  return { name, text };
}

/** A list in words: "a", "a and b", "a, b and c". */
function listed(words) {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const isDark = () => document.documentElement.dataset.theme === "dark";
