// Who holds what: for an array and a device the slice that lies there, and the devices that hold the same slice.

const held = { array: null, device: 0 };

section("holders", (root) => {
  const arrays = DATA.arrays.list;
  held.array ??= largest(arrays);
  const area = h("div", { class: "holders", "aria-live": "polite" });
  const kinds = [...new Set(arrays.map((one) => one.kind))];
  const options = kinds.map((kind) => [t(`kind_of_array.${kind}`),
    arrays.map((one, i) => [i, one]).filter(([, one]) => one.kind === kind).map(([i, one]) => [i, one.path])]);
  const device = deviceControl(held.device, (value) => choose(value));
  function choose(value) {
    held.device = value;
    device.querySelector("input").value = value;
    draw();
  }
  function draw() {
    const focus = document.activeElement?.closest?.("[data-part=holders] [data-device]")?.dataset.device;
    area.replaceChildren(...holders(arrays[held.array], held.device, choose));
    if (focus) area.querySelector(`[data-device="${focus}"]`)?.focus();
  }
  root.append(h("div", { class: "controls" },
    choice(t("holders.array"), options, held.array, (value) => { held.array = Number(value); draw(); }), device), area);
  draw();
});

// The number of the largest weight as a whole: the one that most is to be seen of.
function largest(arrays) {
  const size = (one) => (one.kind === "params" ? one.dims.reduce((all, dim) => all * dim.size, 1) : 0);
  return arrays.reduce((best, one, i) => (size(one) > size(arrays[best]) ? i : best), 0);
}

// Into how many parts a dim is cut.
function partsOf(dim) {
  return dim.axes.reduce((all, name) => all * MESH.axes.find((axis) => axis.name === name).size, 1);
}

// The part of each dim that a device has.
function partAt(array, device) {
  return array.dims.map((dim) => dim.axes.reduce((index, name) => {
    const axis = MESH.axes.find((one) => one.name === name);
    return index * axis.size + indexOf(device, axis);
  }, 0));
}

function numberOf(part, numbers) {
  return part.reduce((index, one, i) => index * numbers[i] + one, 0);
}

function holders(array, device, choose) {
  const numbers = array.dims.map(partsOf);
  const number = numbers.reduce((all, one) => all * one, 1);
  const mine = partAt(array, device);
  const index = numberOf(mine, numbers);
  const parts = Array.from({ length: NUM_DEVICES }, (_, one) => numberOf(partAt(array, one), numbers));
  const same = parts.flatMap((one, i) => (one === index ? [i] : []));
  const shown = array.dims.map((_, i) => i).filter((i) => numbers[i] > 1);
  const partText = (one) => shown.map((i) => partAt(array, one)[i]).join("·");
  const look = (one) => ({ index: parts[one], number, same: parts[one] === index, text: partText(one) });
  const cut = array.dims.map((dim) => `${dim.name} ${count(dim.size)}`).join(" × ");
  return [
    h("dl", { class: "facts" },
      fact(t("holders.whole"), `${cut} · ${array.dtype}${array.count > 1 ? ` × ${array.count}` : ""}`),
      fact(t("holders.parts"), number > 1 ? t("holders.cut", { number: count(number), axes: cutBy(array) }) : t("holders.uncut")),
      fact(t("holders.slice", { device: count(device) }), sliceText(array, mine)),
      fact(t("holders.bytes"), bytes(array.bytes)),
      fact(t("holders.same"), same.length === 1 ? t("holders.alone")
        : t("holders.devices", { number: count(same.length), list: someOf(same) }))),
    notesOn(array),
    h("div", { class: "beside" },
      h("figure", {}, h("figcaption", {}, t("holders.picture")), arrayPicture(array, numbers, mine)),
      h("figure", {}, h("figcaption", {}, t("holders.map")), deviceMap(look, device, choose, "holders"),
        h("p", { class: "note" }, t("holders.frames")))),
  ].filter(Boolean);
}

function cutBy(array) {
  return array.dims.filter((dim) => dim.axes.length).map((dim) => `${dim.name}: ${dim.axes.join(" × ")}`).join(", ");
}

function sliceText(array, mine) {
  return array.dims.map((dim, i) => {
    const layers = layersOf(dim, mine[i]);
    if (layers) return `${dim.name} [${someOf(layers, 9)}]`;
    return `${dim.name} [${count(mine[i] * dim.local)} : ${count((mine[i] + 1) * dim.local)}]`;
  }).join(", ");
}

// The model's layers in a part of the stack, where a pipeline puts them in an order of its own; else null.
function layersOf(dim, part) {
  const stages = DATA.arrays.stage_layers;
  if (dim.name !== DATA.arrays.stack || !stages || partsOf(dim) !== stages.length) return null;
  return stages[part].filter((layer) => layer >= 0);
}

function notesOn(array) {
  const notes = [];
  if (array.kind === "activations") notes.push(t("holders.microbatch"));
  if (DATA.arrays.zigzag && array.kind === "activations") notes.push(t("holders.zigzag"));
  if (array.dims.some((dim) => partsOf(dim) * dim.local > dim.size)) notes.push(t("holders.padding"));
  return notes.length ? h("p", { class: "note" }, notes.join(" ")) : null;
}

// The array as a rectangle of its two most interesting dims, cut into parts; the chosen device's part is framed.
function arrayPicture(array, numbers, mine) {
  const order = array.dims.map((_, i) => i).sort((a, b) =>
    (numbers[b] > 1) - (numbers[a] > 1) || array.dims[b].size - array.dims[a].size);
  const [down, across] = order.length > 1 ? order.slice(0, 2).sort((a, b) => a - b) : [null, order[0]];
  const [width, height] = [260, down === null ? 44 : 180];
  const columns = numbers[across];
  const rows = down === null ? 1 : numbers[down];
  const number = numbers.reduce((all, one) => all * one, 1);
  const [w, d] = [width / columns, height / rows];
  const cells = [];
  if (columns * rows <= 1024) {
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const part = mine.slice();
        if (down !== null) part[down] = row;
        part[across] = column;
        cells.push(s("rect", { x: column * w, y: row * d, width: w, height: d, class: "array-part",
          "data-fine": columns * rows > 300, style: { fill: partColour(numberOf(part, numbers), number) } }));
      }
    }
  }
  const frame = { x: mine[across] * w, y: down === null ? 0 : mine[down] * d, width: Math.max(w, 2), height: Math.max(d, 2) };
  const title = (dim) => t(numbers[dim] > 1 ? "holders.dim_cut" : "holders.dim_whole", {
    dim: array.dims[dim].name, size: count(array.dims[dim].size), parts: count(numbers[dim]) });
  const fixed = array.dims.map((_, i) => i).filter((i) => numbers[i] > 1 && i !== down && i !== across);
  return h("div", { class: "array-picture" },
    h("span", {}, t("holders.across", { dim: title(across) })),
    down === null ? null : h("span", {}, t("holders.down", { dim: title(down) })),
    s("svg", { viewBox: `-3 -3 ${width + 6} ${height + 6}`, role: "img", "aria-label": sliceText(array, mine) },
      s("rect", { x: 0, y: 0, width, height, class: "array-whole" }), cells, s("rect", { ...frame, class: "array-mine" })),
    fixed.map((i) => h("small", {}, t("holders.fixed", { dim: array.dims[i].name, part: count(mine[i]), parts: count(numbers[i]) }))));
}
