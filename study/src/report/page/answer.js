// The answer on top: what to use, what it costs, against the user's own setting and against keeping everything.

function aboutLine() {
  const { about } = report;
  const parts = [element("b", {}, about.network), about.data, `budget ${bytes(about.budget_bytes)}`, about.device].filter(Boolean);
  return element("p", { class: "about" }, parts.flatMap((part, at) => (at ? [" · ", part] : [part])));
}

function answer() {
  const { answer, about } = report;
  if (!answer) return schedule();
  const [chosen] = answer.settings;
  const yours = answer.settings.find((s) => s.what === "yours");
  const other = [yours, answer.settings.find((s) => s.what === "keeping everything")].find((s) => s && s !== chosen && known(s.epoch_seconds));
  const keep = answer.keep_your_settings;
  document.getElementById("sections").append(element("li", {}, element("a", { href: "#page" }, "Answer")));
  return element(
    "section",
    { id: "answer", class: "answer", "aria-label": "The answer" },
    aboutLine(),
    element("h1", {}, answer.headline.replace(/(\d) %/g, "$1\u00a0%")),
    element("p", { class: "lead" }, keep && !/keep your settings/i.test(answer.headline) ? [element("span", { class: "badge" }, "Keep your settings"), " "] : null, answer.why),
    warningsBox(about.warnings),
    facts([
      ["Batch", count(answer.batch), yours && yours.batch !== answer.batch ? `yours: ${count(yours.batch)}` : "samples of one iteration"],
      ["Learning rate", digits(answer.learning_rate), learningRateWords(answer)],
      chosen && ["Throughput", `${digits(chosen.samples_per_second ?? answer.batch / chosen.predicted_iteration_seconds)}/s`, throughputWords(chosen, other)],
      chosen && known(chosen.epoch_seconds) && ["Epoch", seconds(chosen.epoch_seconds), other && `${otherWords(other)}: ${seconds(other.epoch_seconds)}`],
      chosen && known(chosen.peak_bytes) && ["Peak of device memory", bytes(chosen.peak_bytes), `budget: ${bytes(about.budget_bytes)}`],
    ]),
    pairs([
      ["Placement", answer.placement],
      ["Learning rate", answer.learning_rate_rule],
      ["Caution", answer.learning_rate_caution && `The batch is ${answer.learning_rate_caution}.`],
    ]),
    element("h2", {}, about.modelled ? "What each setting gives, by the model" : "What each setting gives"),
    settings(answer.settings),
    answer.training.length ? [element("h2", { style: "margin-top:2rem" }, "The training that followed"), pairs(answer.training)] : null,
  );
}

function learningRateWords(answer) {
  if (answer.learning_rate_samples !== answer.batch) return `of an update of ${count(answer.learning_rate_samples)} samples`;
  return answer.warmup_iterations ? `reached after ${counted(answer.warmup_iterations, "iteration")}` : "from the first iteration on";
}

const otherWords = (other) => (other.what === "yours" ? "yours" : `${other.what} at batch ${count(other.batch)}`);

function throughputWords(chosen, other) {
  const how = report.about.modelled ? "modelled" : known(chosen.samples_per_second) ? "measured" : "predicted";
  const measured = `samples, ${how}`;
  const gain = other && chosen.samples_per_second / other.samples_per_second;
  if (!gain || !known(gain)) return measured;
  return Math.abs(gain - 1) < 0.005 ? `${measured}; as ${otherWords(other)}` : `${measured}; ${digits(gain, 3)} times ${otherWords(other)}`;
}

/** What each way to train gives; the first is what is chosen. */
function settings(all) {
  const off = (s) => offBy(s.iteration_seconds, s.predicted_iteration_seconds);
  const rows = [
    ["batch", (s) => (s.batch ? count(s.batch) : MISSING), (s) => s.batch || null],
    ["iteration, predicted", (s) => withError(s.predicted_iteration_seconds, s.predicted_error, "stated"), (s) => s.predicted_iteration_seconds],
    ["iteration, measured", (s) => withError(s.iteration_seconds, s.relative_error, "spread"), (s) => s.iteration_seconds],
    ["off by", (s) => percent(off(s), true), off],
    ["samples per second", (s) => digits(s.samples_per_second), (s) => s.samples_per_second],
    ["peak of device memory", (s) => bytes(s.peak_bytes), (s) => s.peak_bytes],
    ["epoch", (s) => seconds(s.epoch_seconds), (s) => s.epoch_seconds],
  ].filter(([, , value]) => all.some((s) => value(s) !== null && value(s) !== undefined));
  const columns = [
    { title: "", csv: "quantity", value: (row) => row[0] },
    ...all.map((s) => ({ title: s.what, value: (row) => row[2](s) })),
  ];
  const notes = all.filter((s) => s.note).map((s) => element("p", { class: "note" }, `${capital(s.what)}: ${s.note}.`));
  return sideBySide("Settings side by side", { heads: all.map((s) => s.what), things: all, rows, columns, notes, chosen: 0 });
}

/** On top where there was no tuning: what the schedule does. */
function schedule() {
  const { about, iteration, memory } = report;
  const [view, measured] = iteration.timelines;
  document.getElementById("sections").append(element("li", {}, element("a", { href: "#page" }, "Schedule")));
  const over = view && view.makespan_seconds / iteration.bound_seconds - 1;
  return element(
    "section",
    { id: "answer", class: "answer", "aria-label": "The schedule" },
    aboutLine(),
    element("h1", {}, `${about.network}, batch ${count(about.batch)}: ${view ? `an iteration takes ${seconds(view.makespan_seconds)}` : "one iteration"}`),
    warningsBox(about.warnings),
    facts([
      ["Batch", count(about.batch), "samples of one iteration"],
      view && ["Iteration", seconds(view.makespan_seconds), `${view.name}; ${percent(over)} above the lower bound`],
      measured && ["Measured", seconds(measured.makespan_seconds), `${percent(offBy(measured.makespan_seconds, view.makespan_seconds), true)} off the prediction`],
      ["Compute alone", seconds(iteration.compute_seconds), "what the ops take, were there no budget"],
      ["Device memory", bytes(memory.resident_bytes + memory.pool_bytes), `budget: ${bytes(memory.budget_bytes)}`],
      ["Host memory", bytes(memory.host_bytes), "for what is swapped"],
    ]),
    report.settings.length ? [element("h2", {}, "What each setting gives"), settings(report.settings)] : null,
  );
}
