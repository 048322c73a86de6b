// What all parts share: the data, what is shown and chosen, and ways to make elements.

// A workload has data for each of its calls; the address says which is shown: #call=1.
const content = JSON.parse(document.getElementById("data").textContent);
const callShown = Number(/^#call=(\d{1,6})$/.exec(location.hash)?.[1] ?? 0);
const data = unpack(content.calls ? (content.calls[callShown] ?? content.calls[0]) : content);
const state = { plan: data.methods[data.answer].plan, op: -1, from: 0, to: 1, theme: "light" };
const listeners = {};
const ink = {};

function on(what, act) {
  (listeners[what] ??= []).push(act);
}

function tell(what) {
  for (const act of listeners[what] ?? []) act();
}

const shown = () => data.step(state.plan);
const by = (id) => document.getElementById(id);

// An element; text is always text, since names are data.
function make(tag, how = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(how)) {
    if (key === "text") element.textContent = value;
    else if (key === "on")
      for (const [what, act] of Object.entries(value)) element.addEventListener(what, act);
    else if (key === "style") Object.assign(element.style, value);
    else if (key in element && typeof value !== "string") element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function drawing(tag, how = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(how)) {
    if (key === "text") element.textContent = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function key(colour, text, kind = "") {
  const mark = make("i", { class: kind });
  if (kind) mark.style.borderColor = colour;
  else mark.style.background = colour;
  return make("span", {}, mark, make("span", { text }));
}

function select(op) {
  if (state.op === op) return;
  state.op = op;
  by("tip").hidden = true; // the panel says the same
  tell("op");
}

function showPlan(at) {
  state.plan = at;
  fitTime();
  tell("plan");
}

function fitTime() {
  state.from = 0;
  state.to = Math.max(1, shown().length);
}

// Colours of the page for canvases, read again when the theme changes.
function readInk() {
  const style = getComputedStyle(document.documentElement);
  for (const name of [
    "back",
    "panel",
    "text",
    "quiet",
    "line",
    "faint",
    "accent",
    "mark",
    "bad",
    "steady",
    "passing",
  ]) {
    ink[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

// A canvas as wide as its place, sharp on any screen; drawn at most once a frame.
class Surface {
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.paint = draw;
    this.waiting = false;
    new ResizeObserver(() => this.ask()).observe(canvas);
  }

  ask() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => this.now());
  }

  now(height = null) {
    this.waiting = false;
    const ratio = window.devicePixelRatio || 1;
    if (height !== null) this.canvas.style.height = `${height}px`;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    if (this.width < 1 || this.height < 1) return; // hidden: it asks again once it has a size
    const wide = Math.round(this.width * ratio),
      high = Math.round(this.height * ratio);
    if (this.canvas.width !== wide) this.canvas.width = wide;
    if (this.canvas.height !== high) this.canvas.height = high;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.fillStyle = ink.panel;
    this.context.fillRect(0, 0, this.width, this.height);
    this.paint(this.context, this.width, this.height);
  }
}

function tip(event, lines) {
  const box = by("tip");
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(
    make("b", { text: lines[0] }),
    ...lines.slice(1).map((text) => make("div", { text })),
  );
  const wide = box.offsetWidth,
    high = box.offsetHeight;
  const left =
    event.clientX + 14 + wide > innerWidth ? event.clientX - wide - 14 : event.clientX + 14;
  const top =
    event.clientY + 16 + high > innerHeight ? event.clientY - high - 12 : event.clientY + 16;
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, top)}px`;
}

// Dragging, the wheel and the keys of a chart: it has move(x, y), zoom(factor, x, y), hover(x, y),
// click(x, y) and keys, by their names in lower case.
function steer(place, chart) {
  let from = null,
    moved = false;
  place.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    from = [event.clientX, event.clientY];
    moved = false;
  });
  place.addEventListener("pointermove", (event) => {
    if (from) {
      const way = [event.clientX - from[0], event.clientY - from[1]];
      if (!moved && Math.hypot(...way) < 4) return;
      if (!moved) {
        moved = true;
        place.setPointerCapture(event.pointerId);
        place.classList.add("drag");
        tip(event, null);
      }
      chart.move(...way);
      from = [event.clientX, event.clientY];
      return;
    }
    const area = place.getBoundingClientRect();
    tip(event, chart.hover(event.clientX - area.left, event.clientY - area.top));
  });
  const drop = () => {
    from = null;
    place.classList.remove("drag");
  };
  place.addEventListener("pointerup", (event) => {
    const area = place.getBoundingClientRect();
    if (from && !moved) chart.click(event.clientX - area.left, event.clientY - area.top);
    drop();
  });
  place.addEventListener("pointercancel", drop);
  place.addEventListener("pointerleave", (event) => tip(event, null));
  place.addEventListener(
    "wheel",
    (event) => {
      const area = place.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        chart.zoom(
          Math.exp(-Math.max(-60, Math.min(60, event.deltaY)) * 0.01),
          event.clientX - area.left,
          event.clientY - area.top,
        );
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        chart.move(-(event.deltaX || event.deltaY), 0);
      }
    },
    { passive: false },
  );
  place.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = chart.keys[event.key] ?? chart.keys[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
