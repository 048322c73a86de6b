// The timeline of the plan that is shown: moved, zoomed and searched by hand and by keys.

const timeline = {
  start() {
    this.place = by("timeline-chart");
    this.lanes = new Lanes(this.place, {
      step: shown,
      view: () => state,
      path: () => by("show-path").checked,
      every: () => by("all-lanes").checked,
    });
    steer(this.place, this);
    for (const button of document.querySelectorAll("#timeline [data-do]")) {
      const act = { in: "+", out: "-", left: "arrowleft", right: "arrowright", fit: "0" }[
        button.dataset.do
      ];
      button.addEventListener("click", () => this.keys[act]());
    }
    by("show-path").addEventListener("change", () => this.lanes.surface.ask());
    by("all-lanes").addEventListener("change", () => this.lanes.refresh());
    on("plan", () => this.refresh());
    for (const what of ["theme", "size"]) on(what, () => this.lanes.surface.ask());
    on("view", () => this.lanes.surface.ask());
    on("op", () => this.reveal());
    this.refresh();
  },

  refresh() {
    this.lanes.refresh();
    const many = this.lanes.left > 0 || by("all-lanes").checked;
    by("all-lanes").parentElement.hidden = !many;
    const step = shown(),
      streams = step.plan.streamed > 0;
    by("timeline-legend").replaceChildren(
      ...data.devices
        .filter((_, at) => step.lanes[at].size)
        .map((device) => key(device.colour, `ops on ${device.name}`)),
      ...(step.sends.tensor.length ? [key(data.colours.tensor, "transfer")] : []),
      ...(streams ? [key(data.colours.streamed, "streamed weight")] : []),
      key(ink.faint, "idle"),
      key(data.colours.critical, "critical path"),
      make("span", { text: "the figure beside a name is how much of the step it is busy" }),
    );
  },

  view(from, to) {
    const length = Math.max(1, shown().length),
      span = Math.min(length, Math.max(to - from, Math.min(length, 20)));
    state.from = Math.max(0, Math.min(from, length - span));
    state.to = state.from + span;
    tell("view");
  },

  move(x) {
    const way = (x / (this.lanes.surface.width - GUTTER)) * (state.to - state.from);
    this.view(state.from - way, state.to - way);
  },

  zoom(factor, x = GUTTER + (this.lanes.surface.width - GUTTER) / 2) {
    const at = this.lanes.time(Math.max(GUTTER, x));
    this.view(at - (at - state.from) / factor, at + (state.to - at) / factor);
  },

  hover(x, y) {
    return this.lanes.hover(x, y);
  },
  click(x, y) {
    this.lanes.click(x, y);
  },

  // Bring the chosen op into view, near enough to be seen.
  reveal() {
    const times = state.op >= 0 ? opTimes(shown(), state.op) : null;
    if (times) {
      const long = Math.max(times[1] - times[0], 1),
        span = state.to - state.from,
        lane = shown().lanes[shown().opLane[state.op]];
      if (!this.lanes.rows.some((row) => row.lane === lane)) {
        by("all-lanes").checked = true;
        this.refresh();
      }
      if (times[1] < state.from || times[0] > state.to || long / span < 0.004) {
        const wide = Math.min(span, Math.max(long * 60, 20)),
          middle = (times[0] + times[1]) / 2;
        this.view(middle - wide / 2, middle + wide / 2);
      }
    }
    this.lanes.surface.ask();
  },

  beside(way) {
    const step = shown(),
      at = state.op >= 0 ? step.opLane[state.op] : -1;
    const lane = at >= 0 ? step.lanes[at] : step.lanes.find((each) => each.size);
    if (!lane?.size) return;
    const slot =
      at >= 0 ? step.opSlot[state.op] + way : Math.min(above(lane.end, state.from), lane.size - 1);
    if (slot >= 0 && slot < lane.size) select(lane.what[slot]);
  },

  get keys() {
    return {
      arrowleft: () => this.move(120),
      arrowright: () => this.move(-120),
      "+": () => this.zoom(1.5),
      "=": () => this.zoom(1.5),
      "-": () => this.zoom(1 / 1.5),
      0: () => this.view(0, shown().length),
      home: () => this.view(0, shown().length),
      n: () => this.beside(1),
      p: () => this.beside(-1),
    };
  },
};
