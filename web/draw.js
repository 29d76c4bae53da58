/**
 * The drawing vocabulary of Ottla's pages: a log is a row of cells, an epoch is a colour, the high watermark is a line, a copy
 * in the remote tier is a bar, a message is an arrow.
 *
 * Every function returns a node for the document. Text that comes from a log or from a client is only ever set as text.
 * `ottla.css` has the colours; a cell has its epoch's number, too, so that no colour has to be recognised.
 */
"use strict";
globalThis.ottla ??= {};
ottla.traces ??= {};
{
  const EPOCH_COLOURS = 8;
  /** A table with more columns than these leaves out offsets at which nothing is or begins. */
  const MAX_COLUMNS = 48;
  const MAX_ENTRIES = 200;
  const MAX_LETTERS = 600;

  /**
   * An element with attributes and children. A function is a listener, a `style` an object of properties, `false` and
   * `null` are left out; a child that is a string or a number becomes text.
   */
  function el(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value === false || value == null) continue;
      if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value);
      else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat(Infinity).filter((child) => child != null && child !== false).map((child) =>
      child instanceof Node ? child : String(child)));
    return element;
  }

  /** A text without letters that cannot be seen or that change the order of others: they are shown as pictures or codes. */
  function visible(text) {
    return String(text)
      .replace(/[\u0000-\u001f]/g, (letter) => String.fromCharCode(0x2400 + letter.charCodeAt(0)))
      .replace(/[\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
        (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
  }

  /** A number with thin spaces between thousands. */
  const number = (value) => value == null ? "–" : String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");

  const colour = (epoch) => `epoch-${((epoch % EPOCH_COLOURS) + EPOCH_COLOURS) % EPOCH_COLOURS}`;

  /** A leader epoch: "e3" in its colour; with a start offset "e3@7". */
  const epoch = (number, start) =>
    el("span", { class: `epoch ${colour(number)}` }, start == null ? `e${number}` : `e${number}@${start}`);

  /** The entries of a leader-epoch-checkpoint, [[epoch, start offset], …]. */
  const epochs = (entries) => el("span", { class: "checkpoint" }, entries.map(([number, start]) => epoch(number, start)));

  /** The epoch of an offset by a checkpoint, or null. */
  const epochAt = (entries, offset) => (entries ?? []).reduce((found, [number, start]) => start <= offset ? number : found, null);

  /**
   * The replicas' logs and the copies in the remote tier, as one table with a column for each offset.
   *
   * `before` is the moment before: what it has not is new. `against` is the same moment of another run: what differs from it
   * is marked. `columns` are the offsets to show when others are to have the same place, `titles` the words below a replica's
   * name, if not its state.
   */
  function logs({ replicas, tier }, { before = null, against = null, columns = offsets([{ replicas, tier }]), titles = state } = {}) {
    const byName = (moment) => new Map((moment?.replicas ?? []).map((each) => [each.name, each]));
    const [earlier, others] = [byName(before), byName(against)];
    const hasEpochs = replicas.some((each) => each.epochs);
    const copies = tier?.copies ?? [];
    return el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Logs" },
      el("table", { class: "logs" },
        el("thead", {}, el("tr", {},
          el("th", { scope: "col" }, "offset"),
          columns.map((offset) => el("th", { scope: "col" }, number(offset))),
          el("th", { scope: "col", class: "after" }, hasEpochs ? "checkpoint" : el("span", { class: "unseen" }, "end")))),
        el("tbody", {},
          replicas.map((replica) => log(replica, columns, titles, {
            earlier: before && (earlier.get(replica.name) ?? {}), other: against && (others.get(replica.name) ?? {}),
          })),
          copies.map((copy, at) => copyRow(copy, columns, at === 0, against && !hasCopy(against.tier, copy))))));
  }

  /** The offsets that have a column: all from the first to the last, or only those at which something is. */
  function offsets(steps) {
    const found = new Set();
    for (const { replicas = [], tier } of steps) {
      for (const each of replicas) {
        for (const cell of each.cells ?? []) found.add(cell.offset);
        if (each.log_start_offset < each.log_end_offset) found.add(each.log_start_offset);
      }
      for (const copy of tier?.copies ?? []) found.add(copy.start_offset).add(copy.end_offset - 1);
    }
    const sorted = [...found].sort((one, other) => one - other);
    if (sorted.length === 0) return [0];
    const [first, last] = [sorted[0], sorted.at(-1)];
    return last - first < MAX_COLUMNS ? Array.from({ length: last - first + 1 }, (_, at) => first + at) : sorted;
  }

  /** What a replica is, in words. */
  function state(replica) {
    const { leader, leader_epoch: believed } = replica.believes ?? {};
    switch (replica.state) {
      case "leader": return [`leader, e${replica.leader_epoch}`, replica.isr && `ISR ${replica.isr.join(" ")}`];
      case "follower": return [leader == null ? "follower" : `follows ${leader}, e${believed ?? replica.leader_epoch}`];
      case "unassigned": return ["no role yet"];
      default: return [replica.state];
    }
  }

  function log(replica, columns, titles, { earlier, other }) {
    const { name, high_watermark: watermark, last_stable_offset: stable, log_end_offset: end } = replica;
    const [cells, oldCells, otherCells] = [replica, earlier, other].map(cellsOf);
    const segments = new Set(replica.segments ?? []);
    const isStableLower = stable != null && watermark != null && stable < watermark;
    const lines = (isHere, offset) => [
      isHere(watermark) && line("HW", watermark, other && (other.high_watermark ?? null) !== watermark, offset),
      isStableLower && isHere(stable) && line("LSO", stable, false, offset, "stable"),
    ];
    const place = (offset, at) => {
      const kind = placeOf(replica, offset, cells.get(offset));
      const marks = [
        other && kind !== placeOf(other, offset, otherCells.get(offset)) && "differs",
        earlier && kind !== placeOf(earlier, offset, oldCells.get(offset)) && "new",
      ].filter(Boolean).join(" ");
      return el("td", { class: segments.has(offset) && at > 0 && cells.has(offset) ? "place segment" : "place" },
        lines((value) => value != null && value <= offset && (at === 0 || value > columns[at - 1]), offset),
        drawn(replica, offset, cells.get(offset), kind, marks));
    };
    const areEpochsOther = other && JSON.stringify(other.epochs ?? []) !== JSON.stringify(replica.epochs ?? []);
    return el("tr", { class: `replica ${replica.state ?? ""}` },
      el("th", { scope: "row", class: "who" }, el("b", {}, visible(name)),
        titles(replica).filter(Boolean).map((each) => el("small", { class: other && !titles(other).includes(each) && "differs" }, each)),
        watermark != null && el("small", {}, `HW ${watermark}, end ${end}`)),
      columns.map(place),
      el("td", { class: "place after" },
        lines((value) => value != null && value > columns.at(-1), end),
        replica.epochs && el("span", { class: areEpochsOther && "differs" }, epochs(replica.epochs))));
  }

  const cellsOf = (replica) => new Map((replica?.cells ?? []).map((each) => [each.offset, each]));

  const line = (word, value, isOther, offset, kind = "") =>
    el("span", { class: `line ${kind}`, title: `${word} ${value}`, "aria-hidden": "true" },
      el("span", { class: isOther && "differs" }, value === offset || word === "LSO" ? word : `${word} ${value}`));

  /** What a replica has at an offset: a record of a local segment, "tier", "deleted" or nothing. */
  function placeOf({ log_start_offset: start, local_log_start_offset: local, log_end_offset: end }, offset, cell) {
    if (cell) return `${cell.value}:${cell.epoch}`;
    if (start != null && offset < start) return "deleted";
    return local != null && offset < local && offset < end ? "tier" : "";
  }

  function drawn(replica, offset, cell, kind, marks) {
    if (cell) {
      const isVolatile = cell.flushed === false;
      return el("div", { class: `cell ${colour(cell.epoch)} ${isVolatile ? "volatile" : ""} ${marks}`,
        title: isVolatile ? "in memory only: not flushed to the disk yet" : null },
      el("b", {}, shortened(cell.value, 40)), el("span", {}, `e${cell.epoch}`));
    }
    if (kind === "tier") {
      const number = epochAt(replica.epochs, offset);
      return el("div", { class: `cell remote ${number === null ? "" : colour(number)} ${marks}`, title: "in the remote tier only" },
        el("b", {}, "tier"), number !== null && el("span", {}, `e${number}`));
    }
    if (kind === "deleted") {
      return el("div", { class: `cell gone ${marks}`, title: "before the log start" }, el("span", {}, "deleted"));
    }
    return marks.includes("differs") && el("div", { class: "differs missing", title: "nothing, other than in the other run" });
  }

  const hasCopy = (tier, copy) => (tier?.copies ?? []).some((each) =>
    ["start_offset", "end_offset", "state", "broker"].every((key) => each[key] === copy[key]));

  /** A copy of a segment in the remote tier: a bar below the offsets that it has. */
  function copyRow(copy, columns, isFirst, differs) {
    const at = columns.findIndex((offset) => offset >= copy.start_offset);
    const covered = columns.filter((offset) => offset >= copy.start_offset && offset < copy.end_offset).length;
    const [before, width] = covered === 0 ? [0, columns.length] : [at, covered];
    const state = (copy.state ?? "COPY_SEGMENT_FINISHED").replace("_SEGMENT", "").replace("_", " ").toLowerCase();
    const kind = { "copy finished": "", "copy started": " unfinished" }[state] ?? " deleted";
    const words = `copy of ${copy.start_offset} to ${copy.end_offset - 1}, ${state}`;
    return el("tr", { class: isFirst ? "copy first-copy" : "copy" },
      el("th", { scope: "row", class: "who" }, el("small", {}, `tier${copy.number == null ? "" : `, copy ${copy.number}`}`),
        copy.broker && el("small", {}, `by ${visible(copy.broker)}`)),
      before > 0 && el("td", { colspan: before }),
      el("td", { colspan: width, class: "span" }, el("div", { class: `tier${kind}${differs ? " differs" : ""}`, title: words }, epochs(copy.epochs ?? []),
        el("span", {}, kind === "" ? `${copy.start_offset}–${copy.end_offset - 1}` : state))),
      el("td", { colspan: columns.length - before - width + 1, class: "after" }));
  }

  /**
   * One replica's log to scale, for logs of any length: the remote tier above, local segments below, the high watermark as a
   * line. `from` and `to` are the ends of the scale, which replicas of a partition share.
   */
  function bar(log, { from = log.log_start_offset ?? 0, to = log.log_end_offset ?? 0 } = {}) {
    const { log_start_offset: start, local_log_start_offset: local, high_watermark: watermark, last_stable_offset: stable,
      log_end_offset: end, tier_end_offset: tierEnd } = log;
    const share = (offset) => to > from ? Math.min(Math.max((offset - from) / (to - from), 0), 1) * 100 : 0;
    const part = (kind, low, high) => low != null && high != null && high > low
      && el("span", { class: kind, style: { left: `${share(low)}%`, width: `max(2px, ${share(high) - share(low)}%)` } });
    const mark = (kind, offset) => offset != null && el("span", { class: kind, style: { left: `${share(offset)}%` } });
    const words = [["log start", start], ["local log start", local], ["tier end", tierEnd], ["last stable offset", stable],
      ["high watermark", watermark], ["log end", end]];
    const said = words.filter(([, value]) => value != null).map(([word, value]) => `${word} ${number(value)}`).join(", ");
    return el("div", { class: "bar", role: "img", "aria-label": said, title: said },
      part("remote", start, tierEnd), part("local", local ?? start, end),
      stable != null && stable < watermark && mark("stable", stable), mark("watermark", watermark));
  }

  /** Messages in their order, as arrows between lanes. Open, a message shows its fields, and its frame's bytes. */
  function messages(list, { names = [] } = {}) {
    const lanes = [...new Set([...names, ...list.flatMap((each) => [each.from, each.to])])].filter((each) => each != null);
    return el("div", { class: "sequence", style: { "--lanes": lanes.length } },
      el("div", { class: "lanes", "aria-hidden": "true" }, lanes.map((name) => el("span", {}, visible(name)))),
      el("ol", { class: "messages" }, list.map((each) => el("li", {}, message(each, lanes)))));
  }

  function message(each, lanes) {
    const [from, to] = [lanes.indexOf(each.from), lanes.indexOf(each.to)];
    const kind = `${each.kind ?? "request"}${each.lost ? " lost" : ""} ${from < to ? "right" : "left"}`;
    const what = [each.api, each.kind, each.version != null && `version ${each.version}`].filter(Boolean).join(" ");
    const details = el("details", { class: "message" },
      el("summary", {},
        el("span", { class: "unseen" }, `${visible(each.from)} to ${visible(each.to)}: `),
        el("span", { class: "says" }, visible(each.line ?? what)),
        each.lost && el("span", { class: "word lost" }, "lost"),
        each.delayed && el("span", { class: "word" }, each.kind === "response" ? "had to wait" : "waits"),
        el("span", { class: `arrow ${kind}`, "aria-hidden": "true",
          style: { "--left": Math.min(from, to), "--reach": Math.abs(to - from) } })));
    const open = () => details.append(el("div", { class: "inside" }, el("p", {}, el("b", {}, what)),
      each.fields && fields(each.fields), each.frame && hex(each.frame, each.frame_bytes)));
    details.addEventListener("toggle", open, { once: true });
    return details;
  }

  /** A message or a record as a tree of names and values. */
  function fields(object) {
    const entries = Object.entries(object ?? {});
    return el("dl", { class: "fields" },
      entries.slice(0, MAX_ENTRIES).map(([name, value]) => {
        const isTree = value !== null && typeof value === "object" && Object.keys(value).length > 0;
        const isFlat = Array.isArray(value) && value.every((each) => each === null || typeof each !== "object");
        if (isTree && !isFlat) return [el("dt", {}, visible(name)), el("dd", {}), el("dd", { class: "nested" }, fields(value))];
        return [el("dt", {}, visible(name)), el("dd", {}, isFlat ? `[${shortened(value.join(", "))}]` : shortened(value ?? "null"))];
      }),
      entries.length > MAX_ENTRIES && [el("dt", {}, "…"), el("dd", {}, `${entries.length - MAX_ENTRIES} more`)]);
  }

  const shortened = (value, most = MAX_LETTERS) => {
    const text = typeof value === "object" ? JSON.stringify(value) : String(value);
    return text.length > most ? `${visible(text.slice(0, most))}…` : visible(text);
  };

  /** Bytes, given as hexadecimal digits: their offsets, the digits, and the letters that they are in ASCII. */
  function hex(digits, total = digits.length / 2) {
    const width = globalThis.matchMedia?.("(max-width: 600px)").matches ? 8 : 16;
    const bytes = digits.match(/../g) ?? [];
    const rows = [];
    for (let at = 0; at < bytes.length; at += width) {
      const part = bytes.slice(at, at + width);
      const letters = part.map((byte) => {
        const code = parseInt(byte, 16);
        return code >= 32 && code < 127 ? String.fromCharCode(code) : "·";
      });
      rows.push(`${at.toString(16).padStart(4, "0")}  ${part.join(" ").padEnd(width * 3)} ${letters.join("")}`);
    }
    if (bytes.length < total) rows.push(`… ${number(total - bytes.length)} more bytes`);
    return el("div", {}, el("small", {}, `${number(total)} bytes`),
      el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Bytes of the frame" }, el("pre", { class: "hex" }, rows.join("\n"))));
  }

  /** What the drawing means, of all that the pictures of these steps have. */
  function legend(steps) {
    const sample = (kind, text) => el("span", { class: `cell ${kind}` }, text);
    const logsOf = steps.flatMap((step) => step.replicas ?? step.nodes ?? []);
    const has = (each) => steps.some((step) => step[each]);
    const items = [
      logsOf.length > 0 && [sample("epoch-0", "e0"), sample("epoch-1", "e1"), "a record, in the colour of its leader epoch"],
      logsOf.some(({ cells = [] }) => cells.some((cell) => cell.flushed === false)) && [sample("epoch-0 volatile", "e0"), "not flushed yet"],
      has("tier") && [sample("epoch-0 remote", "e0"), "in the remote tier only"],
      logsOf.length > 0 && [el("span", { class: "line" }), "high watermark (HW): what is before it is committed"],
      has("tier") && [el("span", { class: "tier" }), "a segment's copy in the remote tier"],
      (has("partition") || has("group")) && ["\u2605 the leader"],
      has("partition") && ["ISR: in-sync replicas"],
      has("partition") && ["ELR: replicas outside the ISR that have all committed records"],
    ].filter(Boolean);
    return el("ul", { class: "legend", "aria-label": "Legend" }, items.map((parts) => el("li", {}, parts)));
  }

  ottla.draw = { el, visible, number, shortened, colour, epoch, epochs, logs, offsets, bar, messages, fields, hex, legend };
}
