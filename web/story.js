/**
 * One story, step by step: its controls, the picture of the step, who said what to whom, the rules that were applied, and the
 * text. A planted bug shows the run with it beside the right one.
 */
"use strict";
globalThis.ottla ??= {};
{
  const { el, visible, shortened, messages, legend } = ottla.draw;
  const { picture, columnsOf, lanesOf } = ottla.stage;
  /** Two logs of so many cells have place beside each other. */
  const NARROW = 5;

  /**
   * The page of a trace. `go({step, planted})` is asked for another step or run, `replay(trace)` for the run of a changed text.
   * `last` is the step at which it ends, `aside(step)` what a guide says beside a step, `end` what comes after the last one;
   * where `isAsked(step)`, nothing is shown that has the answer.
   */
  function page(trace, { go, replay, last = trace.steps.length, aside = () => null, isAsked = () => false, end = null, heading }) {
    const now = { step: 1, planted: null };
    const columns = columnsOf(trace.steps);
    const lanes = lanesOf(trace.steps);
    const moment = el("div", { class: "moment" });
    const text = ottla.text.panel(trace, replay);
    const bar = controls(trace, last, now, go);

    function show({ step, planted }) {
      Object.assign(now, { step, planted });
      const at = step - 1;
      const right = trace.steps[at];
      const bug = trace.planted?.find((each) => each.name === planted);
      const runs = bug ? [{ steps: trace.steps, title: "As it is", against: bug.steps[at] ?? null }, { ...bug, against: right }]
        : [{ steps: trace.steps }];
      const comment = isAsked(step) ? null : commentOf(trace.steps, at);
      const kind = `runs ${bug ? "compared" : ""} ${columns[at].length > NARROW ? "" : "narrow"}`;
      bar.update(right);
      moment.replaceChildren(...[
        aside(step), step === last && end,
        el("div", { class: "what" }, el("h2", { class: "command" }, visible(right.command)), comment && el("p", {}, visible(comment))),
        el("div", { class: kind }, runs.map((run) => pictureOf(run, at, columns))),
        rulesOf(right.events?.length > 0 ? right.events : bug?.steps[at]?.events ?? []),
        runs.some(({ steps }) => steps[at]?.says?.length > 0 || steps[at]?.messages?.length > 0) && el("div", { class: kind }, runs.map((run) => wordsOf(run, at, lanes))),
      ].filter(Boolean));
      text.box.hidden = isAsked(step);
      text.mark(right.line);
      document.title = `${step}/${last} ${right.command} – ${trace.title}`;
    }

    const node = el("article", { class: "story" }, heading, bar.switches, bar.node,
      el("div", { class: "parts" }, moment, text.box), el("footer", {}, legend(trace.steps)));
    return { node, show, now, last };
  }

  /** The comment above the block of a step: it holds until the next block. */
  function commentOf(steps, at) {
    const { block } = steps[at];
    return steps.slice(0, at + 1).findLast((each) => each.block === block && each.comment)?.comment;
  }

  function controls(trace, last, now, go) {
    const to = (step) => go({ step: Math.min(Math.max(step, 1), last), planted: now.planted });
    const button = (label, sign, step) => el("button", { type: "button", "aria-label": label, title: label, onclick: () => to(step()) }, sign);
    const first = button("First step", "|◀", () => 1);
    const back = button("One step back", "◀", () => now.step - 1);
    const next = el("button", { type: "button", class: "main", title: "One step forward", onclick: () => to(now.step + 1) }, "Next ▶");
    const end = button("Last step", "▶|", () => last);
    const slider = el("input", { type: "range", min: 1, max: last, "aria-label": "Step", oninput: () => to(Number(slider.value)) });
    const place = el("output", { class: "step" });
    const switches = (trace.planted ?? []).map((bug) => {
      const box = el("input", { type: "checkbox", role: "switch",
        onchange: () => go({ step: now.step, planted: box.checked ? bug.name : null }) });
      return { bug, box, label: el("label", { class: "switch" }, box, el("span", {}, el("b", {}, "Planted bug: "), visible(bug.title))) };
    });

    function update(step) {
      slider.value = now.step;
      slider.setAttribute("aria-valuetext", `${now.step} of ${last}: ${step.command}`);
      first.disabled = back.disabled = now.step === 1;
      next.disabled = end.disabled = now.step === last;
      place.textContent = `Step ${now.step} of ${last}`;
      for (const { bug, box } of switches) box.checked = bug.name === now.planted;
    }
    const node = el("div", { class: "controls" }, el("div", { class: "row" }, first, back, next, end), slider, place);
    return { node, update, switches: switches.length > 0 && el("div", { class: "switches" }, switches.map((each) => each.label)) };
  }

  /** What a run has at a step; beside another run, with what differs marked. */
  function pictureOf({ steps, title, against = null, outcome }, at, columns) {
    const step = steps[at];
    const isSameStart = at > 0 && columns[at - 1] === columns[at];
    const isLast = at >= steps.length - 1;
    return el("section", { class: "run" }, title && el("h3", {}, visible(title)),
      step ? [picture(step, { columns: columns[at], before: isSameStart ? steps[at - 1] : null, against }),
        isSameStart && ottla.changes.list(steps[at - 1], step)]
        : el("p", {}, `This run has ended after step ${steps.length}.`),
      isLast && outcome && el("p", { class: "outcome" }, el("b", {}, "Its end: "), visible(outcome)));
  }

  /** What is said in a step: the messages between replicas, and the lines that the command prints. */
  function wordsOf({ steps, against = null }, at, lanes) {
    const { messages: sent = [], says: lines = [] } = steps[at] ?? {};
    const known = against && new Set(against.says ?? []);
    // Messages print their own lines: there is nothing else to read, but beside another run.
    const isOpen = sent.length === 0 || against != null;
    return el("section", { class: "run" },
      sent.length > 0 && [el("h3", {}, "Messages"), messages(sent, { names: lanes })],
      lines.length > 0 && el("details", { class: "more", open: isOpen }, el("summary", {}, "What it prints"),
        el("ol", { class: "scroll printed code", tabindex: 0, "aria-label": "What it prints" },
          lines.map((line) => el("li", { class: known && !known.has(line) && "other" }, visible(line))))));
  }

  /** Each rule once, with all that was done by it. */
  function rulesOf(events) {
    const found = new Map();
    for (const event of events) {
      const key = `${event.kip} ${event.rule} ${event.function}`;
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(event);
    }
    if (found.size === 0) return null;
    return el("section", {}, el("h3", {}, found.size > 1 ? "The rules" : "The rule"), el("div", { class: "rules" },
      [...found.values()].map(([event, ...others]) => el("div", { class: "rule" },
        el("p", { class: "done code" }, [event, ...others].map((each) => el("span", {}, visible(each.line)))),
        el("p", {}, event.kip && [kip(event.kip), " "], visible(event.rule ?? "")),
        event.function && el("p", { class: "place" }, el("code", {}, breakable(event.function)), " ",
          event.source && el("small", { class: "code" }, breakable(`${event.source}:${event.source_line}`)))))));
  }

  /** A path or dotted name that may be broken after its dots and slashes. */
  const breakable = (text) => shortened(text).split(/(?<=[./])/).flatMap((part) => [part, el("wbr")]);

  const kip = (name) => el("span", { class: "kip" }, visible(name));
  const kips = (trace) => (trace.kips ?? []).flatMap((each) => [kip(each), " "]);

  ottla.story = { page, kips };
}
