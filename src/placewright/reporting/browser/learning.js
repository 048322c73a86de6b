// How a policy learned: sampled plans, the greedy plan and the best so far, next to the baselines.

const SHARES = { high: 110, top: 8, bottom: 22 };

const learning = {
  start() {
    if (!data.learning) return;
    by("learning").hidden = false;
    by("learning-link").hidden = false;
    on("theme", () => this.refresh());
    this.refresh();
  },

  // Columns of a row, as `reporting/learning_curve.py` writes them: plans, then these.
  lines: [
    [2, "mean of the plans it drew", "var(--quiet)", 1.2],
    [3, "greedy plan", "var(--staging)", 1.6],
    [1, "best so far", "var(--accent)", 2.6],
  ],
  shares: [
    [4, "entropy, of an even choice's", "var(--copies)"],
    [5, "plans that do not fit", "var(--bad)"],
  ],

  refresh() {
    const rows = data.learning.rows,
      last = Math.max(1, ...rows.map((row) => row[0])),
      rules = this.rules();
    const best = Math.min(...rows.map((row) => row[1] ?? Infinity));
    const all = [...rules.map((rule) => rule[1]), best].filter((value) => value > 0);
    const drawn = rows.flatMap((row) => [row[1], row[2]]).filter((value) => value > 0);
    const low = Math.min(...all) * 0.94,
      high = Math.max(Math.min(Math.max(...drawn, low), best * 3) * 1.04, low * 1.1);
    const { wide, left, right, top, bottom } = PLOT,
      inner = wide - left - right;
    const x = (v) => left + (inner * v) / last;
    const y = (v) => top + (PLOT.high - top - bottom) * (1 - (Math.min(v, high) - low) / (high - low));
    const svg = this.sheet(PLOT.high, top, bottom, `Learning curve of ${data.learning.recipe}`);
    search.axes(svg, x, y, { low, high, first: 1, last, logs: false, unit: 0 });
    search.drawRules(svg, rules, y, high, { thick: 1.4, apart: 13, letters: 11 });
    for (const [column, , colour, width] of this.lines)
      svg.append(this.path(rows, column, x, y, colour, width));
    const under = this.sheet(SHARES.high, SHARES.top, SHARES.bottom, "Entropy and plans that do not fit");
    const tall = SHARES.high - SHARES.top - SHARES.bottom,
      level = (v) => SHARES.top + tall * (1 - Math.min(Math.max(v, 0), 1));
    for (const share of [0, 0.5, 1])
      under.append(
        drawing("text", { x: left - 8, y: level(share) + 4, "text-anchor": "end", text: `${share * 100} %` }),
      );
    for (const [column, , colour] of this.shares)
      under.append(this.path(rows, column, x, level, colour, 1.6));
    by("learning-chart").replaceChildren(svg, under);
    by("learning-legend").replaceChildren(
      ...[...this.lines, ...this.shares].map(([, name, colour]) => key(colour, name, "rule")),
    );
  },

  // Every other method's figure, the bound and the best device alone.
  rules() {
    const others = data.methods.flatMap((method, at) =>
      at === data.single ||
      at === data.default ||
      !method.fits ||
      method.name === data.learning.recipe
        ? []
        : [[method.name, method.value, "var(--line)"]],
    );
    return [...search.rules(), ...others];
  },

  sheet(high, top, bottom, label) {
    const svg = drawing("svg", { viewBox: `0 0 ${PLOT.wide} ${high}`, role: "img", "aria-label": label });
    svg.append(
      drawing("rect", {
        x: PLOT.left,
        y: top,
        width: PLOT.wide - PLOT.left - PLOT.right,
        height: high - top - bottom,
        fill: "var(--faint)",
      }),
    );
    return svg;
  },

  // A line through the rows that have a number.
  path(rows, column, x, y, stroke, width) {
    let path = "";
    for (const row of rows) {
      if (row[column] === null) continue;
      path += `${path ? "L" : "M"}${x(row[0]).toFixed(1)} ${y(row[column]).toFixed(1)}`;
    }
    return drawing("path", { d: path, fill: "none", stroke, "stroke-width": width });
  },
};
