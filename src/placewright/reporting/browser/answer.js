// The answer first: the figure, the baselines and the lower bound, and why.

const figureName = data.objective === "step" ? "step time" : "period";

// The method, and the part of it that found the plan.
function methodWords(method) {
  const part = method.found_by;
  return part && part !== method.name ? `${method.name} (${part})` : method.name;
}

function ratioWords(other, name) {
  const best = data.methods[data.answer];
  if (!other.fits) return [`does not fit: out of memory by ${bytes(other.overflow)}`, ""];
  if (!best.fits || !(best.value > 0)) return ["", ""];
  const ratio = other.value / best.value;
  if (Math.abs(ratio - 1) < 5e-4) return [`this plan is as fast as ${name}`, ""];
  if (ratio > 1)
    return [`this plan is ${short(Number(ratio.toPrecision(3)))}× faster`, "good"];
  return [`this plan is ${short(Number((1 / ratio).toPrecision(3)))}× slower`, "bad"];
}

const answer = {
  start() {
    const best = data.methods[data.answer],
      single = data.methods[data.single];
    by("title").textContent = `${data.model} on ${data.cluster}`;
    by("problem").textContent = [
      count(data.total, "op"),
      count(data.devices.length, "device"),
      `plan by ${methodWords(best)}`,
      data.discipline === "ready"
        ? "devices run whichever op is ready"
        : "devices run in the plan's order",
      ...(data.graph_name === data.model ? [] : [data.graph_name]),
    ].join(" · ");
    by("notes").replaceChildren(
      ...data.notes.map((text) => make("li", { text })),
      ...(data.interrupted
        ? [
            make("li", {
              text: "The search was interrupted: this is the best plan so far.",
            }),
          ]
        : []),
    );
    by("why").textContent = `Why: ${data.sentence}`;
    by("helps").hidden = !data.helps.length;
    by("helps").textContent = `What would help: ${data.helps.join("; ")}.`;
    by("figures").replaceChildren(
      best.fits
        ? this.card(figureName, seconds(best.value), this.fits(best))
        : this.card(figureName, "does not fit", this.fits(best), "bad"),
      this.baseline("best single device", single, data.single_device),
      this.default(),
      this.bound(best),
    );
    this.bars();
  },

  card(name, value, words, mood = "") {
    return make(
      "div",
      { class: "figure" },
      make("span", { text: name }),
      make("b", { text: value }),
      make("span", { text: words, class: mood }),
    );
  },

  fits(best) {
    if (!best.fits)
      return `out of memory by ${bytes(best.overflow)}; ${seconds(best.value)} if it did fit`;
    const other =
      data.objective === "step"
        ? `period ${seconds(best.period)}`
        : `step time ${seconds(best.step_time)}`;
    return `fits in memory · ${other}`;
  },

  baseline(what, method, name) {
    return this.card(`${what}: ${name}`, seconds(method.value), ...ratioWords(method, name));
  },

  default() {
    if (data.default === null)
      return this.card('Accelerate device_map="auto"', "–", "Accelerate cannot place this");
    const method = data.methods[data.default];
    return this.card(
      'Accelerate device_map="auto"',
      seconds(method.value),
      ...ratioWords(method, "Accelerate"),
    );
  },

  bound(best) {
    if (!best.fits) return this.card("lower bound", "–", "no plan that fits is known");
    if (!(best.bound > 0)) return this.card("lower bound", "none above 0", "");
    const words =
      best.gap <= 1e-9 ? "this plan is provably optimal" : `this plan is ${percent(best.gap)} above`;
    return this.card(
      `lower bound (${best.bound_name})`,
      seconds(best.bound),
      words,
      best.gap <= 1e-9 ? "good" : "",
    );
  },

  bars() {
    const best = data.methods[data.answer],
      colour = "var(--quiet)";
    const rows = [
      ...(best.fits ? [["lower bound", best.bound, "var(--good)", true]] : []),
      ["this plan", best.value, "var(--accent)", best.fits],
    ];
    if (data.default !== null && data.default !== data.answer)
      rows.push([
        "Accelerate",
        data.methods[data.default].value,
        colour,
        data.methods[data.default].fits,
      ]);
    if (data.single !== data.answer)
      rows.push([
        `${data.single_device} alone`,
        data.methods[data.single].value,
        colour,
        data.methods[data.single].fits,
      ]);
    const most = Math.max(...rows.map((row) => row[1]), 1e-30);
    by("bars").setAttribute(
      "aria-label",
      rows.map(([name, value]) => `${name} ${seconds(value)}`).join(", "),
    );
    by("bars").replaceChildren(
      ...rows.flatMap(([name, value, fill, fits]) => [
        make("span", { class: "name", text: name }),
        make("i", {
          style: { width: `${(value / most) * 100}%`, background: fill, opacity: fits ? 1 : 0.35 },
        }),
        make("span", { text: seconds(value) + (fits ? "" : ", does not fit") }),
      ]),
    );
  },
};
