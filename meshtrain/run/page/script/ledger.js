// The traffic of a step, line by line, to sort and to filter; of an audit with what became of the plan.

const ledger = { sort: null, down: true, text: "", axes: "", kind: "", status: "" };
const MOST_LINES = 400;
const STATUSES = ["expected", "larger", "missing", "surprising"];

section("ledger", (root) => {
  const audited = DATA.kind === "audit";
  const lines = DATA.traffic.lines;
  if (!lines.length) {
    root.append(h("p", { class: "note" }, t("ledger.none")));
    return;
  }
  ledger.sort ??= "seconds";
  const area = h("div", {});
  const draw = () => {
    const sorted = document.activeElement?.dataset?.sort;
    area.replaceChildren(...ledgerTable(lines, audited, draw));
    if (sorted) area.querySelector(`[data-sort="${sorted}"]`)?.focus();
  };
  const filter = (key) => (value) => { ledger[key] = value; draw(); };
  const all = [["", t("ledger.all")]];
  const some = (key) => [...all, ...[...new Set(lines.map((line) => nameOf(line, key)))].sort().map((one) => [one, one])];
  const search = h("input", { type: "search", value: ledger.text, on: { input: () => filter("text")(search.value) } });
  root.append(h("dl", { class: "facts" }, totals(audited)),
    h("div", { class: "controls" },
      choice(t("ledger.axes"), some("axes"), ledger.axes, filter("axes")),
      choice(t("ledger.kind"), some("kind"), ledger.kind, filter("kind")),
      audited ? choice(t("ledger.status"), [...all, ...STATUSES.map((one) => [one, t(`status.${one}`)])], ledger.status,
        filter("status")) : null,
      h("label", { class: "control" }, h("span", {}, t("ledger.search")), search)),
    area);
  draw();
});

function nameOf(line, key) {
  return (key === "axes" ? line.axes.join(" × ") : line[key]) || "–";
}

function totals(audited) {
  const { planned, found, overlapped, lines } = DATA.traffic;
  const facts = [fact(t("ledger.planned"), bytes(planned))];
  if (!audited) {
    return [...facts, fact(t("ledger.seconds"), seconds(sum(lines.map((line) => line.seconds)))),
      fact(t("ledger.waited"), seconds(DATA.time.exposed)), fact(t("ledger.hidden"), seconds(DATA.time.hidden_in_all))];
  }
  facts.push(fact(t("ledger.found"), `${bytes(found)}${planned ? ` (${signed(found / planned - 1)})` : ""}`));
  facts.push(fact(t("ledger.overlapped"), found ? percent(overlapped / found) : "–"));
  for (const status of STATUSES) {
    const of = lines.filter((line) => line.status === status);
    facts.push(fact(t(`status.${status}`), t("ledger.lines", { number: count(of.length),
      size: bytes(sum(of.map((line) => Math.max(line.found, line.planned)))) })));
  }
  return facts;
}

// Columns: [key, how a cell is written, whether it is a number].
function ledgerColumns(audited) {
  const planned = ["planned", (line) => bytes(line.planned), true];
  const columns = [
    ["axes", (line) => nameOf(line, "axes")], ["kind", (line) => h("code", {}, line.kind)],
    ["phase", (line) => t(`phase.${line.phase}`)], ["times", (line) => count(line.times), true], planned,
    ["link", (line) => (line.link ? t(`link.${line.link}`) : "–")], ["seconds", (line) => seconds(line.seconds), true],
    ["why", (line) => h("div", { class: "why", lang: "en" }, line.why, line.note ? h("small", {}, line.note) : null,
      line.source ? h("small", {}, line.source) : null)],
  ];
  if (!audited) return columns;
  columns.unshift(["status", (line) => h("span", { class: `status ${line.status}` }, t(`status.${line.status}`))]);
  columns.splice(columns.indexOf(planned) + 1, 0, ["found", (line) => bytes(line.found), true],
    ["overlapped", (line) => (line.found ? percent(line.overlapped / line.found, 0) : "–"), true]);
  return columns;
}

function ledgerTable(lines, audited, draw) {
  const wanted = ledger.text.toLowerCase();
  const kept = lines.filter((line) =>
    ["axes", "kind", "status"].every((key) => !ledger[key] || nameOf(line, key) === ledger[key]) &&
    (!wanted || [line.axes.join(" "), line.kind, line.phase, line.why, line.note, line.source].join(" ").toLowerCase().includes(wanted)));
  const value = (line) => (ledger.sort === "axes" ? nameOf(line, "axes") : line[ledger.sort] ?? "");
  kept.sort((a, b) => {
    const [one, other] = [value(a), value(b)];
    const order = typeof one === "number" ? one - other : String(one).localeCompare(String(other), "en");
    return ledger.down ? -order : order;
  });
  const columns = ledgerColumns(audited);
  const heads = columns.map(([key, , number]) => ({
    class: number ? "number" : null,
    "aria-sort": ledger.sort === key ? (ledger.down ? "descending" : "ascending") : "none",
    text: h("button", { type: "button", "data-sort": key, on: { click: () => {
      ledger.down = ledger.sort === key ? !ledger.down : Boolean(number);
      ledger.sort = key;
      draw();
    } } }, t(`ledger.${key}`)),
  }));
  const rows = kept.slice(0, MOST_LINES).map((line) => columns.map(([, write, number]) =>
    ({ text: write(line), class: number ? "number" : null })));
  const shown = t("ledger.shown", { shown: count(rows.length), all: count(lines.length) });
  return [table(heads, rows, { "aria-label": t("ledger.title"), class: "ledger" }), h("p", { class: "note" }, shown)];
}
