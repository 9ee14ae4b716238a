// Devices by node: a box for each node with its devices, or, where there are many, a square for each node.

const MESH = DATA.mesh;
const NUM_DEVICES = DATA.run.num_devices;
const BOX = Math.min(Math.max(MESH.node, MESH.fast), NUM_DEVICES);
const FAST = Math.min(MESH.fast, BOX);
const MOST_DRAWN = 256; // devices, each as a button of its own
const MOST_SQUARES = 4096;

// The index of a device along an axis.
function indexOf(device, axis) {
  return Math.floor(device / axis.stride) % axis.size;
}

function placeOf(device) {
  return MESH.axes.filter((axis) => axis.size > 1).map((axis) => `${axis.name} ${indexOf(device, axis)}`).join(" · ");
}

// How one map is drawn. look(device) -> {index, number, same, text, cycles}: which part of how many the device has,
// whether it is the chosen device's, what stands below its number, and whether colours begin anew behind the last hue.
// chosen: a device; choose(device) is told of another; about: the section, for its words.
function deviceMap(look, chosen, choose, about) {
  const nodes = Math.ceil(NUM_DEVICES / BOX);
  if (NUM_DEVICES <= MOST_DRAWN) {
    const boxes = Array.from({ length: nodes }, (_, node) => nodeBox(node, look, chosen, choose));
    return h("div", { class: "nodes" }, boxes);
  }
  return h("div", { class: "many" },
    h("p", { class: "note" }, t("devices.squares", { each: count(nodesOf(nodes) * BOX) }), " ", t(`${about}.squares`)),
    squares(nodes, look, chosen, choose, about),
    h("p", { class: "note" }, t("devices.of_node", { node: count(Math.floor(chosen / BOX)) })),
    h("div", { class: "nodes" }, nodeBox(Math.floor(chosen / BOX), look, chosen, choose)));
}

function nodeBox(node, look, chosen, choose) {
  const domains = [];
  const end = Math.min((node + 1) * BOX, NUM_DEVICES);
  for (let first = node * BOX; first < end; first += FAST) {
    const devices = Array.from({ length: Math.min(FAST, end - first) }, (_, i) => first + i);
    domains.push(h("div", { class: FAST > 1 ? "domain" : "domain single" },
      devices.map((device) => deviceButton(device, look(device), device === chosen, choose))));
  }
  const wide = FAST === 1 ? "node by-device" : "node";
  return h("div", { class: wide, role: "group", "aria-label": t("devices.node", { node }) },
    h("span", { class: "node-name" }, t("devices.node", { node: count(node) })), h("div", { class: "domains" }, domains));
}

function deviceButton(device, { index, number, same, text, cycles }, isChosen, choose) {
  const colour = cycles ? cycled(index) : partColour(index, number);
  const name = `${t("devices.device", { device: count(device) })}: ${placeOf(device)}`;
  return h("button", {
    type: "button", class: `device${same ? " same" : ""}`, "aria-pressed": String(isChosen), "aria-label": name, title: name,
    "data-device": device, style: { "--colour": colour, "--on": inkOn(colour) }, on: { click: () => choose(device) },
  }, String(device), text ? h("small", {}, text) : null);
}

// Seven hues over and over: rows of squares are a power of two long, so that no column is of one colour by chance.
function cycled(index) {
  return HUES[index % (HUES.length - 1)];
}

// How many nodes a square stands for: one, unless there are very many.
function nodesOf(nodes) {
  return Math.ceil(nodes / MOST_SQUARES);
}

// A square for each node, in the colour of its first device's part; strong where devices are like the chosen one.
function squares(nodes, look, chosen, choose, about) {
  const each = nodesOf(nodes);
  const order = new Map();
  const number = Math.ceil(nodes / each);
  const shown = Array.from({ length: number }, (_, square) => {
    const first = square * each * BOX;
    const end = Math.min(first + each * BOX, NUM_DEVICES);
    let same = 0;
    for (let device = first; device < end; device += 1) same += look(device).same ? 1 : 0;
    const has = chosen >= first && chosen < end;
    const { index, number: parts, cycles } = look(first);
    if (!order.has(index)) order.set(index, order.size);
    const colour = cycles ? cycled(order.get(index)) : partColour(index, parts);
    const range = t("devices.range", { first: count(first), last: count(end - 1) });
    const name = `${range}: ${t(`${about}.like`, { same: count(same) })}`;
    return h("button", { type: "button", tabindex: "-1", class: `square${same ? " same" : ""}${has ? " chosen" : ""}`,
      title: name, "aria-label": name, "data-same": same, style: { "--colour": colour }, on: { click: () => choose(first) } });
  });
  return h("div", { class: "squares", role: "group", "aria-label": t("devices.squares", { each: count(each * BOX) }),
    style: { "--columns": columnsOf(number, each) } }, shown);
}

// Columns such that a row ends where an axis of the mesh begins anew.
function columnsOf(number, each) {
  const outside = [...MESH.axes].reverse().filter((axis) => axis.stride * axis.size > BOX * each && axis.size > 1);
  let columns = Math.max(1, Math.round((outside[0].stride * outside[0].size) / (BOX * each)));
  while (columns > 64 && columns % 2 === 0) columns /= 2;
  let most = columns;
  while (most + columns <= Math.min(64, number)) most += columns;
  while (number % most && most > columns) most -= columns;
  return most;
}

// The control with which any device can be chosen by its number.
function deviceControl(value, change) {
  const input = h("input", { type: "number", min: "0", max: NUM_DEVICES - 1, step: "1", value,
    on: { change: () => change(Math.min(Math.max(Math.round(Number(input.value)) || 0, 0), NUM_DEVICES - 1)) } });
  return h("label", { class: "control" }, h("span", {}, t("devices.choose", { last: count(NUM_DEVICES - 1) })), input);
}
