// The page's JSON in, typed arrays out; `reporting/payload.py` says what the lists mean.

const TURN = 1,
  INPUT = 2,
  ARRIVAL = 3,
  WIRE = 4,
  ROOM = 5,
  ISSUER = 6;

function sums(counts) {
  const first = new Int32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) first[i + 1] = first[i] + counts[i];
  return first;
}

// Lists of unequal length, end to end: those of `i` are values[first[i]] to values[first[i + 1]].
function listed(size, pairs) {
  const counts = new Int32Array(size);
  for (let i = 0; i < pairs.length; i += 2) counts[pairs[i]]++;
  const first = sums(counts),
    at = first.slice(),
    values = new Int32Array(pairs.length / 2);
  for (let i = 0; i < pairs.length; i += 2) values[at[pairs[i]]++] = pairs[i + 1];
  return { first, values };
}

function unpack(raw) {
  const ops = raw.ops,
    total = ops.names.length;
  const firstTensor = sums(ops.outputs),
    firstInput = sums(ops.inputs);
  const producer = new Int32Array(ops.sizes.length);
  for (let op = 0; op < total; op++) producer.fill(op, firstTensor[op], firstTensor[op + 1]);
  const pairs = [];
  for (let op = 0; op < total; op++) {
    for (let i = firstInput[op]; i < firstInput[op + 1]; i++)
      pairs.push(producer[ops.reads[i]], op);
  }
  return {
    ...raw,
    total,
    firstTensor,
    firstInput,
    producer,
    readers: listed(total, pairs),
    name: (op) => ops.names[op],
    kind: (op) => ops.kinds[ops.kind[op]],
    module: (op) => ops.modules[ops.module[op]],
    phase: (op) => ({ f: "forward", b: "backward", u: "update" })[ops.phase[op]],
    turn: (op) => ops.turn[op] === "1",
    size(op) {
      let size = 0;
      for (let t = firstTensor[op]; t < firstTensor[op + 1]; t++) size += ops.sizes[t];
      return size;
    },
    sources(op) {
      const found = [];
      for (let i = firstInput[op]; i < firstInput[op + 1]; i++) found.push(producer[ops.reads[i]]);
      return [...new Set(found)];
    },
    steps: raw.plans.map(() => null),
    step(at) {
      return (this.steps[at] ??= unpackStep(this, this.plans[at]));
    },
  };
}

function lane(kind, at, name, colour, slots) {
  return {
    kind,
    at,
    name,
    colour,
    size: slots,
    busy: 0,
    start: new Float64Array(slots),
    end: new Float64Array(slots),
    what: new Int32Array(slots),
    wait: new Int32Array(slots),
  };
}

// One plan's step: lanes of devices and of channels, and where each op and transfer is in them.
function unpackStep(data, plan) {
  const opLane = new Int32Array(data.total).fill(-1),
    opSlot = new Int32Array(data.total);
  const lanes = plan.lanes.map((list, at) => {
    const device = data.devices[at];
    const found = lane("device", at, device.name, device.colour, list.length / 3);
    let now = 0;
    for (let i = 0; i < found.size; i++) {
      const op = list[3 * i];
      found.what[i] = op;
      found.start[i] = now += list[3 * i + 1];
      found.end[i] = now += list[3 * i + 2];
      found.wait[i] = plan.waits[at][i];
      found.busy += list[3 * i + 2];
      opLane[op] = at;
      opSlot[op] = i;
    }
    return found;
  });
  const rows = plan.sends.reduce((sum, list) => sum + list.length / 6, 0);
  const sends = {
    tensor: new Int32Array(rows),
    target: new Int32Array(rows),
    reader: new Int32Array(rows),
    lane: new Int32Array(rows),
    slot: new Int32Array(rows),
  };
  let row = 0;
  plan.sends.forEach((list, at) => {
    if (!list.length) return;
    const found = lane("channel", at, data.channels[at], data.colours.tensor, list.length / 6);
    let now = 0;
    for (let i = 0; i < found.size; i++, row++) {
      sends.tensor[row] = list[6 * i];
      sends.target[row] = list[6 * i + 1];
      sends.reader[row] = list[6 * i + 2] - 1;
      sends.lane[row] = lanes.length;
      sends.slot[row] = i;
      found.what[i] = row;
      found.start[i] = now += list[6 * i + 3];
      found.end[i] = now += list[6 * i + 4];
      found.wait[i] = list[6 * i + 5];
      found.busy += list[6 * i + 4];
    }
    lanes.push(found);
  });
  if (plan.group) {
    // a fused op runs with the first of its group
    plan.group.forEach((head, op) => {
      opLane[op] = opLane[head];
      opSlot[op] = opSlot[head];
    });
  }
  const memory = plan.memory.map((each) => {
    const points = each.over.length / 3;
    const time = new Float64Array(points),
      activations = new Float64Array(points);
    const copies = new Float64Array(points);
    let now = 0,
      peak = 0;
    for (let i = 0; i < points; i++) {
      time[i] = now += each.over[3 * i];
      activations[i] = each.over[3 * i + 1];
      copies[i] = each.over[3 * i + 2];
      peak = Math.max(peak, activations[i] + copies[i]);
    }
    const always = each.weights + each.staging;
    return {
      weights: each.weights,
      staging: each.staging,
      time,
      activations,
      copies,
      always,
      peak: peak + always,
    };
  });
  const critical = new Set(plan.path);
  return {
    plan,
    method: data.methods[plan.method],
    length: plan.step,
    device: plan.device,
    lanes,
    sends,
    opLane,
    opSlot,
    memory,
    path: plan.path,
    critical,
  };
}

// The lane and the slot of an op (>= 0) or of a transfer (-1 - its row).
function spot(step, thing) {
  if (thing >= 0) return [step.opLane[thing], step.opSlot[thing]];
  return [step.sends.lane[-1 - thing], step.sends.slot[-1 - thing]];
}

// The first index whose value is greater than x.
function above(values, x) {
  let low = 0,
    high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}
