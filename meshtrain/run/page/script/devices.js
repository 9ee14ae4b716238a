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

// How one map is drawn. look(device) -> {index, number, same}: which part of how many the device has, and whether it
// is the chosen device's; chosen: a device; choose(device).
function deviceMap(look, chosen, choose) {
  const nodes = Math.ceil(NUM_DEVICES / BOX);
  if (NUM_DEVICES <= MOST_DRAWN) {
    const boxes = Array.from({ length: nodes }, (_, node) => nodeBox(node, look, chosen, choose));
    return h("div", { class: "nodes" }, boxes);
  }
  return h("div", { class: "many" },
    squares(nodes, look, chosen, choose),
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

function deviceButton(device, { index, number, same }, isChosen, choose) {
  const colour = partColour(index % Math.max(number, 1), number);
  const name = `${t("devices.device", { device: count(device) })}: ${placeOf(device)}`;
  return h("button", {
    type: "button", class: `device${same ? " same" : ""}`, "aria-pressed": String(isChosen), "aria-label": name, title: name,
    "data-device": device, style: { "--colour": colour, "--ink": inkOn(colour) }, on: { click: () => choose(device) },
  }, String(device));
}

// A square for each node (or for several, if there are very many): the darker, the more of its devices are like the chosen.
function squares(nodes, look, chosen, choose) {
  const each = Math.ceil(nodes / MOST_SQUARES);
  const number = Math.ceil(nodes / each);
  const shown = Array.from({ length: number }, (_, square) => {
    const first = square * each * BOX;
    const end = Math.min(first + each * BOX, NUM_DEVICES);
    let same = 0;
    for (let device = first; device < end; device += 1) same += look(device).same ? 1 : 0;
    const has = chosen >= first && chosen < end;
    const name = t("devices.square", { first: count(first), last: count(end - 1), same: count(same) });
    return h("button", { type: "button", tabindex: "-1", class: has ? "square chosen" : "square", title: name, "aria-label": name,
      "data-same": same, style: { "--share": same / (end - first) }, on: { click: () => choose(first) } });
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

function squaresLegend() {
  if (NUM_DEVICES <= MOST_DRAWN) return null;
  const each = Math.ceil(Math.ceil(NUM_DEVICES / BOX) / MOST_SQUARES) * BOX;
  return h("p", { class: "note" }, t("devices.squares", { each: count(each) }), " ", t("devices.shade"));
}
