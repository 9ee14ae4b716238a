// Blocks of attention on each shard of the length: in one piece each, and dealt out in a zigzag.

const ORDERS = { contiguous: "#e69f00", zigzag: "#0072b2" };

section("balance", (root) => {
  const { windows, order } = DATA.balance;
  root.append(legend(Object.entries(ORDERS).map(([name, colour]) =>
    [colour, t(`balance.${name}`) + (name === order ? t("balance.given") : "")])));
  for (const one of windows) {
    const title = one.window === null ? t("balance.causal") : t("balance.window", { window: count(one.window) });
    const most = Math.max(...(one.contiguous ?? []), ...(one.zigzag ?? []));
    root.append(h("figure", {}, h("figcaption", {}, title),
      h("div", { class: "pairs", role: "img", "aria-label": pairsText(one) },
        Array.from({ length: DATA.balance.num_shards }, (_, shard) => pair(one, shard, most))),
      h("p", { class: "note" }, t("balance.shards"), " ", pairsText(one))));
  }
});

function pair(one, shard, most) {
  const columns = Object.keys(ORDERS).filter((name) => one[name]).map((name) =>
    h("span", { class: "column", title: `${t(`balance.${name}`)}: ${count(one[name][shard])}`,
      style: { height: `${(one[name][shard] / most) * 100}%`, "--colour": ORDERS[name] } },
    DATA.balance.num_shards <= 16 ? h("i", {}, count(one[name][shard])) : null));
  return h("div", { class: "pair" }, h("div", { class: "columns" }, columns), h("span", { class: "shard" }, String(shard)));
}

// How much more than the mean the busiest shard has.
function pairsText(one) {
  return Object.keys(ORDERS).filter((name) => one[name]).map((name) => {
    const blocks = one[name];
    const times = (Math.max(...blocks) * blocks.length) / sum(blocks);
    return t("balance.busiest", { order: t(`balance.${name}`), times: times.toFixed(2) });
  }).join(" ");
}
