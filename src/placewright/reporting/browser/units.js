// Numbers in, text for a person out: the same words as `placewright.units`.

function short(value) {
  if (!Number.isFinite(value)) return String(value);
  const digits = value ? Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value)))) : 0;
  const shown = value.toFixed(Math.min(digits, 100));
  return shown.includes(".") ? shown.replace(/0+$/, "").replace(/\.$/, "") : shown;
}

function scaled(value, base, units) {
  for (const unit of units.slice(0, -1)) {
    if (Math.abs(Number(value.toPrecision(4))) < base) return `${short(value)} ${unit}`;
    value /= base;
  }
  return `${short(value)} ${units[units.length - 1]}`;
}

function seconds(value) {
  if (!Number.isFinite(value) || Math.abs(value) >= 1) return `${short(value)} s`;
  return scaled(value * 1e9, 1000, ["ns", "µs", "ms", "s"]);
}

function bytes(value) {
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
}

function percent(share) {
  if (share === null || !Number.isFinite(share)) return "–";
  return `${grouped((share * 100).toFixed(Math.abs(share) < 1 ? 1 : 0))} %`;
}

function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

function count(number, what) {
  return `${grouped(number)} ${what}${number === 1 ? "" : "s"}`;
}

function flops(value) {
  return scaled(value, 1000, ["FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"]);
}

// As much of the end of a name as there is room for, in the font that the context has.
function fitted(context, text, room) {
  let most = Math.min(text.length, 200);
  while (most > 0) {
    const part = ending(text, most),
      wide = context.measureText(part).width;
    if (wide <= room) return part === "…" ? "" : part;
    most = Math.min(most - 1, Math.floor((most * room) / wide));
  }
  return "";
}

// A time with as many digits as it takes to tell it from one that is `apart` seconds later.
function moment(value, apart) {
  const units = [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "µs"],
    [1e-9, "ns"],
  ];
  const [unit, name] = units.find(([size]) => Math.abs(value) >= size) ?? units[3];
  const digits = apart > 0 ? Math.ceil(-Math.log10(apart / unit) - 1e-9) : 3;
  return `${Number((value / unit).toFixed(Math.max(0, Math.min(9, digits))))} ${name}`;
}

// The end of a name says most; a pair of surrogates is not torn apart.
function ending(text, most) {
  if (text.length <= most) return text;
  let from = text.length - most + 1;
  const unit = text.charCodeAt(from);
  if (unit >= 0xdc00 && unit <= 0xdfff) from += 1;
  return "…" + text.slice(from);
}
