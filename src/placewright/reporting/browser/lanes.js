// Lanes of devices and channels over time, drawn from what is in view alone.

const AXIS = 24,
  FEW = 12,
  IDLE = 5e-4, // of the step: what is busy for less shows as 0.0 %
  CROSSING = 14; // pixels between two crossings of the critical path below which none is drawn

// Pixels left of the charts, where names are.
let GUTTER = 168;

function fitGutter() {
  GUTTER = innerWidth < 620 ? 108 : 168;
}

function axisSteps(span, most) {
  const rough = span / most,
    power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
}

function drawAxis(context, width, height, view, top = 0) {
  const span = view.to - view.from,
    gap = axisSteps(span, Math.max(2, (width - GUTTER) / 110));
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (let t = Math.ceil(view.from / gap) * gap; t <= view.to; t += gap) {
    const x = Math.round(GUTTER + ((t - view.from) / span) * (width - GUTTER)) + 0.5;
    context.fillStyle = ink.line;
    context.fillRect(x, top, 1, height - top);
    context.fillStyle = ink.quiet;
    if (x < width - 60)
      context.fillText(moment(t * data.tick, gap * data.tick), x + 4, top + AXIS / 2);
  }
}

// A channel's own name is in ASCII.
function laneName(lane) {
  return lane.name.replace("->", "→");
}

function label(context, text, x, y, wide) {
  context.fillText(fitted(context, text, wide), x, y);
}

class Lanes {
  // `how`: step() and view() say what to draw; compact, marked(op) and path how.
  constructor(place, how) {
    this.place = place;
    this.how = how;
    this.surface = new Surface(place.querySelector("canvas"), (...all) => this.draw(...all));
  }

  // The lanes that are drawn: without those that are idle, and of many channels the busiest.
  lanes() {
    const step = this.how.step(),
      every = this.how.every?.() ?? true;
    const busy = (lane) => lane.busy > IDLE * step.length;
    let devices = step.lanes.filter((lane) => lane.kind === "device");
    let channels = step.lanes.filter((lane) => lane.kind === "channel");
    const total = devices.length + channels.length;
    if (!every) {
      if (devices.some(busy)) devices = devices.filter(busy);
      channels = channels.filter(busy);
    }
    if (channels.length > FEW && !this.how.every?.()) {
      const busiest = [...channels].sort((a, b) => b.busy - a.busy).slice(0, FEW);
      channels = channels.filter((lane) => busiest.includes(lane));
    }
    this.left = total - devices.length - channels.length;
    return [...devices, ...channels];
  }

  refresh() {
    const compact = this.how.compact;
    let y = AXIS;
    this.rows = this.lanes().map((lane) => {
      const high = lane.kind === "device" ? (compact ? 16 : 28) : compact ? 7 : 17;
      const row = { lane, y, high };
      y += high + (compact ? 2 : 4);
      return row;
    });
    this.total = y + 6;
    this.surface.canvas.style.height = `${this.total}px`;
    this.surface.ask();
  }

  x(t) {
    const { from, to } = this.how.view();
    return GUTTER + ((t - from) / (to - from)) * (this.surface.width - GUTTER);
  }

  time(x) {
    const { from, to } = this.how.view();
    return from + ((x - GUTTER) / (this.surface.width - GUTTER)) * (to - from);
  }

