// Memory over time: for each device what it holds, under the limit, along the timeline's own view.

const LAYERS = ["weights", "staging", "activations", "copies"];
// Greys and stripes, since colours mean devices.
const SHADES = { weights: "steady", staging: "steady", activations: "passing", copies: "passing" };
const STRIPES = { staging: "passing", copies: "steady" };
const SLANT = { staging: 1, copies: -1 };

// A pattern of slanted lines, made again when the theme changes.
function stripes(context, layer) {
  const tile = make("canvas", { width: 6, height: 6 }),
    pen = tile.getContext("2d");
  pen.strokeStyle = ink[STRIPES[layer]];
  pen.lineWidth = SLANT[layer] > 0 ? 1.6 : 0.9;
  pen.beginPath();
  for (const shift of [-6, 0, 6]) {
    pen.moveTo(shift, SLANT[layer] > 0 ? 6 : 0);
    pen.lineTo(shift + 6, SLANT[layer] > 0 ? 0 : 6);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

function shadeKey(layer, text) {
  const entry = key(ink[SHADES[layer]], text);
  if (layer in STRIPES) {
    const line = ink[STRIPES[layer]];
    const [angle, wide] = SLANT[layer] > 0 ? ["135deg", "1.5px"] : ["45deg", "0.8px"];
    entry.firstChild.style.backgroundImage = `repeating-linear-gradient(${angle}, ${line} 0 ${wide}, transparent ${wide} 4px)`;
  }
  return entry;
}

class Held {
  constructor(place, at) {
    this.at = at;
    this.surface = new Surface(place.querySelector("canvas"), (...all) => this.draw(...all));
    this.surface.canvas.style.height = "108px";
  }

  // The highest bytes that the chart shows, and whether the limit is within.
  scale() {
    const held = shown().memory[this.at],
      device = data.devices[this.at];
    if (device.usable === null) return [Math.max(held.peak * 1.15, 1), false];
    const top = device.usable + device.reserve;
    if (memory.toLimit()) return [Math.max(held.peak, top, 1) * 1.08, true];
    return [Math.max(held.peak * 1.2, 1), held.peak * 1.2 > device.usable];
  }

  // The change that is in force at a time.
  row(t) {
    return Math.max(0, above(shown().memory[this.at].time, t) - 1);
  }

  draw(context, width, height) {
    const held = shown().memory[this.at],
      device = data.devices[this.at],
      [most, limited] = this.scale();
    const plot = Math.floor(width - GUTTER),
      y = (size) => height - 4 - (size / most) * (height - 12);
    if (plot < 1) return;
    context.fillStyle = ink.faint;
    context.fillRect(GUTTER, 0, width - GUTTER, height);
    const rows = this.columns(plot);
    let below = new Float64Array(plot).fill(0);
    for (const layer of LAYERS) {
      const over = below.map(
        (size, x) =>
          size +
          (layer in held && typeof held[layer] === "number" ? held[layer] : held[layer][rows[x]]),
      );
      context.beginPath();
      for (let x = 0; x < plot; x++) context.lineTo(GUTTER + x, y(over[x]));
      for (let x = plot - 1; x >= 0; x--) context.lineTo(GUTTER + x, y(below[x]));
      context.fillStyle = ink[SHADES[layer]];
      context.fill();
      if (layer in STRIPES) {
        context.fillStyle = stripes(context, layer);
        context.fill();
      }
      below = over;
    }
    drawAxisLines(context, width, height);
    this.drawTicks(context, width, most, y);
    if (limited) {
      const full = y(device.usable + device.reserve),
        line = y(device.usable);
      context.fillStyle = ink.bad;
      context.globalAlpha = 0.12;
      context.fillRect(GUTTER, full, plot, line - full);
      context.globalAlpha = 1;
      context.fillRect(GUTTER, line - 1, plot, 1.5);
      context.textAlign = "right";
      context.textBaseline = line < 18 ? "top" : "bottom";
      context.font = "11px system-ui, sans-serif";
      const reserve = device.reserve ? ` and a reserve of ${bytes(device.reserve)}` : "";
      context.fillText(
        `limit ${bytes(device.usable)}${reserve}`,
        width - 8,
        line < 18 ? line + 3 : line - 3,
      );
    }
    this.names(context, held, device, limited);
  }

  // Bytes along the left side: steps are powers of two, so that their figures are short.
  drawTicks(context, width, most, y) {
    const step = 2 ** Math.ceil(Math.log2(most / 3.5));
    this.ticks = [];
    context.font = "10px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (let size = 0; size <= most; size += step) {
      const at = Math.round(y(size)) + 0.5;
      context.fillStyle = ink.line;
      context.globalAlpha = 0.6;
      context.fillRect(GUTTER, at, width - GUTTER, 1);
      context.globalAlpha = 1;
      context.fillStyle = ink.quiet;
      const inside = GUTTER < 120; // where names leave no space
      context.textAlign = inside ? "left" : "right";
      if (inside) context.fillStyle = ink.text;
      context.fillText(
        bytes(size),
        inside ? GUTTER + 4 : GUTTER - 5,
        Math.max(6, at - (inside ? 6 : 0)),
      );
      this.ticks.push(size);
    }
  }

  names(context, held, device, limited) {
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.fillStyle = device.colour;
    context.fillRect(8, 13, 4, 10);
    context.fillStyle = ink.text;
    context.font = "600 12px system-ui, sans-serif";
    label(context, device.name, 18, 22, GUTTER - (GUTTER < 120 ? 24 : 70));
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = ink.quiet;
    const exact = shown().method.devices[this.at][2];
    context.fillText(`peak ${bytes(exact)}`, 18, 40);
    if (device.usable === null) context.fillText("no limit", 18, 56);
    else {
      const free = device.usable - exact;
      context.fillStyle = free < 0 ? ink.bad : ink.quiet;
      context.fillText(free < 0 ? `out by ${bytes(-free)}` : `${bytes(free)} free`, 18, 56);
      context.fillStyle = ink.quiet;
      if (!limited) context.fillText(`limit ${bytes(device.usable)}`, 18, 72);
    }
  }

  // For each pixel the change at which most is held.
  columns(plot) {
    const held = shown().memory[this.at],
      span = (state.to - state.from) / plot,
      rows = new Int32Array(plot);
    const total = (i) => held.activations[i] + held.copies[i];
    let i = this.row(state.from);
    for (let x = 0; x < plot; x++) {
      const until = state.from + (x + 1) * span;
      let best = i;
      while (i + 1 < held.time.length && held.time[i + 1] < until) {
        i++;
        if (total(i) > total(best)) best = i;
      }
      rows[x] = best;
    }
    return rows;
  }

  move(x) {
    timeline.move(x);
  }
  zoom(factor, x) {
    timeline.zoom(factor, x);
  }
  click() {}
  get keys() {
    return timeline.keys;
  }

  hover(x) {
    if (x < GUTTER) return null;
    const held = shown().memory[this.at],
      device = data.devices[this.at];
    const i = this.columns(Math.max(0, Math.floor(this.surface.width - GUTTER)))[
      Math.floor(x - GUTTER)
    ];
    if (i === undefined) return null;
    const total = held.always + held.activations[i] + held.copies[i];
    const apart = ((state.to - state.from) / 1000) * data.tick,
      when = moment(timeline.lanes.time(x) * data.tick, apart);
    return [
      `${device.name} holds ${bytes(total)} at ${when}`,
      `weights and state ${bytes(held.weights)}`,
      `staging buffer ${bytes(held.staging)}`,
      `activations and workspace ${bytes(held.activations[i])}`,
      `copies from other devices ${bytes(held.copies[i])}`,
      ...(device.usable === null ? [] : [`limit ${bytes(device.usable)}`]),
    ];
  }
}

function drawAxisLines(context, width, height) {
  const span = state.to - state.from,
    gap = axisSteps(span, Math.max(2, (width - GUTTER) / 110));
  context.fillStyle = ink.line;
  context.globalAlpha = 0.35;
  for (let t = Math.ceil(state.from / gap) * gap; t <= state.to; t += gap) {
    context.fillRect(
      Math.round(GUTTER + ((t - state.from) / span) * (width - GUTTER)) + 0.5,
      0,
      1,
      height,
    );
  }
  context.globalAlpha = 1;
}

const memory = {
  start() {
    this.charts = data.devices.map((device, at) => {
      const place = make(
        "div",
        {
          class: "chart memory",
          tabIndex: 0,
          role: "group",
          "aria-label": `Memory of ${device.name} over time`,
        },
        make("canvas"),
      );
      by("memory-charts").append(place);
      const chart = new Held(place, at);
      steer(place, chart);
      return { place, chart };
    });
    for (const what of ["plan", "theme", "view", "size"]) on(what, () => this.refresh());
    for (const choice of document.querySelectorAll("[name=memory-to]"))
      choice.addEventListener("change", () => this.refresh());
    // Where all that is held is far below the limits, its course is what there is to see.
    const near = shown().memory.some(({ peak }, at) => peak > 0.12 * data.devices[at].usable);
    document.querySelector(`[name=memory-to][value=${near ? "limit" : "peak"}]`).checked = true;
    this.refresh();
  },

  // Whether the charts reach to the limit of each device, or to its peak.
  toLimit() {
    return document.querySelector("[name=memory-to]:checked").value === "limit";
  },

  refresh() {
    by("memory-legend").replaceChildren(
      shadeKey("weights", "weights and state"),
      shadeKey("staging", "staging buffer"),
      shadeKey("activations", "activations and workspace"),
      shadeKey("copies", "copies from other devices"),
      key(ink.bad, "limit", "rule"),
      make("span", { text: "the band above the limit is the reserve" }),
    );
    const idle = [];
    this.charts.forEach(({ place, chart }, at) => {
      place.hidden = !shown().memory[at].peak;
      if (place.hidden) idle.push(data.devices[at].name);
      else chart.surface.ask();
    });
    by("memory-idle").textContent = idle.length
      ? `Nothing is ever on ${idle.length > 8 ? count(idle.length, "device") : idle.join(", ")}.`
      : "";
  },
};
