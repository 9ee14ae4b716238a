// The pipeline's schedule as a chart: a row for each stage, time from left to right, from the very table that is run.

const gantt = { form: "locked", zoom: "fit" };
const OPS = [["forward", "#0072b2"], ["backward", "#e69f00"], ["weight", "#009e73"]];

section("pipeline", (root) => {
  const pipeline = DATA.pipeline;
  const area = h("div", {});
  const draw = () => area.replaceChildren(...ganttChart(pipeline, pipeline.tables[gantt.form]));
  root.append(
    h("dl", { class: "facts" },
      fact(t("pipeline.schedule"), pipeline.schedule),
      fact(t("pipeline.stages"), count(pipeline.num_stages)),
      fact(t("pipeline.repeats"), count(pipeline.repeats)),
      fact(t("pipeline.microbatches"), count(pipeline.num_microbatches)),
      fact(t("pipeline.layers"), layersText(pipeline.layers)),
      fact(t("pipeline.live"), count(pipeline.live_inputs)),
      fact(t("pipeline.sends"), `${count(pipeline.sends.forward)} + ${count(pipeline.sends.backward)}`)),
    h("div", { class: "controls" },
      switches(t("pipeline.form"), "form", [["locked", t("pipeline.locked")], ["free", t("pipeline.free")]], gantt.form,
        (form) => { gantt.form = form; draw(); }),
      switches(t("pipeline.zoom"), "zoom", [["fit", t("pipeline.fit")], ["large", t("pipeline.large")]], gantt.zoom,
        (zoom) => { gantt.zoom = zoom; draw(); })),
    area);
  draw();
});

function layersText(layers) {
  const [least, most] = [Math.min(...layers), Math.max(...layers)];
  return least === most ? count(most) : `${least} – ${most}`;
}

function ganttChart(pipeline, { ops, ticks, num_columns, idle }) {
  const columns = ticks.length;
  const large = gantt.zoom === "large";
  const width = large ? 24 : Math.max(1040 / columns, 1);
  const height = large ? 24 : Math.min(Math.max(240 / pipeline.num_stages, 12), 24);
  const margin = 34;
  const used = new Set();
  const cells = [];
  const chunks = pipeline.repeats;
  for (let at = 0; at < ops.length; at += 5) {
    const [stage, column, op, microbatch, chunk] = ops.slice(at, at + 5);
    used.add(op);
    const x = margin + column * width;
    const solid = chunks > 1 ? 1 - (0.6 * chunk) / (chunks - 1) : 1;
    cells.push(s("rect", { x: x + 0.4, y: stage * height + 0.6, width: Math.max(width - 0.8, 0.6), height: height - 1.2,
      class: "op", "data-op": `${stage},${ticks[column]},${op},${microbatch},${chunk}`,
      style: { fill: OPS[op][1], "fill-opacity": solid } }));
    if (width >= 15) {
      cells.push(s("text", { x: x + width / 2, y: (stage + 0.5) * height, class: op || solid < 0.6 ? "op-name dark" : "op-name" },
        String(microbatch)));
    }
  }
  const names = Array.from({ length: pipeline.num_stages }, (_, stage) =>
    s("text", { x: margin - 6, y: (stage + 0.5) * height, class: "stage-name" }, String(stage)));
  const full = [margin + columns * width + 2, pipeline.num_stages * height];
  const said = h("p", { class: "readout", "aria-live": "polite" }, t("pipeline.hover"));
  const tell = (event) => {
    const op = event.target.dataset?.op;
    if (op) said.replaceChildren(opText(op.split(",").map(Number), chunks));
  };
  const svg = s("svg", { viewBox: `0 0 ${full[0]} ${full[1]}`, width: large ? full[0] : "100%", height: large ? full[1] : null,
    class: "gantt", role: "img", "aria-label": t("pipeline.aria", { stages: count(pipeline.num_stages), idle: percent(idle) }),
    on: { mouseover: tell, click: tell } }, s("rect", { x: margin, y: 0, width: columns * width, height: full[1], class: "idle" }),
  names, cells);
  const keys = OPS.map(([name, colour], op) => [colour, t(`pipeline.${name}`), false, op]).filter(([, , , op]) => used.has(op));
  const cut = columns < num_columns
    ? h("p", { class: "note cut-note" }, t("pipeline.cut", { drawn: count(columns), all: count(num_columns) })) : null;
  return [h("div", { class: "gantt-head" }, legend([...keys, ["var(--idle)", t("pipeline.idle", { idle: percent(idle) })]]),
    chunks > 1 ? h("span", { class: "note" }, t("pipeline.shades")) : null),
  h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("pipeline.title") }, svg), said, cut].filter(Boolean);
}

function opText([stage, tick, op, microbatch, chunk], chunks) {
  const text = t("pipeline.op", { stage, tick, op: t(`pipeline.${OPS[op][0]}`), microbatch });
  return chunks > 1 ? `${text}, ${t("pipeline.chunk", { chunk })}` : text;
}
