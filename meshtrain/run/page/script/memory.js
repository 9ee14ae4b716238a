// Memory of one device by class, for the layout and for ZeRO 0 to 3 of it, against the device's limit.

// Families of classes, in the order in which a bar is drawn: [colour, classes].
const FAMILIES = {
  state: ["#0072b2", ["optimizer state", "batch"]],
  weights: ["#56b4e9", ["compute copy", "gathered tables", "piece"]],
  gradients: ["#e69f00", ["gradients", "gradient sums", "table gradients"]],
  activations: ["#009e73", ["saved activations", "pipeline slots", "pipeline tape", "tape at work"]],
  passing: ["#8a93a0", []],
};

let chosenBar = null;

section("memory", (root) => {
  const memory = DATA.memory;
  chosenBar ??= memory.bars.findIndex((one) => one.given);
  const peaks = memory.bars.filter((one) => !one.refused).map((one) => one.peak);
  // As wide as the largest, unless that would leave nothing to see of the others.
  const widest = Math.max(memory.limit * 2, Math.min(...peaks) * 1.3);
  const most = Math.min(Math.max(memory.limit * 1.12, ...peaks.map((peak) => peak * 1.02)), widest);
  const rows = h("div", { class: "bars", role: "radiogroup", "aria-label": t("memory.choose") });
  const detail = h("div", { class: "detail", "aria-live": "polite" });
  const choose = (index) => {
    chosenBar = index;
    rows.querySelectorAll(".bar-row").forEach((row, i) => row.setAttribute("aria-checked", String(i === index)));
    detail.replaceChildren(...memoryTable(memory.bars[index]));
  };
  rows.append(...memory.bars.map((one, i) => memoryRow(one, most, () => choose(i))));
  root.append(
    legend([...Object.entries(FAMILIES).map(([name, [colour]]) => [colour, t(`family.${name}`), name === "passing"])]),
    h("div", { class: "scale" }, h("span", { style: { left: `${(memory.limit / most) * 100}%` } },
      t("memory.limit", { limit: bytes(memory.limit) }))),
    rows);
  if (!memory.movable) root.append(h("p", { class: "note" }, t("memory.not_movable")));
  if (memory.compiled) root.append(h("p", { class: "note" }, h("span", { class: "diamond", "aria-hidden": "true" }),
    t("memory.compiled", { peak: bytes(memory.compiled) })));
  root.append(detail);
  choose(chosenBar);
});

function memoryRow(one, most, choose) {
  const memory = DATA.memory;
  const name = t("memory.stage", { stage: one.stage });
  const label = h("span", { class: "bar-name" }, one.stage ? name : t("memory.none"),
    one.given ? h("em", {}, t("memory.given")) : null);
  if (one.refused) {
    return h("div", { class: "bar-row refused", role: "radio", "aria-checked": "false", "aria-disabled": "true" },
      label, h("span", { class: "refusal", title: one.refused }, t("memory.refused")));
  }
  const marks = [{ at: memory.limit, class: "limit", label: t("memory.limit", { limit: bytes(memory.limit) }) }];
  if (one.given && memory.compiled) {
    marks.push({ at: memory.compiled, class: "compiled", label: t("memory.compiled", { peak: bytes(memory.compiled) }) });
  }
  const fits = one.peak <= memory.limit;
  const total = h("span", { class: fits ? "bar-value" : "bar-value over" }, bytes(one.peak),
    h("small", {}, fits ? seconds(one.seconds) : t("memory.over", { over: bytes(one.peak - memory.limit) })));
  const press = (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); }
  };
  return h("div", { class: one.given ? "bar-row given" : "bar-row", role: "radio", tabindex: "0", "aria-checked": "false",
    "data-stage": one.stage, on: { click: choose, keydown: press } },
    label, bar(segmentsOf(one), most, marks, `${name}: ${bytes(one.peak)}`), total);
}

// What is kept, family by family, then the largest of what comes and goes: together the peak.
function segmentsOf(one) {
  const kept = one.parts.filter((part) => !part.transient);
  const shown = [];
  for (const [colour, classes] of Object.values(FAMILIES)) {
    for (const part of kept.filter((part) => classes.includes(part.name))) shown.push(segment(part, colour));
  }
  const known = Object.values(FAMILIES).flatMap(([, classes]) => classes);
  for (const part of kept.filter((part) => !known.includes(part.name))) shown.push(segment(part, FAMILIES.passing[0]));
  const passing = largestPassing(one);
  if (passing) shown.push({ ...segment(passing, FAMILIES.passing[0]), hatched: true });
  return shown;
}

function segment(part, colour) {
  return { value: part.num_bytes, colour, label: `${term("part", part.name)}: ${bytes(part.num_bytes)}` };
}

function largestPassing(one) {
  return one.parts.filter((part) => part.transient).sort((a, b) => b.num_bytes - a.num_bytes)[0];
}

function memoryTable(one) {
  const counted = largestPassing(one);
  const colourOf = (part) =>
    Object.values(FAMILIES).find(([, classes]) => classes.includes(part.name))?.[0] ?? FAMILIES.passing[0];
  const rows = one.parts.map((part) => {
    const aside = part.transient && part !== counted;
    const what = [part.what ? term("what", part.what) : "", aside ? t("memory.not_counted") : ""].filter(Boolean).join("; ");
    return {
      attributes: { class: aside ? "aside" : null },
      cells: [h("span", { class: "named" }, swatch(colourOf(part), part.transient),
        h("span", {}, term("part", part.name), what ? h("small", {}, what) : null)),
        { text: bytes(part.num_bytes), class: "number" },
        { text: percent(part.num_bytes / DATA.memory.limit), class: "number" }],
    };
  });
  rows.push({ attributes: { class: "total" }, cells: [t("memory.peak"), { text: bytes(one.peak), class: "number" },
    { text: percent(one.peak / DATA.memory.limit), class: "number" }] });
  const title = one.stage ? t("memory.stage", { stage: one.stage }) : t("memory.none");
  return [h("h3", {}, t("memory.classes", { name: title })),
    table([t("memory.class"), { text: t("memory.bytes"), class: "number" },
      { text: t("memory.share"), class: "number" }], rows, { "aria-label": t("memory.classes", { name: title }) })];
}
