// Ops and transfers in words.

function ticks(value) {
  return seconds(value * data.tick);
}

// From when to when, with enough digits.
function stretch(start, end) {
  const apart = Math.max((end - start) / 20, 1) * data.tick;
  return `from ${moment(start * data.tick, apart)} to ${moment(end * data.tick, apart)}`;
}

function opTimes(step, op) {
  const at = step.opLane[op];
  if (at < 0) return null;
  return [step.lanes[at].start[step.opSlot[op]], step.lanes[at].end[step.opSlot[op]]];
}

// How long the device was idle before the op began.
function idleBefore(step, op) {
  const at = step.opLane[op];
  if (at < 0) return 0;
  const lane = step.lanes[at],
    slot = step.opSlot[op];
  return lane.start[slot] - (slot ? lane.end[slot - 1] : 0);
}

function sendName(step, row) {
  const tensor = step.sends.tensor[row],
    op = data.producer[tensor];
  return `${data.name(op)} → ${data.devices[step.sends.target[row]].name}`;
}

function waitWords(step, lane, slot) {
  const code = lane.wait[slot];
  if (code === 0) return "starts with the step";
  if (code === TURN)
    return `waited for ${data.name(lane.what[slot - 1])} to end on ${laneName(lane)}`;
  const kind = code % 8,
    of = (code - kind) / 8;
  if (kind === INPUT) return `waited for ${data.name(of)} to end`;
  if (kind === ROOM) return `waited for the staging buffer that ${data.name(of)} held`;
  if (kind === ISSUER) return `waited for the launch of ${data.name(of)}`;
  const over = laneName(step.lanes[step.sends.lane[of]]);
  if (kind === ARRIVAL) return `waited for ${sendName(step, of)} to arrive over ${over}`;
  return `waited for ${sendName(step, of)} to leave ${over}`;
}

function opWords(step, op) {
  const device = data.devices[step.device[op]].name,
    module = data.module(op);
  const lines = [data.name(op), `${data.kind(op)} on ${device}${module ? `, in ${module}` : ""}`];
  const times = opTimes(step, op);
  if (!times) return [...lines, `exists before the step, ${bytes(data.size(op))}`];
  if (step.plan.group && step.plan.group[op] !== op)
    lines.push(`fused with ${data.name(step.plan.group[op])}`);
  lines.push(`${ticks(times[1] - times[0])}, ${stretch(...times)}`);
  if (data.ops.flops[op]) lines.push(flops(data.ops.flops[op]));
  const idle = idleBefore(step, op);
  const lane = step.lanes[step.opLane[op]];
  lines.push(
    waitWords(step, lane, step.opSlot[op]) +
      (idle > 0 ? `; ${lane.name} was idle for ${ticks(idle)}` : ""),
  );
  if (step.critical.has(op)) lines.push("on the critical path");
  return lines;
}

function sendWords(step, row) {
  const lane = step.lanes[step.sends.lane[row]],
    slot = step.sends.slot[row];
  const tensor = step.sends.tensor[row],
    reader = step.sends.reader[row];
  const start = lane.start[slot],
    end = lane.end[slot],
    what = reader >= 0 ? "streamed weight" : "tensor";
  const lines = [sendName(step, row)];
  lines.push(`${what} of ${bytes(data.ops.sizes[tensor])} over ${laneName(lane)}`);
  if (reader >= 0) lines.push(`for ${data.name(reader)}`);
  lines.push(`${ticks(end - start)}, ${stretch(start, end)}`);
  lines.push(waitWords(step, lane, slot));
  if (step.critical.has(-1 - row)) lines.push("on the critical path");
  return lines;
}
