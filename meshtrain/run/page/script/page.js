// The page's few tools: words of the chosen language, elements, and sections that can be drawn again.

const WORDS = JSON.parse(document.getElementById("words").textContent);
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = document.getElementById("hatch").namespaceURI;

const page = { language: "en", sections: new Map() };

// The label of a key in the chosen language; {name} in it is replaced by values.name.
function t(key, values = {}) {
  const text = WORDS[page.language][key] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

// A word that the planner uses (a class of memory, a cause of time): its label, or itself where it has none.
function term(kind, name) {
  return WORDS[page.language][`${kind}.${name}`] ?? name;
}

// An element. Attributes: `on` has listeners, `style` an object of properties; null leaves one out. Text is text.
function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

// The same for an element of a drawing.
function s(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listen] of Object.entries(value)) element.addEventListener(event, listen);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// Registers what fills a part of the page: draw(root), called again when the language changes.
function section(name, draw) {
  page.sections.set(name, draw);
}

// A labelled choice. options: [value, text]; a group of options is [text, [[value, text], ...]].
function choice(label, options, value, change) {
  const option = ([one, text]) =>
    Array.isArray(text)
      ? h("optgroup", { label: one }, text.map(option))
      : h("option", { value: one, selected: String(one) === String(value) }, text);
  const select = h("select", { on: { change: () => change(select.value) } }, options.map(option));
  return h("label", { class: "control" }, h("span", {}, label), select);
}

// A few choices side by side, one of which holds.
function switches(label, name, options, value, change) {
  return h(
    "fieldset", { class: "switch" }, h("legend", {}, label),
    options.map(([one, text]) =>
      h("label", {},
        h("input", { type: "radio", name, value: one, checked: one === value, on: { change: () => change(one) } }),
        h("span", {}, text))),
  );
}

// A table: heads and rows of cells; a cell is text, an element, or {text, class}.
function table(heads, rows, attributes = {}) {
  const cell = (tag) => (one) => {
    const plain = one === null || one === undefined || typeof one !== "object" || one instanceof Node;
    const { text, ...rest } = plain ? { text: one ?? "" } : one;
    return h(tag, rest, text);
  };
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": attributes["aria-label"] },
    h("table", attributes,
      h("thead", {}, h("tr", {}, heads.map(cell("th")))),
      h("tbody", {}, rows.map((row) => h("tr", row.attributes ?? {}, (row.cells ?? row).map(cell("td")))))));
}