  draw(context, width, height) {
    if (!this.rows) return;
    const step = this.how.step(),
      view = this.how.view();
    for (const { lane, y, high } of this.rows) {
      context.fillStyle = ink.faint; // idle time is what nothing covers
      context.fillRect(GUTTER, y, width - GUTTER, high);
    }
    drawAxis(context, width, height, view);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, width - GUTTER, height);
    context.clip();
    for (const row of this.rows) this.drawLane(context, step, row, width);
    if (this.how.path?.()) this.drawPath(context, step);
    this.drawChosen(context, step);
    context.restore();
    this.drawNames(context, step);
  }

  drawNames(context, step) {
    context.textBaseline = "middle";
    for (const { lane, y, high } of this.rows) {
      const device = lane.kind === "device",
        compact = this.how.compact;
      context.textAlign = "left";
      context.fillStyle = device ? lane.colour : ink.quiet;
      context.fillRect(8, y + high / 2 - (compact ? 3 : 5), 4, compact ? 6 : 10);
      context.fillStyle = device ? ink.text : ink.quiet;
      const size = compact ? "9px" : device ? "600 12px" : "11px";
      context.font = `${size} system-ui, sans-serif`;
      const figure = (!compact || device) && (device || GUTTER > 120);
      label(context, laneName(lane), 18, y + high / 2, GUTTER - (figure ? 64 : 26));
      if (figure) {
        context.textAlign = "right";
        context.fillStyle = ink.quiet;
        context.font = compact ? "9px system-ui, sans-serif" : "11px system-ui, sans-serif";
        context.fillText(
          percent(step.length ? lane.busy / step.length : 0),
          GUTTER - 8,
          y + high / 2,
        );
      }
    }
  }

  // Things narrower than a pixel are drawn as one as long as they touch.
  drawLane(context, step, { lane, y, high }, width) {
    const { from, to } = this.how.view(),
      scale = (width - GUTTER) / (to - from),
      marked = this.how.marked;
    let runFrom = -1,
      runTo = -1,
      runColour = null;
    const flush = () => {
      if (runColour !== null) {
        context.fillStyle = runColour;
        context.fillRect(runFrom, y, Math.max(runTo - runFrom, 0.7), high);
      }
      runColour = null;
    };
    const texts = [];
    for (let i = above(lane.end, from); i < lane.size && lane.start[i] < to; i++) {
      const x = GUTTER + (lane.start[i] - from) * scale,
        end = GUTTER + (lane.end[i] - from) * scale;
      const wide = end - x;
      let colour = lane.colour;
      if (lane.kind === "channel" && step.sends.reader[lane.what[i]] >= 0)
        colour = data.colours.streamed;
      if (marked && !marked(lane, i)) colour = ink.line;
      if (wide < 2.5) {
        if (runColour === colour && x <= runTo + 0.6) {
          runTo = Math.max(runTo, end);
          continue;
        }
        flush();
        runFrom = x;
        runTo = end;
        runColour = colour;
        continue;
      }
      flush();
      context.fillStyle = colour;
      context.globalAlpha = i % 2 ? 0.82 : 1;
      context.fillRect(x, y, wide - (wide > 4 ? 1 : 0.4), high);
      context.globalAlpha = 1;
      if (wide > 40 && high > 12) texts.push(i, Math.max(x, GUTTER), Math.min(end, width));
    }
    flush();
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = "#fff";
    for (let i = 0; i < texts.length; i += 3) {
      const at = lane.what[texts[i]];
      const name =
        lane.kind === "device" ? data.name(at) : data.name(data.producer[step.sends.tensor[at]]);
      const wide = texts[i + 2] - texts[i + 1] - 8;
      if (wide > 30) label(context, name, texts[i + 1] + 4, y + high / 2, wide);
    }
  }

  drawPath(context, step) {
    const { from, to } = this.how.view(),
      place = new Map(this.rows.map((row) => [row.lane, row]));
    context.fillStyle = data.colours.critical;
    // Where the path goes to and fro within a few pixels, its crossings would hide all else.
    const crossings = this.crossings(step, place);
    const sparse = crossings * CROSSING < this.surface.width - GUTTER,
      thick = sparse ? 3 : 1.5;
    this.pathCrossings = sparse ? crossings : 0;
    let before = null,
      last = -10;
    for (const thing of step.path) {
      const [at, slot] = spot(step, thing),
        row = place.get(step.lanes[at]);
      if (!row) {
        before = null;
        continue;
      }
      const start = row.lane.start[slot],
        end = row.lane.end[slot];
      if (start > to) break;
      if (end >= from) {
        const x = this.x(start),
          wide = Math.max(0.6, this.x(end) - x),
          foot = row.y + row.high;
        context.fillRect(x, foot - thick, wide, thick);
        if (sparse && before && before !== row && x - last > 2) {
          const low = Math.min(before.y + before.high, foot) - thick,
            high = Math.max(before.y + before.high, foot);
          context.fillRect(x - 0.5, low, 1, high - low);
          last = x;
        }
      }
      before = row;
    }
  }

  crossings(step, place) {
    const { from, to } = this.how.view();
    let many = 0,
      before = null;
    for (const thing of step.path) {
      const [at, slot] = spot(step, thing),
        lane = step.lanes[at];
      if (lane.start[slot] > to) break;
      if (lane.end[slot] >= from && place.has(lane)) many += lane !== before;
      before = lane;
    }
    return many;
  }

  drawChosen(context, step) {
    const at = state.op >= 0 ? step.opLane[state.op] : -1;
    if (at < 0) return;
    const row = this.rows.find((each) => each.lane === step.lanes[at]),
      slot = step.opSlot[state.op];
    if (!row) return; // it takes too little time for a lane of its own
    const x = this.x(row.lane.start[slot]),
      wide = Math.max(this.x(row.lane.end[slot]) - x, 1);
    context.strokeStyle = ink.text;
    context.lineWidth = 2;
    context.strokeRect(x - 1, row.y - 1, wide + 2, row.high + 2);
    context.fillStyle = ink.text;
    const middle = x + wide / 2;
    context.beginPath();
    context.moveTo(middle - 5, row.y - 8);
    context.lineTo(middle + 5, row.y - 8);
    context.lineTo(middle, row.y - 2);
    context.fill();
  }

  // The lane and slot at a point, and how many things share its pixel.
  at(x, y) {
    const row = this.rows?.find((each) => y >= each.y - 1 && y < each.y + each.high + 1);
    if (!row || x < GUTTER) return null;
    const { lane } = row,
      near = this.time(x + 2) - this.time(x),
      t = this.time(x);
    let best = -1,
      longest = -1,
      many = 0;
    for (let i = above(lane.end, t - near); i < lane.size && lane.start[i] <= t + near; i++) {
      const inside = lane.start[i] <= t && t < lane.end[i],
        long = lane.end[i] - lane.start[i];
      many++;
      if (long + (inside ? 1e15 : 0) > longest) {
        best = i;
        longest = long + (inside ? 1e15 : 0);
      }
    }
    return { lane, slot: best, many, t };
  }

  hover(x, y) {
    const found = this.at(x, y),
      step = this.how.step();
    if (!found) return null;
    const { lane, slot, many, t } = found;
    if (slot < 0) {
      const next = above(lane.start, t),
        from = next ? lane.end[next - 1] : 0;
      const to = next < lane.size ? lane.start[next] : step.length;
      return [`${laneName(lane)} is idle`, `for ${ticks(to - from)}, ${stretch(from, to)}`];
    }
    const lines =
      lane.kind === "device" ? opWords(step, lane.what[slot]) : sendWords(step, lane.what[slot]);
    return many > 3 ? [...lines, `and ${many - 1} more here: zoom in`] : lines;
  }

  click(x, y) {
    const found = this.at(x, y),
      step = this.how.step();
    if (!found || found.slot < 0) return;
    const { lane, slot } = found;
    select(
      lane.kind === "device" ? lane.what[slot] : data.producer[step.sends.tensor[lane.what[slot]]],
    );
  }
}
