// How the search went: the best figure so far by evaluations or by time, with baselines and bound.

const PLOT = { wide: 1160, high: 300, left: 78, right: 150, top: 14, bottom: 38 };

const search = {
  start() {
    for (const choice of document.querySelectorAll("[name=search-by]"))
      choice.addEventListener("change", () => this.refresh());
    on("theme", () => this.refresh());
    on("plan", () => this.refresh());
    this.refresh();
  },

  // The rules across the chart: name, seconds, colour.
  rules() {
    const best = data.methods[data.answer],
      rules = [];
    if (best.bound > 0) rules.push(["lower bound", best.bound, "var(--good)"]);
    if (data.default !== null)
      rules.push(["Accelerate", data.methods[data.default].value, "var(--staging)"]);
    rules.push([`${data.single_device} alone`, data.methods[data.single].value, "var(--quiet)"]);
    return rules;
  },

  refresh() {
    const unit = Number(document.querySelector("[name=search-by]:checked").value);
    const lines = data.methods
      .map((method, at) => ({ method, at, points: this.points(method, unit) }))
      .filter((each) => each.points.length);
    const rules = this.rules(),
      best = data.methods[data.answer].value;
    const all = [
      ...rules.map((rule) => rule[1]),
      ...lines.flatMap((line) => line.points.map((point) => point[1])),
    ].filter((value) => value > 0);
    if (!all.length) all.push(data.tick); // a step that takes no time
    const low = Math.min(...all) * 0.94,
      high = Math.max(Math.min(Math.max(...all), best * 4) * 1.06, low * 1.1);
    const last = Math.max(
      ...lines.flatMap((line) => line.points.map((point) => point[0])),
      unit ? 1e-3 : 1,
    );
    const first = unit
      ? Math.min(
          ...lines.flatMap((line) => line.points.map((point) => point[0])).filter((v) => v > 0),
          last / 10,
        )
      : 1;
    const logs = last / first > 20;
    const { wide, left, right, top, bottom } = PLOT,
      inner = wide - left - right,
      tall = PLOT.high - top - bottom;
    const x = (v) =>
      left +
      inner * (logs ? Math.log(Math.max(v, first) / first) / Math.log(last / first) : v / last);
    const y = (v) => top + tall * (1 - (Math.min(v, high) - low) / (high - low));
    const svg = drawing("svg", {
      viewBox: `0 0 ${wide} ${PLOT.high}`,
      role: "img",
      "aria-label": `Best ${figureName} so far, ${seconds(best)} at the end`,
    });
    svg.append(
      drawing("rect", { x: left, y: top, width: inner, height: tall, fill: "var(--faint)" }),
    );
    this.axes(svg, x, y, { low, high, first, last, logs, unit });
    this.drawRules(svg, rules, y, high, { thick: 1.6, apart: 14, letters: 14 });
    const rest = lines.filter((line) => line.at !== data.answer),
      main = lines.filter((line) => line.at === data.answer);
    for (const line of [...rest, ...main])
      svg.append(...this.line(line, x, y, high, line.at === data.answer));
    by("search-chart").replaceChildren(svg);
    by("search-legend").replaceChildren(
      key("var(--accent)", `${data.methods[data.answer].name}, the answer`, "rule"),
      ...(rest.length ? [key("var(--quiet)", "other methods: point at one", "rule")] : []),
      make("span", { text: "a plan that fits replaces a faster one that does not" }),
    );
  },

  // Lines across a chart, each with its name and seconds beside it, none over another.
  drawRules(svg, rules, y, high, { thick, apart, letters }) {
    let under = -20;
    const sorted = rules.map((rule) => [...rule, y(rule[1])]).sort((a, b) => a[3] - b[3]);
    for (const [name, value, colour, at] of sorted) {
      const text = Math.max(at, under + apart);
      under = text;
      svg.append(
        drawing("line", {
          x1: PLOT.left,
          x2: PLOT.wide - PLOT.right,
          y1: at,
          y2: at,
          stroke: colour,
          "stroke-width": thick,
          "stroke-dasharray": "6 4",
        }),
        drawing("text", {
          x: PLOT.wide - PLOT.right + 6,
          y: text + 4,
          text: `${value > high ? "↑ " : ""}${ending(name, letters)} ${seconds(value)}`,
        }),
      );
    }
  },

  points(method, unit) {
    const points = method.history.map((each) => [each[unit], each[2]]);
    if (points.length)
      points.push([unit ? method.seconds : method.evaluations, points[points.length - 1][1]]);
    return points;
  },

  axes(svg, x, y, { low, high, first, last, logs, unit }) {
    const gap = axisSteps(high - low, 5);
    for (let v = Math.ceil(low / gap) * gap; v < high; v += gap) {
      svg.append(
        drawing("line", {
          x1: PLOT.left,
          x2: PLOT.wide - PLOT.right,
          y1: y(v),
          y2: y(v),
          stroke: "var(--line)",
        }),
        drawing("text", {
          x: PLOT.left - 8,
          y: y(v) + 4,
          "text-anchor": "end",
          text: seconds(Number(v.toPrecision(12))),
        }),
      );
    }
    const marks = [];
    if (logs)
      for (let v = 10 ** Math.ceil(Math.log10(first)); v <= last * 1.001; v *= 10) marks.push(v);
    else for (let step = axisSteps(last, 8), v = 0; v <= last * 1.001; v += step) marks.push(v);
    for (const v of marks) {
      svg.append(
        drawing("text", {
          x: x(v),
          y: PLOT.high - 20,
          "text-anchor": "middle",
          text: unit ? seconds(Number(v.toPrecision(12))) : grouped(Math.round(v)),
        }),
      );
    }
    svg.append(
      drawing("text", {
        x: (PLOT.left + PLOT.wide - PLOT.right) / 2,
        y: PLOT.high - 3,
        "text-anchor": "middle",
        text: (unit ? "time" : "evaluations") + (logs ? ", logarithmic" : ""),
      }),
    );
  },

  line({ method, points }, x, y, high, main) {
    let path = "";
    points.forEach(([at, value], i) => {
      path += i
        ? `H${x(at).toFixed(1)}V${y(value).toFixed(1)}`
        : `M${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    });
    const colour = main ? "var(--accent)" : "var(--quiet)",
      spent = `${count(method.evaluations, "plan")} and ${seconds(method.seconds)}`,
      title = `${method.name}: ${seconds(method.value)} after ${spent}`;
    const made = [
      drawing("path", {
        d: path,
        fill: "none",
        stroke: colour,
        "stroke-width": main ? 2.6 : 1.3,
        "stroke-opacity": main ? 1 : 0.7,
      }),
    ];
    made.push(
      ...points
        .slice(0, -1)
        .map(([at, value]) =>
          drawing("circle", { cx: x(at), cy: y(value), r: main ? 3.4 : 2.4, fill: colour }),
        ),
    );
    const wide = drawing("path", {
      d: path,
      fill: "none",
      stroke: "#000",
      "stroke-opacity": 0,
      "stroke-width": 10,
      "pointer-events": "stroke",
    });
    wide.addEventListener("pointermove", (event) =>
      tip(event, [title, ...(value_over(points, high) ? ["higher than the chart at first"] : [])]),
    );
    wide.addEventListener("pointerleave", (event) => tip(event, null));
    return [...made, wide];
  },
};

function value_over(points, high) {
  return points.some((point) => point[1] > high);
}
