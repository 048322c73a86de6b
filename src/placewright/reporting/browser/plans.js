// Two plans side by side: what moved, and what that changed.

const plans = {
  start() {
    const steps = data.methods
      .map((method, at) => [method, at])
      .filter(([method]) => method.plan !== null);
    const options = () =>
      steps.map(([method]) => make("option", { value: String(method.plan), text: method.name }));
    this.selects = [by("first-plan"), by("second-plan")];
    for (const each of this.selects) {
      each.replaceChildren(...options());
      each.addEventListener("change", () => this.refresh());
    }
    const best = data.methods[data.answer].plan;
    const other = [data.default, data.single, ...steps.map(([, at]) => at)].find(
      (at) => at !== null && at !== data.answer && data.methods[at].plan !== null,
    );
    this.selects[0].value = String(other === undefined ? best : data.methods[other].plan);
    this.selects[1].value = String(best);
    this.charts = this.selects.map((choice, at) => {
      const name = make("p", { class: "side" });
      const place = make(
        "div",
        {
          class: "chart",
          tabIndex: 0,
          role: "group",
          "aria-label": `Timeline of the ${at ? "second" : "first"} plan`,
        },
        make("canvas"),
      );
      by("plans-charts").append(name, place);
      const lanes = new Lanes(place, {
        compact: true,
        step: () => this.step(at),
        view: () => this.view,
        marked: (lane, slot) => this.marked(at, lane, slot),
      });
      const chart = {
        hover: (x, y) => lanes.hover(x, y),
        click: (x, y) => lanes.click(x, y),
        move: (x) => this.move(x, lanes),
        zoom: (f, x) => this.zoom(f, x, lanes),
        keys: {
          arrowleft: () => this.move(120, lanes),
          arrowright: () => this.move(-120, lanes),
          "+": () => this.zoom(1.5, undefined, lanes),
          "=": () => this.zoom(1.5, undefined, lanes),
          "-": () => this.zoom(1 / 1.5, undefined, lanes),
          0: () => this.fit(),
        },
      };
      steer(place, chart);
      return { name, lanes };
    });
    on("theme", () => this.ask());
    on("op", () => this.ask());
    this.refresh();
  },

  step(at) {
    return data.step(Number(this.selects[at].value));
  },
  ask() {
    for (const { lanes } of this.charts) lanes.surface.ask();
  },

  fit() {
    this.view = { from: 0, to: Math.max(1, this.step(0).length, this.step(1).length) };
    this.ask();
  },

  move(x, lanes) {
    const span = this.view.to - this.view.from,
      way = (x / (lanes.surface.width - GUTTER)) * span;
    const most = Math.max(1, this.step(0).length, this.step(1).length),
      from = Math.max(0, Math.min(most - span, this.view.from - way));
    this.view = { from, to: from + span };
    this.ask();
  },

  zoom(factor, x, lanes) {
    const most = Math.max(1, this.step(0).length, this.step(1).length),
      at = lanes.time(Math.max(GUTTER, x ?? (GUTTER + lanes.surface.width) / 2));
    const span = Math.min(most, Math.max(20, (this.view.to - this.view.from) / factor));
    const from = Math.max(
      0,
      Math.min(most - span, at - ((at - this.view.from) / (this.view.to - this.view.from)) * span),
    );
    this.view = { from, to: from + span };
    this.ask();
  },

  marked(at, lane, slot) {
    if (!this.running || lane.kind !== "device") return true;
    return this.moved.has(lane.what[slot]);
  },

  refresh() {
    const [one, other] = [this.step(0), this.step(1)];
    this.moved = new Set();
    for (let op = 0; op < data.total; op++)
      if (one.device[op] !== other.device[op]) this.moved.add(op);
    this.running = [...this.moved].filter((op) => data.turn(op)).length;
    this.words(one, other);
    this.figures(one, other);
    this.ways(one, other);
    this.charts.forEach(({ name, lanes }, at) => {
      const step = this.step(at);
      const over = step.method.fits ? "" : `, out of memory by ${bytes(step.method.overflow)}`;
      const time = seconds(step.method.step_time);
      name.textContent = `${at ? "Second" : "First"}: ${step.method.name}, ${time}${over}`;
      lanes.refresh();
    });
    this.fit();
  },

  words(one, other) {
    const first = one.method,
      second = other.method;
    const run = this.running ? grouped(this.running) : "none",
      take = this.running === 1 ? "takes" : "take",
      moved = `${count(this.moved.size, "op")} of ${grouped(data.total)} are on another device`;
    const parts = [
      this.moved.size
        ? `${moved}, ${run} of them ${take} time`
        : "Every op is on the same device in both",
    ];
    const ranks = one.plan.priority,
      others = other.plan.priority;
    if (ranks && others) {
      const changed = ranks.filter((rank, op) => rank !== others[op]).length;
      if (changed) parts.push(`${count(changed, "op")} stand elsewhere in the order`);
    } else if (ranks || others)
      parts.push(`the ${ranks ? "first" : "second"} alone sets an order of its own`);
    data.devices.forEach((device, at) => {
      const before = one.plan.staging?.[at] ?? -1,
        after = other.plan.staging?.[at] ?? -1,
        room = (size) => (size < 0 ? "none" : bytes(size));
      if (before !== after)
        parts.push(`staging buffer on ${device.name}: ${room(before)}, then ${room(after)}`);
    });
    const change = first.value > 0 ? second.value / first.value - 1 : 0;
    parts.push(
      Math.abs(change) < 5e-4
        ? `the ${figureName} is the same`
        : `the second takes ${percent(Math.abs(change))} ${change < 0 ? "less" : "more"} time`,
    );
    by("plans-words").textContent =
      `${parts.join("; ")}.${this.running ? " In the charts, ops that moved are coloured." : ""}`;
  },

  figures(one, other) {
    const rows = [
      ["step time", one.method.step_time, other.method.step_time, seconds],
      ["period", one.method.period, other.method.period, seconds],
      ["tensors sent per step", one.plan.sent, other.plan.sent, bytes],
      ["weights streamed per step", one.plan.streamed, other.plan.streamed, bytes],
      ["out of memory by", one.method.overflow, other.method.overflow, bytes],
    ];
    data.devices.forEach((device, at) => {
      const [first, second] = [one.method.devices[at], other.method.devices[at]];
      if (!(first[0] || second[0])) return;
      rows.push(
        [`ops on ${device.name}`, first[0], second[0], grouped],
        [`${device.name} busy`, first[1], second[1], seconds],
        [`${device.name} peak memory`, first[2], second[2], bytes],
      );
    });
    const signed = (value, text, least) =>
      Math.abs(value) <= least ? "–" : `${value > 0 ? "+" : "−"}${text(Math.abs(value))}`;
    by("plans-figures").replaceChildren(
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          ...["", "first", "second", "change"].map((text) => make("th", { text, scope: "col" })),
        ),
      ),
      make(
        "tbody",
        {},
        ...rows.map(([name, before, after, text]) =>
          make(
            "tr",
            {},
            make("td", { text: name, title: name }),
            make("td", { text: text(before) }),
            make("td", { text: text(after) }),
            make("td", { text: signed(after - before, text, 1e-9 * Math.max(before, after)) }),
          ),
        ),
      ),
    );
  },

  ways(one, other) {
    const ways = new Map(),
      modules = new Map();
    for (const op of this.moved) {
      const way = `${data.devices[one.device[op]].name} → ${data.devices[other.device[op]].name}`,
        module = data.module(op) || "(no module)";
      const times = opTimes(other, op),
        took = times ? times[1] - times[0] : 0;
      for (const [map, name] of [
        [ways, way],
        [modules, module],
      ]) {
        const found = map.get(name) ?? [0, 0, op];
        map.set(name, [found[0] + 1, found[1] + took, found[2]]);
      }
    }
    const table = (id, what, map, link) => {
      const rows = [...map].sort((a, b) => b[1][0] - a[1][0]),
        few = rows.slice(0, 12);
      const body = few.map(([name, [many, took, op]]) =>
        make(
          "tr",
          {},
          make(
            "td",
            { title: name },
            link
              ? make("button", {
                  type: "button",
                  text: ending(name, 44),
                  on: { click: () => select(op) },
                })
              : name,
          ),
          make("td", { text: grouped(many) }),
          make("td", { text: ticks(took) }),
        ),
      );
      if (rows.length > few.length)
        body.push(
          make(
            "tr",
            {},
            make("td", { text: `and ${grouped(rows.length - few.length)} more`, colSpan: 3 }),
          ),
        );
      by(id).hidden = !rows.length;
      by(id).replaceChildren(
        make(
          "thead",
          {},
          make(
            "tr",
            {},
            ...[what, "ops moved", "time there"].map((text) => make("th", { text, scope: "col" })),
          ),
        ),
        make("tbody", {}, ...body),
      );
    };
    table("plans-ways", "from → to", ways, false);
    table("plans-modules", "module", modules, true);
  },
};
