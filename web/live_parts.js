/**
 * Parts of the live page: numbers and times for readers, tables, lines of the last minutes, and `morph`, which changes a
 * document as little as it can, so that focus, selection and scrolled places stay where they are while numbers change.
 */
"use strict";
globalThis.ottla ??= {};
{
  const { el, number, visible } = ottla.draw;

  /** Bytes, as the commands write them. */
  function size(bytes) {
    if (bytes == null) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let [value, at] = [bytes, 0];
    while (value >= 1024 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
    return at === 0 ? `${Math.round(value)} B` : `${value.toFixed(1)} ${units[at]}`;
  }

  /** A duration in ms. */
  function duration(ms) {
    if (ms == null) return "–";
    if (ms < 1000) return `${Math.round(ms)} ms`;
    const seconds = Math.floor(ms / 1000);
    if (seconds < 120) return `${seconds} s`;
    return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
  }

  /** A timestamp in ms: date and time in UTC. */
  function time(ms) {
    const date = ms == null || ms < 0 ? null : new Date(ms);
    return date === null || Number.isNaN(date.getTime()) ? "–" : date.toISOString().replace("T", " ").replace("Z", "");
  }

  const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

  /** A word that says a state, with a colour; the word alone is enough. */
  const badge = (text, kind = "plain") => el("span", { class: `badge ${kind}` }, text);

  /**
   * A table. A column is [heading, function of a row → cell, {kind: "number" | "wide", head: whether it names the row}]; on
   * a phone each row is a few lines, and a cell has its heading before it.
   */
  function table(label, columns, rows, { key = null, empty = "Nothing." } = {}) {
    if (rows.length === 0) return el("p", { class: "soft" }, empty);
    return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
      el("table", { class: "rows" },
        el("thead", {}, el("tr", {}, columns.map(([heading, , { kind } = {}]) => el("th", { scope: "col", class: kind }, heading)))),
        el("tbody", {}, rows.map((row) => el("tr", { "data-key": key?.(row) ?? false },
          columns.map(([heading, cell, { kind, head } = {}]) =>
            el(head ? "th" : "td", { class: kind, scope: head && "row", "data-label": !head && heading }, cell(row) ?? "–")))))));
  }

  const SVG = "http://www.w3.org/2000/svg";

  /** The course of a number in the last minutes, as a line; `words` say what it is. */
  function course(values, words) {
    const [width, height] = [120, 24];
    const known = values.filter((each) => each != null);
    const most = Math.max(1, ...known);
    const step = width / Math.max(1, values.length - 1);
    const points = values.map((each, at) => each == null ? null : `${(at * step).toFixed(1)},${(height - 2 - each / most * (height - 4)).toFixed(1)}`);
    const svg = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height, class: "course", role: "img",
      "aria-label": `${words}: now ${number(known.at(-1) ?? null)}, at most ${number(known.length ? Math.max(...known) : null)}` })) {
      svg.setAttribute(name, value);
    }
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", points.filter(Boolean).join(" "));
    svg.append(line);
    return svg;
  }

  /** Links to the pages before and after this one, and where this one is. */
  function pages({ page, page_size: pageSize, total }, address, noun) {
    const last = Math.max(0, Math.ceil(total / pageSize) - 1);
    if (last === 0) return el("p", { class: "soft" }, counted(total, noun));
    const first = page * pageSize + 1;
    const to = (at, text) => at < 0 || at > last ? el("span", { class: "soft" }, text) : el("a", { href: address(at) }, text);
    return el("nav", { class: "pages", "aria-label": "Pages" }, to(page - 1, "Previous"),
      el("span", {}, `${number(first)}–${number(Math.min(total, first + pageSize - 1))} of ${counted(total, noun)}`), to(page + 1, "Next"));
  }

  /** Make `from` look like `to` and keep every node that is in both: text, attributes and children are compared. */
  function morph(from, to) {
    if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName || from.dataset?.key !== to.dataset?.key) {
      from.replaceWith(to);
      return;
    }
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.data !== to.data) from.data = to.data;
      return;
    }
    for (const { name } of [...from.attributes]) {
      // A reader has opened it.
      if (!to.hasAttribute(name) && !(name === "open" && from.nodeName === "DETAILS")) from.removeAttribute(name);
    }
    for (const { name, value } of to.attributes) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    const [old, now] = [[...from.childNodes], [...to.childNodes]];
    now.forEach((each, at) => at < old.length ? morph(old[at], each) : from.append(each));
    old.slice(now.length).forEach((each) => each.remove());
  }

  ottla.parts = { size, duration, time, counted, badge, table, course, pages, morph, visible };
}
