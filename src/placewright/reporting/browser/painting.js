// How the graph is drawn: boxes, ops, the flow between them and their names.

const painting = {
  draw(context, width, height) {
    if (!this.fitted) this.fit();
    const began = performance.now();
    this.view = [
      this.left,
      this.top,
      this.left + width / this.scale,
      this.top + height / this.scale,
    ];
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
      context.fillText(
        fitted(context, text, room),
        (x - this.left) * this.scale,
        (y - this.top) * this.scale,
      );
    }
    this.took = performance.now() - began;
  },

  seen([x, y, wide, high]) {
    const [left, top, right, bottom] = this.view;
    return x < right && x + wide > left && y < bottom && y + high > top;
  },

  drawBox(context, box, waiting) {
    const rect = data.graph.boxes[box],
      [x, y, wide, high] = rect,
      scale = this.scale;
    if (!this.seen(rect)) return;
    const devices = data.devices.length;
    if (!this.open[box] || Math.min(wide, high) * scale < 5) {
      let from = x;
      for (let at = 0; at < devices; at++) {
        const part = (this.share[box * devices + at] / this.count[box]) * wide;
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
    const room = wide * this.scale - 8,
      long = data.graph.names[box].length * 0.62;
    const size = Math.min(13, (high * this.scale) / 2.2, Math.max(9, room / long));
    if (size < 7 || room < 30) return;
    this.texts.push([data.graph.names[box], x + wide / 2, y + high / 2, size, room, "#fff", true]);
  },

  nameOpen(box, [x, y, wide, high]) {
    if (!box) return;
    const title = this.title(box),
      size = Math.min(13, title * this.scale * 0.72),
      room = wide * this.scale - 8;
    if (size < 6.5 || room < 24) return;
    this.texts.push([
      data.graph.names[box],
      x + 4 / this.scale,
      y + title / 2,
      size,
      room,
      ink.quiet,
      false,
    ]);
  },

  // The room for a box's name: what is above its highest item.
  title(box) {
    let top = Infinity;
    for (const op of this.own(box)) top = Math.min(top, data.graph.y[op]);
    for (const inner of this.inner(box)) top = Math.min(top, data.graph.boxes[inner][1]);
    return top - data.graph.boxes[box][1];
  },

  drawOp(context, step, op) {
    const { x, y, wide } = data.graph,
      high = this.high(op),
      rect = [x[op], y[op], wide[op], high];
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
      this.texts.push([
        data.name(op),
        x[op] + wide[op] / 2,
        y[op] + high / 2,
        size,
        wide[op] * this.scale - 6,
        "#fff",
        true,
      ]);
    }
  },

  // Where an item is: an op, or a box from the number of ops on.
  rect(item) {
    if (item >= data.total) return data.graph.boxes[item - data.total];
    return [data.graph.x[item], data.graph.y[item], data.graph.wide[item], this.high(item)];
  },

  drawEdges(context, box) {
    const edges = data.graph.edges[box],
      wide = data.graph.boxes[box][2] * this.scale;
    if (!edges.length || wide < 45 || wide / Math.sqrt(edges.length) < 9) return;
    context.strokeStyle = ink.quiet;
    context.globalAlpha = edges.length > 60 ? 0.35 : 0.55;
    context.lineWidth = 0.9 / Math.max(this.scale, 0.6);
    context.beginPath();
    for (let i = 0; i < edges.length; i += 2)
      this.line(context, this.rect(edges[i]), this.rect(edges[i + 1]));
    context.stroke();
    context.globalAlpha = 1;
  },

  line(context, one, other) {
    const x = one[0] + one[2],
      y = one[1] + one[3] / 2,
      end = other[0],
      to = other[1] + other[3] / 2;
    context.moveTo(x, y);
    if (end > x - 1) {
      const bend = Math.min(30, Math.max(4, (end - x) / 2));
      context.bezierCurveTo(x + bend, y, end - bend, to, end, to);
    } else {
      // on to the next line of columns
      const bend = 9,
        between = to > y ? (one[1] + one[3] + other[1]) / 2 : (one[1] + other[1] + other[3]) / 2;
      context.bezierCurveTo(x + bend, y, x + bend, between, x - bend, between);
      context.lineTo(end + bend, between);
      context.bezierCurveTo(end - bend, between, end - bend, to, end, to);
    }
  },

  // The op itself, or the folded box that hides it.
  stand(op) {
    let found = op,
      hidden = false;
    for (let box = data.graph.home[op]; box >= 0; box = data.graph.parent[box]) {
      if (!this.open[box]) {
        found = data.total + box;
        hidden = true;
      }
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
};
