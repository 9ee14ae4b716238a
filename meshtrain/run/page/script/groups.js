// The groups of ranks that an axis brings together, drawn on the nodes, and the link that they run on.

const grouped = { axis: null, device: 0 };

section("groups", (root) => {
  const axes = MESH.axes.filter((axis) => axis.size > 1);
  if (!axes.length) {
    root.append(h("p", { class: "note" }, t("groups.one_device")));
    return;
  }
  grouped.axis ??= axes[axes.length - 1].name;
  const area = h("div", { class: "groups", "aria-live": "polite" });
  const device = deviceControl(grouped.device, (value) => choose(value));
  function choose(value) {
    grouped.device = value;
    device.querySelector("input").value = value;
    draw();
  }
  function draw() {
    const focus = document.activeElement?.closest?.("[data-part=groups] [data-device]")?.dataset.device;
    area.replaceChildren(...groups(axes.find((axis) => axis.name === grouped.axis), grouped.device, choose));
    if (focus) area.querySelector(`[data-device="${focus}"]`)?.focus();
  }
  root.append(h("div", { class: "controls" },
    switches(t("groups.axis"), "axis", axes.map((axis) => [axis.name, `${axis.name} = ${count(axis.size)}`]), grouped.axis,
      (name) => { grouped.axis = name; draw(); }), device), area);
  draw();
});

// The number of a device's group along an axis: its rank with that axis left out.
function groupAt(device, axis) {
  return Math.floor(device / (axis.stride * axis.size)) * axis.stride + (device % axis.stride);
}

function groups(axis, device, choose) {
  const number = NUM_DEVICES / axis.size;
  const mine = groupAt(device, axis);
  const first = Math.floor(mine / axis.stride) * axis.stride * axis.size + (mine % axis.stride);
  const members = Array.from({ length: axis.size }, (_, i) => first + i * axis.stride);
  const nodes = new Set(members.map((one) => Math.floor(one / BOX))).size;
  const look = (one) => ({ index: groupAt(one, axis), number, same: groupAt(one, axis) === mine, cycles: true });
  return [
    h("dl", { class: "facts" },
      fact(t("groups.does"), axis.roles.map(role).join(", ") || "–"),
      fact(t("groups.number"), t("groups.of", { number: count(number), size: count(axis.size) })),
      fact(t("groups.apart"), t("groups.stride", { stride: count(axis.stride) })),
      fact(t("groups.link"), t("groups.runs", { link: t(`link.${axis.link}`), rate: rate(axis.rate) })),
      fact(t("groups.of_device", { device: count(device) }), someOf(members, 10)),
      fact(t("groups.nodes"), count(nodes))),
    deviceMap(look, device, choose, "groups"),
  ];
}
