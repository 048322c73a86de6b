// The table of ops, of which only the rows in sight exist, and all about the op that is chosen.

const ROW = 26;

const OP_COLUMNS = [
  ["op", (op) => data.name(op)],
  ["module", (op) => data.module(op)],
  ["kind", (op) => data.kind(op)],
  ["device", (op) => data.devices[shown().device[op]].name],
  ["start", (op) => opTimes(shown(), op)?.[0] ?? -1, (v) => (v < 0 ? "–" : ticks(v))],
  [
    "duration",
    (op) => {
      const t = opTimes(shown(), op);
      return t ? t[1] - t[0] : -1;
    },
    (v) => (v < 0 ? "–" : ticks(v)),
  ],
  [
    "wait",
    (op) => (opTimes(shown(), op) ? idleBefore(shown(), op) : -1),
    (v) => (v < 0 ? "–" : ticks(v)),
  ],
  ["outputs", (op) => data.size(op), bytes],
];

const DURATION = OP_COLUMNS.findIndex(([name]) => name === "duration");

const ops = {
  start() {
    this.place = by("op-table");
    this.by = DURATION;
    this.down = true;
    this.words = data.ops.names.map((name, op) =>
      `${name}\n${data.module(op)}\n${data.kind(op)}`.toLowerCase(),
    );
    this.body = make("div", { role: "rowgroup", style: { position: "relative" } });
    this.head = make("div", { class: "row head", role: "row" });
    this.place.append(this.head, this.body);
    this.place.addEventListener("scroll", () => this.draw());
    this.place.addEventListener("keydown", (event) => this.press(event));
    by("op-filter").addEventListener("input", () => this.refresh());
    by("stored-ops").addEventListener("change", () => this.refresh());
    by("op-csv").addEventListener("click", () => this.save());
    on("plan", () => this.refresh());
    on("op", () => this.reveal());
    this.refresh();
  },

  sort(at) {
    if (this.by === at && this.down) {
      this.by = -1;
      this.down = false;
    } else {
      this.down = this.by === at;
      this.by = at;
    }
    this.refresh();
    this.head.querySelectorAll("button")[at].focus();
  },

  refresh() {
    const words = by("op-filter").value.toLowerCase().trim(),
      step = shown(),
      stored = by("stored-ops").checked;
    const names = data.devices.map((device) => device.name.toLowerCase());
    this.order = [];
    let most = 0;
    for (let op = 0; op < data.total; op++) {
      if (!stored && step.opLane[op] < 0) continue;
      most++;
      if (!words || this.words[op].includes(words) || names[step.device[op]] === words)
        this.order.push(op);
    }
    if (this.by >= 0) {
      const value = OP_COLUMNS[this.by][1],
        way = this.down ? -1 : 1,
        keys = new Map(this.order.map((op) => [op, value(op)]));
      this.order.sort(
        (a, b) =>
          way * (keys.get(a) < keys.get(b) ? -1 : keys.get(a) > keys.get(b) ? 1 : 0) || a - b,
      );
    }
    this.spot = new Map(this.order.map((op, at) => [op, at]));
    this.head.replaceChildren(
      ...OP_COLUMNS.map(([name], at) =>
        make(
          "span",
          {
            role: "columnheader",
            "aria-sort": at !== this.by ? "none" : this.down ? "descending" : "ascending",
          },
          make("button", {
            type: "button",
            text: name + (at === this.by ? (this.down ? " ▼" : " ▲") : ""),
            on: { click: () => this.sort(at) },
          }),
        ),
      ),
    );
    this.body.style.height = `${this.order.length * ROW}px`;
    this.place.setAttribute("aria-rowcount", String(this.order.length + 1));
    by("op-count").textContent = words
      ? `${grouped(this.order.length)} of ${count(most, "op")}`
      : count(most, "op");
    this.draw();
  },

  draw() {
    const from = Math.max(0, Math.floor(this.place.scrollTop / ROW) - 4);
    const to = Math.min(this.order.length, from + Math.ceil(this.place.clientHeight / ROW) + 8);
    this.body.replaceChildren(...this.order.slice(from, to).map((op, i) => this.row(op, from + i)));
  },

  row(op, at) {
    const cells = OP_COLUMNS.map(([, value, text], i) => {
      const shownText = text ? text(value(op)) : value(op);
      const cell = make("span", { role: "cell", text: shownText, title: i < 2 ? shownText : "" });
      if (i === 3)
        cell.prepend(
          make("i", {
            class: "dot",
            style: { background: data.devices[shown().device[op]].colour },
          }),
        );
      return cell;
    });
    return make(
      "div",
      {
        class: op === state.op ? "row chosen" : "row",
        role: "row",
        "aria-rowindex": String(at + 2),
        "aria-selected": String(op === state.op),
        style: { top: `${at * ROW}px` },
        on: { click: () => select(op) },
      },
      ...cells,
    );
  },

  // The ops of the table in its order, with seconds and bytes as plain numbers.
  csv() {
    const step = shown(),
      columns = ["op", "module", "kind", "phase", "device", "start_s", "duration_s", "wait_s"];
    const rows = this.order.map((op) => {
      const times = opTimes(step, op),
        exact = (value) => Number((value * data.tick).toPrecision(9));
      return [
        data.name(op),
        data.module(op),
        data.kind(op),
        data.phase(op),
        data.devices[step.device[op]].name,
        ...(times
          ? [exact(times[0]), exact(times[1] - times[0]), exact(idleBefore(step, op))]
          : ["", "", ""]),
        step.critical.has(op) ? 1 : 0,
        data.ops.flops[op],
        data.size(op),
      ];
    });
    return [[...columns, "critical", "flops", "output_bytes"], ...rows]
      .map((row) => row.map(csvField).join(","))
      .join("\r\n");
  },

  save() {
    const link = make("a", { download: "ops.csv" });
    link.href = URL.createObjectURL(new Blob([this.csv() + "\r\n"], { type: "text/csv" }));
    link.click();
    URL.revokeObjectURL(link.href);
  },

  press(event) {
    const way = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12 }[event.key];
    if (!way || event.target !== this.place || !this.order.length) return;
    event.preventDefault();
    const at = this.spot.get(state.op);
    select(
      this.order[at === undefined ? 0 : Math.max(0, Math.min(this.order.length - 1, at + way))],
    );
  },

  reveal() {
    if (state.op >= 0 && shown().opLane[state.op] < 0 && !by("stored-ops").checked) {
      by("stored-ops").checked = true;
      this.refresh();
    }
    const at = this.spot.get(state.op);
    if (at !== undefined) {
      const top = at * ROW,
        seen = this.place.scrollTop,
        high = this.place.clientHeight - ROW;
      if (top < seen || top + ROW > seen + high) this.place.scrollTop = top - high / 2;
    }
    this.draw();
  },
};

