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
  if (ratio > 1) return [`this plan is ${short(Number(ratio.toPrecision(3)))}× faster`, "good"];
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
      ...(data.graph_name === data.model ? [] : [data.graph_name]),
    ].join(" · ");
    this.facts(best);
    this.command();
    by("notes").replaceChildren(
      ...[...data.lead, ...data.notes].map((text) => make("li", { text })),
      ...(data.interrupted
        ? [
            make("li", {
              text: "The search was interrupted: this is the best plan so far.",
            }),
          ]
        : []),
    );
    by("lines").replaceChildren(...data.lines.map((text) => make("p", { text })));
    by("why").textContent = `Why: ${data.sentence}`;
    by("helps").hidden = !data.helps.length;
    by("helps")
      .querySelector("ul")
      .replaceChildren(...data.helps.map((text) => make("li", { text })));
    by("figures").replaceChildren(
      best.fits
        ? this.card(figureName, seconds(best.value), this.fits(best))
        : this.card(figureName, "does not fit", this.fits(best), "bad"),
      this.baseline("best single device", single, data.single_device),
      this.default(),
      this.bound(best),
    );
    this.cluster();
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

  // What makes the problem what it is.
  facts(best) {
    const limits = Object.entries(data.limits).map(([name, size]) => `${name} ${bytes(size)}`);
    const facts = [
      ["memory limits", limits.length ? limits.join(", ") : "the devices' own"],
      ...(data.constraints.length ? [["constraints", data.constraints.join("; ")]] : []),
      ["objective", data.objective === "step" ? "time of one step" : "period of pipelined steps"],
      ["order of ops", data.discipline === "ready" ? "whichever op is ready" : "the plan's order"],
      ["op times", data.costs],
      ["method", best.name],
      ["seed", String(best.seed)],
      ["made", data.date],
    ];
    by("facts").replaceChildren(
      ...facts.map(([name, text]) =>
        make("div", {}, make("dt", { text: name }), make("dd", { text })),
      ),
    );
  },

  command() {
    const place = by("command"),
      code = place.querySelector("code"),
      button = place.querySelector("button");
    place.hidden = data.command === null;
    if (data.command === null) return;
    code.textContent = data.command;
    button.addEventListener("click", async () => {
      getSelection().selectAllChildren(code);
      try {
        await navigator.clipboard.writeText(data.command);
      } catch {
        document.execCommand("copy"); // a page in a frame may not use the clipboard by itself
      }
      button.textContent = "Copied";
    });
  },

  cluster() {
    const rate = (device, dtype) => {
      const value = device.rates[dtype];
      return value ? `${short(value / 1e12)} T` : "–";
    };
    const limits = data.limits;
    const columns = [
      ["device", (device) => device.name],
      ["model", (device) => device.model || device.kind],
      ["memory", (device) => (device.memory === null ? "no limit" : bytes(device.memory))],
      ["limit", (device) => (device.name in limits ? bytes(limits[device.name]) : "–")],
      ["usable", (device) => (device.usable === null ? "no limit" : bytes(device.usable))],
      ["float32 FLOP/s", (device) => rate(device, "float32")],
      ["float16 FLOP/s", (device) => rate(device, "float16")],
      ["GB/s", (device) => (device.bandwidth ? short(device.bandwidth / 1e9) : "–")],
    ];
    const few = data.devices.slice(0, 16);
    by("device-table").replaceChildren(
      make(
        "thead",
        {},
        make("tr", {}, ...columns.map(([text]) => make("th", { scope: "col", text }))),
      ),
      make(
        "tbody",
        {},
        ...few.map((device) => {
          const row = make(
            "tr",
            {},
            ...columns.map(([, text]) => make("td", { text: text(device) })),
          );
          row.firstChild.prepend(make("i", { class: "dot", style: { background: device.colour } }));
          return row;
        }),
      ),
    );
    const links = data.links.map((link) => {
      const more = link.count > 1 ? ` and ${count(link.count - 1, "link")} like it` : "";
      const width = link.bandwidth === null ? "no limit" : `${short(link.bandwidth / 1e9)} GB/s`;
      return `${link.source}→${link.target}${more}: ${width}, ${seconds(link.latency)}`;
    });
    const others = data.devices.length - few.length;
    by("links").textContent = [
      ...(others > 0 ? [`and ${count(others, "device")} more`] : []),
      ...(links.length ? [`Links: ${links.join("; ")}.`] : []),
    ].join(" ");
  },
};
