// The graph: ops in the boxes of their modules, coloured by device; `reporting/layout.py` says where.

const ALL_OPEN = 2000,
  FIRST_LOOK = 300,
  OP_HIGH = 10,
  STORED_HIGH = 7;

const graph = {
  ...painting,
  start() {
    const layout = data.graph,
      boxes = layout.boxes.length;
    const inside = [],
      held = [];
    layout.parent.forEach((around, box) => {
      if (around >= 0) inside.push(around, box);
    });
    layout.home.forEach((box, op) => held.push(box, op));
    this.boxes = listed(boxes, inside);
    this.ops = listed(boxes, held);
    this.open = new Uint8Array(boxes);
    this.place = by("graph-chart");
    this.surface = new Surface(this.place.querySelector("canvas"), (...all) => this.draw(...all));
    this.surface.canvas.style.height = `${this.size()}px`;
    steer(this.place, this);
    for (const button of document.querySelectorAll("#graph [data-do]")) {
      const act = { in: "+", out: "-", fit: "0", open: "o", fold: "f" }[button.dataset.do];
      button.addEventListener("click", () => this.keys[act]());
    }
    on("plan", () => this.refresh());
    on("theme", () => this.surface.ask());
    on("op", () => this.reveal());
    this.firstLook();
    this.refresh();
  },

  // All boxes of a small graph, else from the outside in until there is enough to look at.
  firstLook() {
    this.open.fill(data.total <= ALL_OPEN ? 1 : 0);
    this.open[0] = 1;
    let seen = this.items(0),
      front = this.inner(0);
    while (data.total > ALL_OPEN && front.length) {
      const more = front.reduce((sum, box) => sum + this.items(box), 0);
      if (seen + more > FIRST_LOOK) break;
      seen += more;
      for (const box of front) this.open[box] = 1;
      front = front.flatMap((box) => this.inner(box));
    }
    this.fitted = false;
  },

  items(box) {
    return (
      this.boxes.first[box + 1] -
      this.boxes.first[box] +
      this.ops.first[box + 1] -
      this.ops.first[box]
    );
  },
  inner(box) {
    return [...this.boxes.values.subarray(this.boxes.first[box], this.boxes.first[box + 1])];
  },
  own(box) {
    return this.ops.values.subarray(this.ops.first[box], this.ops.first[box + 1]);
  },
  high(op) {
    return data.graph.wide[op] < 20 ? STORED_HIGH : OP_HIGH;
  },

  refresh() {
    const { home, parent } = data.graph,
      devices = data.devices.length,
      step = shown();
    this.share = new Float64Array(parent.length * devices); // ops of each box on each device
    this.count = new Int32Array(parent.length);
    home.forEach((box, op) => {
      this.share[box * devices + step.device[op]]++;
      this.count[box]++;
    });
    for (let box = parent.length - 1; box > 0; box--) {
      for (let at = 0; at < devices; at++)
        this.share[parent[box] * devices + at] += this.share[box * devices + at];
      this.count[parent[box]] += this.count[box];
    }
    const total = data.devices.map((_, at) => this.share[at]);
    by("graph-legend").replaceChildren(
      ...data.devices.flatMap((device, at) =>
        total[at] ? [key(device.colour, `${device.name}: ${count(total[at], "op")}`)] : [],
      ),
      key(data.colours.critical, "critical path", "rule"),
      make("span", { text: "small boxes: weights and inputs" }),
    );
    this.surface.ask();
  },

  fit(box = 0) {
    const [x, y, wide, high] = data.graph.boxes[box],
      { width, height } = this.surface;
    this.scale = Math.min((width - 24) / wide, (height - 24) / high, box ? 12 : 6);
    this.left = x - (width / this.scale - wide) / 2;
    this.top = y - (height / this.scale - high) / 2;
    this.fitted = true;
    this.surface.ask();
  },

  // As high as the whole needs, within what a screen shows.
  size() {
    const [, , wide, high] = data.graph.boxes[0],
      most = Math.max(300, Math.min(620, innerHeight * 0.72));
    return Math.round(Math.min(most, Math.max(380, (this.place.clientWidth * high) / wide + 24)));
  },

  // The op at a point, or the innermost box there.
  at(px, py) {
    const x = px / this.scale + this.left,
      y = py / this.scale + this.top;
    const holds = ([left, top, wide, high]) =>
      x >= left && x < left + wide && y >= top && y < top + high;
    let box = 0;
    if (!holds(data.graph.boxes[0])) return null;
    for (;;) {
      if (!this.open[box]) return { box, name: true };
      const op = [...this.own(box)].find((each) => holds(this.rect(each)));
      if (op !== undefined) return { box, op };
      const inner = this.inner(box).find((each) => holds(data.graph.boxes[each]));
      if (inner === undefined) return { box, name: y < data.graph.boxes[box][1] + this.title(box) };
      box = inner;
    }
  },

  hover(x, y) {
    const found = this.at(x, y);
    if (!found || (found.op === undefined && !found.box)) return null;
    if (found.op !== undefined) return opWords(shown(), found.op);
    const devices = data.devices.length;
    const parts = data.devices
      .map((device, at) => [this.share[found.box * devices + at], device.name])
      .filter(([many]) => many);
    return [
      data.graph.names[found.box],
      count(this.count[found.box], "op"),
      ...parts.map(([many, name]) => `${grouped(many)} on ${name}`),
      ...(found.name ? [this.open[found.box] ? "click to fold" : "click to open"] : []),
    ];
  },

  click(x, y) {
    const found = this.at(x, y);
    if (!found) return;
    if (found.op !== undefined) select(found.op);
    else if (found.box && found.name) this.turn(found.box);
  },

  turn(box) {
    this.open[box] = this.open[box] ? 0 : 1;
    const wide = data.graph.boxes[box][2] * this.scale;
    if (this.open[box] && wide < this.surface.width * 0.5) this.fit(box);
    this.surface.ask();
  },

  reveal() {
    if (state.op >= 0) {
      for (let box = data.graph.home[state.op]; box >= 0; box = data.graph.parent[box])
        this.open[box] = 1;
      const [x, y, wide, high] = this.rect(state.op);
      if (this.view && (!this.seen([x, y, wide, high]) || wide * this.scale < 12)) {
        this.scale = Math.max(this.scale, 1.6);
        this.left = x + wide / 2 - this.surface.width / this.scale / 2;
        this.top = y + high / 2 - this.surface.height / this.scale / 2;
      }
    }
    this.surface.ask();
  },

  move(x, y) {
    this.left -= x / this.scale;
    this.top -= y / this.scale;
    this.surface.ask();
  },

  zoom(factor, x = this.surface.width / 2, y = this.surface.height / 2) {
    const scale = Math.max(0.01, Math.min(20, this.scale * factor));
    this.left += x / this.scale - x / scale;
    this.top += y / this.scale - y / scale;
    this.scale = scale;
    this.surface.ask();
  },

  get keys() {
    const beside = (way) => {
      const op = state.op + way;
      if (op >= 0 && op < data.total) select(op);
    };
    return {
      arrowleft: () => this.move(60, 0),
      arrowright: () => this.move(-60, 0),
      arrowup: () => this.move(0, 60),
      arrowdown: () => this.move(0, -60),
      "+": () => this.zoom(1.4),
      "=": () => this.zoom(1.4),
      "-": () => this.zoom(1 / 1.4),
      0: () => this.fit(),
      home: () => this.fit(),
      n: () => beside(1),
      p: () => beside(-1),
      enter: () => {
        if (state.op >= 0 && data.graph.home[state.op]) this.turn(data.graph.home[state.op]);
      },
      o: () => {
        this.open.fill(1);
        this.surface.ask();
      },
      f: () => {
        this.firstLook();
        this.surface.ask();
      },
    };
  },
};