// Commas and quotes in names are data; so is what a spreadsheet would take for a formula.
function csvField(value) {
  const text =
    /^[=+@\t\r-]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const chosen = {
  start() {
    this.place = by("chosen");
    on("op", () => this.refresh());
    on("plan", () => this.refresh());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") select(-1);
    });
  },

  refresh() {
    const op = state.op,
      step = shown();
    this.place.hidden = op < 0;
    document.body.classList.toggle("docked", op >= 0);
    if (op < 0) return;
    const times = opTimes(step, op),
      facts = [
        ["kind", `${data.kind(op)}, ${data.phase(op)}`],
        ["module", data.module(op) || "–"],
        ["device", data.devices[step.device[op]].name],
      ];
    if (times) {
      facts.push(["time", `${ticks(times[1] - times[0])}, ${stretch(...times)}`]);
      facts.push(["start", waitWords(step, step.lanes[step.opLane[op]], step.opSlot[op])]);
      facts.push(["wait", ticks(idleBefore(step, op))]);
      if (step.critical.has(op)) facts.push(["path", "on the critical path"]);
    } else facts.push(["time", "exists before the step"]);
    if (step.plan.group && step.plan.group[op] !== op)
      facts.push(["fused with", data.name(step.plan.group[op])]);
    facts.push(["work", flops(data.ops.flops[op])], ["outputs", bytes(data.size(op))]);
    const readers = [
      ...data.readers.values.subarray(data.readers.first[op], data.readers.first[op + 1]),
    ];
    const list = make(
      "dl",
      {},
      ...facts.flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { text })]),
      ...this.others("reads", data.sources(op)),
      ...this.others("read by", [...new Set(readers)]),
    );
    const go = (text, id) =>
      make("button", {
        type: "button",
        text,
        on: { click: () => by(id).scrollIntoView({ block: "center" }) },
      });
    this.place.replaceChildren(
      make("button", {
        type: "button",
        class: "close",
        text: "×",
        "aria-label": "Close",
        on: { click: () => select(-1) },
      }),
      make("b", { text: data.name(op) }),
      list,
      go("Timeline", "timeline-chart"),
      " ",
      go("Graph", "graph-chart"),
      " ",
      go("Table", "op-table"),
    );
  },

  others(what, found) {
    if (!found.length) return [];
    const links = found.slice(0, 5).flatMap((op, at) => [
      ...(at ? [", "] : []),
      make("button", {
        type: "button",
        class: "link",
        text: ending(data.name(op), 48),
        on: { click: () => select(op) },
      }),
    ]);
    return [
      make("dt", { text: what }),
      make("dd", {}, ...links, ...(found.length > 5 ? [` and ${found.length - 5} more`] : [])),
    ];
  },
};
