// Who this page is about, and the numbers that most people ask for.

section("header", (root) => {
  const run = DATA.run;
  const mesh = DATA.mesh.axes.map((axis) => `${axis.name}=${count(axis.size)}`).join(" × ") || t("one_device");
  root.append(
    h("p", { class: "kind" }, t(`kind.${DATA.kind}`)),
    h("h1", {}, run.layout),
    h("p", { class: "subtitle" }, t("header.on", { devices: count(run.num_devices), gpu: run.gpu, cluster: run.cluster })),
    h("p", { class: "said" }, page.language === "en" ? `${run.words}.` : rolesText()),
    h("dl", { class: "facts" },
      fact(t("header.mesh"), mesh),
      fact(t("header.parameters"), power(run.num_parameters)),
      fact(t("header.batch"), t("header.rows", {
        rows: count(run.global_batch), length: count(run.length), tokens: count(run.global_batch * run.length) })),
      fact(t("header.compute"), run.compute),
      fact(t("header.remat"), run.remat)),
  );
});

// What the axes do, one by one: the layout's sentence where the language is not that of the planner.
function rolesText() {
  return DATA.mesh.axes.filter((axis) => axis.roles.length)
    .map((axis) => `${axis.name}: ${axis.roles.map(role).join(", ")}`).join(" · ");
}

// A role of an axis, such as `context parallelism (ring attention, zigzag)`: what stands in brackets are names.
function role(phrase) {
  const [, name, more] = phrase.match(/^(.*?)( \(.*\))?$/);
  return term("role", name) + (more ?? "");
}

section("headline", (root) => {
  const it = DATA.headline;
  const tiles = [
    tile("step", seconds(it.seconds), flopRate(it.flops_per_device) + t("headline.a_gpu")),
    tile("tokens", `${count(it.tokens_per_second)}/s`, t("headline.all_gpus", { devices: count(DATA.run.num_devices) })),
    tile("mfu", percent(it.mfu), t("headline.hfu", { hfu: percent(it.hfu) })),
    tile("memory", bytes(it.peak), t("headline.of", { limit: bytes(it.limit), verdict: t(`verdict.${it.verdict}`) }),
      it.verdict === "does not fit" ? "bad" : it.verdict === "just fits" ? "warn" : "good"),
    tile("bubble", it.bubble === null ? "–" : percent(it.bubble),
      it.bubble === null ? t("headline.no_pipeline") : t("headline.idle")),
    tile("goodput", it.goodput === null ? "–" : percent(it.goodput.share),
      it.goodput === null ? t("headline.no_failures") : t("headline.failures", {
        hours: time(it.goodput.between_failures), save: time(it.goodput.advised) })),
    tile("cost", `${power(it.gpu_hours)} GPU h`,
      it.usd === null ? t("headline.no_price") : t("headline.price", { usd: count(it.usd) })),
    tile("whole", time(it.run.hours * 3600), t("headline.steps", { steps: count(it.run.steps), hours: power(it.run.gpu_hours) })
      + (it.run.usd === null ? "" : `, ${t("headline.price", { usd: count(it.run.usd) })}`)),
  ];
  if (DATA.compiled) {
    const { peak, predicted } = DATA.compiled;
    const off = predicted ? t("headline.off", { off: signed(predicted / peak - 1) }) : "";
    tiles.splice(4, 0, tile("compiled", bytes(peak), off));
    tiles.pop();
  }
  root.append(h("div", { class: "tiles" }, tiles));
});

function tile(name, value, below, state = "") {
  return h("div", { class: `tile ${state}`, "data-tile": name },
    h("div", { class: "tile-name" }, t(`headline.${name}`)),
    h("div", { class: "tile-value" }, value),
    h("div", { class: "tile-below" }, below));
}

function signed(share) {
  return `${share >= 0 ? "+" : "−"}${percent(Math.abs(share))}`;
}
