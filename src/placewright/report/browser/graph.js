// The graph: ops in the boxes of their modules, coloured by device; where things are comes from Python.

const ALL_OPEN = 2000, FIRST_LOOK = 300, OP_HIGH = 10, STORED_HIGH = 7;

const graph = {
  start() {
    const layout = data.graph, boxes = layout.boxes.length;
    const inside = [], held = [];
    layout.parent.forEach((around, box) => { if (around >= 0) inside.push(around, box); });
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
    let seen = this.items(0), front = this.inner(0);
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
    return this.boxes.first[box + 1] - this.boxes.first[box] + this.ops.first[box + 1] - this.ops.first[box];
  },
  inner(box) { return [...this.boxes.values.subarray(this.boxes.first[box], this.boxes.first[box + 1])]; },
  own(box) { return this.ops.values.subarray(this.ops.first[box], this.ops.first[box + 1]); },
  high(op) { return data.graph.wide[op] < 20 ? STORED_HIGH : OP_HIGH; },

  refresh() {
    const { home, parent } = data.graph, devices = data.devices.length, step = shown();
    this.share = new Float64Array(parent.length * devices);  // ops of each box on each device
    this.count = new Int32Array(parent.length);
    home.forEach((box, op) => { this.share[box * devices + step.device[op]]++; this.count[box]++; });
    for (let box = parent.length - 1; box > 0; box--) {
      for (let at = 0; at < devices; at++) this.share[parent[box] * devices + at] += this.share[box * devices + at];
      this.count[parent[box]] += this.count[box];
    }
    const total = data.devices.map((_, at) => this.share[at]);
    by("graph-legend").replaceChildren(
      ...data.devices.flatMap((device, at) => total[at] ? [key(device.colour, `${device.name}: ${count(total[at], "op")}`)] : []),
      key(data.colours.critical, "critical path", "rule"),
      make("span", { text: "small marks are weights and inputs" }));
    this.surface.ask();
  },

  fit(box = 0) {
    const [x, y, wide, high] = data.graph.boxes[box], { width, height } = this.surface;
    this.scale = Math.min((width - 24) / wide, (height - 24) / high, box ? 12 : 6);
    this.left = x - (width / this.scale - wide) / 2;
    this.top = y - (height / this.scale - high) / 2;
    this.fitted = true;
    this.surface.ask();
  },

  // As high as the whole needs, within what a screen shows.
  size() {
    const [, , wide, high] = data.graph.boxes[0], most = Math.max(300, Math.min(620, innerHeight * 0.72));
    return Math.round(Math.min(most, Math.max(380, this.place.clientWidth * high / wide + 24)));
  },

  draw(context, width, height) {
    if (!this.fitted) this.fit();
    const began = performance.now();
    this.view = [this.left, this.top, this.left + width / this.scale, this.top + height / this.scale];
    this.texts = [];
    context.save();
    context.scale(this.scale, this.scale);
    context.translate(-this.left, -this.top);
    const waiting = [0];
    for (let i = 0; i < waiting.length; i++) this.drawBox(context, waiting[i], waiting);
    this.drawChosen(context);
    context.restore();
    context.textBaseline = "middle";
    for (const [text, x, y, size, room, colour, centre] of this.texts) {
      context.font = `${size}px system-ui, sans-serif`;
      context.fillStyle = colour;
      context.textAlign = centre ? "center" : "left";
      context.fillText(fitted(context, text, room), (x - this.left) * this.scale, (y - this.top) * this.scale);
    }
    this.took = performance.now() - began;
  },

  seen([x, y, wide, high]) {
    const [left, top, right, bottom] = this.view;
    return x < right && x + wide > left && y < bottom && y + high > top;
  },

  drawBox(context, box, waiting) {
    const rect = data.graph.boxes[box], [x, y, wide, high] = rect, scale = this.scale;
    if (!this.seen(rect)) return;
    const devices = data.devices.length;
    if (!this.open[box] || Math.min(wide, high) * scale < 5) {
      let from = x;
      for (let at = 0; at < devices; at++) {
        const part = this.share[box * devices + at] / this.count[box] * wide;
        context.fillStyle = data.devices[at].colour;
        if (part) context.fillRect(from, y, part, high);
        from += part;
      }
      this.nameClosed(box, rect);
      return;
    }
    context.fillStyle = ink.panel;
    context.fillRect(x, y, wide, high);
    context.strokeStyle = ink.line;
    context.lineWidth = 1.2 / scale;
    if (box) context.strokeRect(x, y, wide, high);
    this.nameOpen(box, rect);
    this.drawEdges(context, box);
    const step = shown();
    for (const op of this.own(box)) this.drawOp(context, step, op);
    waiting.push(...this.inner(box));
  },

  nameClosed(box, [x, y, wide, high]) {
    const room = wide * this.scale - 8, long = data.graph.names[box].length * 0.62;
    const size = Math.min(13, high * this.scale / 2.2, Math.max(9, room / long));
    if (size < 7 || room < 30) return;
    this.texts.push([data.graph.names[box], x + wide / 2, y + high / 2, size, room, "#fff", true]);
  },

  nameOpen(box, [x, y, wide, high]) {
    if (!box) return;
    const title = this.title(box), size = Math.min(13, title * this.scale * 0.72), room = wide * this.scale - 8;
    if (size < 6.5 || room < 24) return;
    this.texts.push([data.graph.names[box], x + 4 / this.scale, y + title / 2, size, room, ink.quiet, false]);
  },

  // The room for a box's name: what is above its highest item.
  title(box) {
    let top = Infinity;
    for (const op of this.own(box)) top = Math.min(top, data.graph.y[op]);
    for (const inner of this.inner(box)) top = Math.min(top, data.graph.boxes[inner][1]);
    return top - data.graph.boxes[box][1];
  },

  drawOp(context, step, op) {
    const { x, y, wide } = data.graph, high = this.high(op), rect = [x[op], y[op], wide[op], high];
    if (!this.seen(rect)) return;
    context.fillStyle = data.devices[step.device[op]].colour;
    context.globalAlpha = data.turn(op) ? 1 : 0.55;
    context.fillRect(...rect);
    context.globalAlpha = 1;
    if (step.critical.has(op) && this.scale * high > 3) {
      context.fillStyle = data.colours.critical;
      context.fillRect(rect[0], rect[1] + high - 1.6, rect[2], 1.6);
    }
    const size = Math.min(12, high * this.scale * 0.6);
    if (size >= 7 && wide[op] * this.scale > 40) {
      this.texts.push([data.name(op), x[op] + wide[op] / 2, y[op] + high / 2, size, wide[op] * this.scale - 6, "#fff", true]);
    }
  },

  // Where an item is: an op, or a box from the number of ops on.
  rect(item) {
    if (item >= data.total) return data.graph.boxes[item - data.total];
    return [data.graph.x[item], data.graph.y[item], data.graph.wide[item], this.high(item)];
  },

  drawEdges(context, box) {
    const edges = data.graph.edges[box], wide = data.graph.boxes[box][2] * this.scale;
    if (!edges.length || wide < 70 || wide / Math.sqrt(edges.length) < 9) return;
    context.strokeStyle = ink.quiet;
    context.globalAlpha = edges.length > 60 ? 0.35 : 0.55;
    context.lineWidth = 0.9 / Math.max(this.scale, 0.6);
    context.beginPath();
    for (let i = 0; i < edges.length; i += 2) this.line(context, this.rect(edges[i]), this.rect(edges[i + 1]));
    context.stroke();
    context.globalAlpha = 1;
  },

  line(context, one, other) {
    const x = one[0] + one[2], y = one[1] + one[3] / 2, end = other[0], to = other[1] + other[3] / 2;
    context.moveTo(x, y);
    if (end > x - 1) {
      const bend = Math.min(30, Math.max(4, (end - x) / 2));
      context.bezierCurveTo(x + bend, y, end - bend, to, end, to);
    } else {  // on to the next line of columns
      const bend = 9, between = to > y ? (one[1] + one[3] + other[1]) / 2 : (one[1] + other[1] + other[3]) / 2;
      context.bezierCurveTo(x + bend, y, x + bend, between, x - bend, between);
      context.lineTo(end + bend, between);
      context.bezierCurveTo(end - bend, between, end - bend, to, end, to);
    }
  },

  // The op itself, or the folded box that hides it.
  stand(op) {
    let found = op, hidden = false;
    for (let box = data.graph.home[op]; box >= 0; box = data.graph.parent[box]) {
      if (!this.open[box]) { found = data.total + box; hidden = true; }
    }
    return [found, hidden];
  },

  drawChosen(context) {
    if (state.op < 0) return;
    const rect = this.rect(this.stand(state.op)[0]);
    context.lineWidth = 1.6 / Math.max(this.scale, 0.5);
    context.beginPath();
    for (const op of data.sources(state.op)) this.line(context, this.rect(this.stand(op)[0]), rect);
    for (let i = data.readers.first[state.op]; i < data.readers.first[state.op + 1]; i++) {
      this.line(context, rect, this.rect(this.stand(data.readers.values[i])[0]));
    }
    context.strokeStyle = ink.accent;
    context.stroke();
    context.lineWidth = 2.5 / this.scale;
    context.strokeStyle = ink.text;
    context.strokeRect(...rect);
  },

  // The op at a point, or the innermost box there.
  at(px, py) {
    const x = px / this.scale + this.left, y = py / this.scale + this.top;
    const holds = ([left, top, wide, high]) => x >= left && x < left + wide && y >= top && y < top + high;
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
    const parts = data.devices.map((device, at) => [this.share[found.box * devices + at], device.name]).filter(([many]) => many);
    return [data.graph.names[found.box], count(this.count[found.box], "op"), ...parts.map(([many, name]) => `${grouped(many)} on ${name}`),
      ...(found.name ? [this.open[found.box] ? "click to fold" : "click to open"] : [])];
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
      for (let box = data.graph.home[state.op]; box >= 0; box = data.graph.parent[box]) this.open[box] = 1;
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
    const beside = (way) => { const op = state.op + way; if (op >= 0 && op < data.total) select(op); };
    return {
      arrowleft: () => this.move(60, 0), arrowright: () => this.move(-60, 0), arrowup: () => this.move(0, 60),
      arrowdown: () => this.move(0, -60), "+": () => this.zoom(1.4), "=": () => this.zoom(1.4), "-": () => this.zoom(1 / 1.4),
      0: () => this.fit(), home: () => this.fit(), n: () => beside(1), p: () => beside(-1),
      enter: () => { if (state.op >= 0 && data.graph.home[state.op]) this.turn(data.graph.home[state.op]); },
      o: () => { this.open.fill(1); this.surface.ask(); }, f: () => { this.firstLook(); this.surface.ask(); },
    };
  },
};
