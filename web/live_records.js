/**
 * Records of one partition: found by offset, by time or by key, in both tiers. They are asked for once, not watched.
 *
 * Keys, values and headers are set as text; the node has cut what is long, and its length is said. JSON is indented here.
 */
"use strict";
{
  const { el, number, visible, hex } = ottla.draw;
  const { time, badge, size } = ottla.parts;

  const MAX_DEPTH = 64;

  /** How deep brackets are nested, so that no browser is given JSON that it cannot read. */
  function depth(text) {
    let [now, most] = [0, 0];
    for (const letter of text) {
      if (letter === "{" || letter === "[") most = Math.max(most, ++now);
      else if (letter === "}" || letter === "]") now--;
    }
    return most;
  }

  /** A text that is an object or a list as JSON, indented; else null. Numbers that a script cannot hold stay as they were sent. */
  function indented(text) {
    const first = text.trimStart()[0];
    if ((first !== "{" && first !== "[") || depth(text) > MAX_DEPTH || /\d{16}/.test(text)) return null;
    try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      return null;
    }
  }

  /** Lines stay lines; other letters that cannot be seen are shown as pictures or codes. */
  const lines = (text) => text.split("\n").map((line) => visible(line)).join("\n");

  /** A key, a value or a header. */
  function bytes(part) {
    if (part === null) return el("span", { class: "soft" }, "null");
    if (part.bytes === 0) return el("span", { class: "soft" }, "empty");
    if (part.hex != null) return el("details", {}, el("summary", {}, `${size(part.bytes)}, not text`), hex(part.hex, part.bytes));
    const isCut = new TextEncoder().encode(part.text).length < part.bytes;
    const json = isCut ? null : indented(part.text);
    const shown = el("pre", { tabindex: 0 }, lines(json ?? part.text));
    return isCut ? [shown, el("p", { class: "cut" }, `… cut here: ${number(part.bytes)} bytes in all`)] : shown;
  }

  function record(each) {
    const name = `Offset ${number(each.offset)}`;
    if (each.unreadable) {
      return el("li", { class: "record", "data-key": each.offset }, el("h2", {}, name),
        el("div", { class: "note bad" }, el("p", {}, `The batch of the offsets ${number(each.offset)} to ${number(each.end_offset - 1)} cannot be read: ${visible(each.unreadable)}`)));
    }
    const headers = each.headers.map(([key, value]) => [el("dt", {}, bytes(key)), el("dd", {}, bytes(value))]);
    return el("li", { class: each.control ? "record control" : "record", "data-key": each.offset },
      el("h2", {}, name, " ", el("small", {}, each.timestamp_ms < 0 ? "no timestamp" : `${time(each.timestamp_ms)} UTC`, ` · epoch ${each.leader_epoch}`),
        " ", badge(each.tier === "remote" ? "remote tier" : "local"), each.is_transactional && !each.control && badge("transactional"),
        each.compression !== "none" && badge(each.compression), each.control && badge(`marker: ${each.control}`, "fair")),
      each.control
        ? el("p", { class: "soft" }, `A control record: consumers are not given it.`, each.producer_id != null && ` Producer ${each.producer_id}.`)
        : el("dl", { class: "parts" }, el("dt", {}, "key"), el("dd", {}, bytes(each.key)), el("dt", {}, "value"), el("dd", {}, bytes(each.value)), headers),
      each.header_count > each.headers.length && el("p", { class: "cut" }, `… and ${each.header_count - each.headers.length} more headers`));
  }

  /** Where the records that are shown lie, and what was left out. */
  function summary(data, { key }) {
    const known = [["log start", data.log_start_offset], ["local from", data.local_log_start_offset], ["high watermark", data.high_watermark]];
    return el("p", { class: "soft" }, known.map(([word, value]) => `${word} ${number(value)}`).join(" · "), ` · leader ${data.leader}`,
      data.last_stable_offset != null && data.last_stable_offset < data.high_watermark && ` · last stable offset ${number(data.last_stable_offset)}: transactions are open behind it`,
      key && ` · ${number(data.scanned)} records were looked at`);
  }

  ottla.views.records = {
    within: "topics",
    isAsked: true,
    title: ({ topic, partition }) => `Records of ${visible(topic ?? "")}, partition ${visible(partition ?? 0)}`,
    source: ({ topic, partition, offset, at, key }) => {
      const ms = at ? Date.parse(`${at}Z`) : null;
      return ["records", { topic, partition, offset: ms == null ? offset : null, timestamp: ms, key }];
    },
    controls: [
      { name: "offset", label: "From offset", type: "number" },
      { name: "at", label: "or from time (UTC)", type: "datetime-local" },
      { name: "key", label: "Key is", type: "text" },
    ],
    submit: "Show",
    draw: (data, parameters) => [
      summary(data, parameters),
      data.problem && el("div", { class: "note bad" }, el("p", {}, visible(data.problem))),
      data.records.length === 0
        ? el("p", { class: "soft" }, data.next_offset == null ? "There are no records from there on." : "No record was found so far.")
        : el("ol", { class: "records" }, data.records.map(record)),
      el("nav", { class: "pages", "aria-label": "Pages" },
        el("a", { href: ottla.live.address("records", { ...parameters, offset: data.log_start_offset, at: null }) }, "From the start"),
        data.next_offset != null && el("a", { href: ottla.live.address("records", { ...parameters, offset: data.next_offset, at: null }) }, `Continue at ${number(data.next_offset)}`),
        el("a", { href: ottla.live.address("records", { topic: data.topic, partition: data.partition }) }, "The last records")),
    ],
  };
}
