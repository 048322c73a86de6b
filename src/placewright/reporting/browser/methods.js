// The table of methods: sorted by any column; a method whose step is in the page can be looked at.

const fullest = (method) =>
  Math.max(
    ...method.devices.map(([, , peak, limit]) =>
      limit > 0 ? peak / limit : peak > 0 ? Infinity : 0,
    ),
  );

const COLUMNS = [
  ["method", (m) => m.name, (m) => m.name],
  ["step time", (m) => m.step_time, (m) => seconds(m.step_time)],
  ["period", (m) => m.period, (m) => seconds(m.period)],
  ["gap", (m) => m.gap ?? Infinity, (m) => percent(m.gap)],
  ["fits", (m) => m.overflow, (m) => (m.fits ? "yes" : `no, out of memory by ${bytes(m.overflow)}`)],
  ["memory", fullest, (m) => percent(fullest(m))],
  ["evaluations", (m) => m.evaluations, (m) => grouped(m.evaluations)],
  ["seconds", (m) => m.seconds, (m) => m.seconds.toFixed(2)],
];

const methods = {
  start() {
    this.by = -1; // the best first: what fits before what does not
    this.down = false;
    on("plan", () => this.refresh());
    this.refresh();
    by("skipped").replaceChildren(
      ...data.skipped.map(([name, reason]) => make("li", { text: `${name} skipped: ${reason}` })),
    );
  },

  sort(at) {
    this.down = this.by === at && !this.down;
    this.by = at;
    this.refresh();
    by("method-table").querySelectorAll("th button")[at].focus();
  },

  refresh() {
    const ranked = (m) => [m.overflow, m.value],
      value = this.by < 0 ? null : COLUMNS[this.by][1],
      way = this.down ? -1 : 1;
    const order = data.methods
      .map((_, at) => at)
      .sort((a, b) => {
        if (!value) {
          const [one, other] = [ranked(data.methods[a]), ranked(data.methods[b])];
          return one[0] - other[0] || one[1] - other[1] || a - b;
        }
        const one = value(data.methods[a]),
          other = value(data.methods[b]);
        return way * (one < other ? -1 : one > other ? 1 : 0) || a - b;
      });
    const head = make(
      "tr",
      {},
      ...COLUMNS.map(([name], at) =>
        make(
          "th",
          {
            scope: "col",
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
    by("method-table").replaceChildren(
      make("thead", {}, head),
      make("tbody", {}, ...order.map((at) => this.row(at))),
    );
  },

  row(at) {
    const method = data.methods[at],
      words = at === data.answer ? " ★" : "";
    const name = methodWords(method) + words;
    const cell =
      method.plan === null
        ? make("td", { text: name, title: "its step is not in the page, to keep the page small" })
        : make(
            "td",
            {},
            make("button", {
              type: "button",
              text: name,
              on: { click: () => showPlan(method.plan) },
            }),
          );
    const marks = [at === data.answer ? "best" : "", method.plan === state.plan ? "shown" : ""]
      .filter(Boolean)
      .join(" ");
    return make(
      "tr",
      { class: marks },
      cell,
      ...COLUMNS.slice(1).map(([, , text], i) =>
        make("td", { text: text(method), class: i === 3 && !method.fits ? "bad" : "" }),
      ),
    );
  },
};
