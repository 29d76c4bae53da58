/**
 * A story's text, with the line of the current step marked. Where the page is served by `ottla play --serve`, the text can be
 * changed, and what it says then is run; nothing is written to the story's file.
 */
"use strict";
globalThis.ottla ??= {};
{
  const { el, visible } = ottla.draw;

  /** `play(trace)` shows the run of a changed text. */
  function panel(trace, play) {
    const lines = trace.text.replace(/\n$/, "").split("\n");
    let isExpected = false;
    const items = lines.map((line, at) => {
      if (line.trim() === "") isExpected = false;
      const kind = line.startsWith("#") ? "comment" : line === "----" ? "rule" : isExpected ? "expected" : "command";
      if (line === "----") isExpected = true;
      return el("li", { class: kind, value: at + 1 }, visible(line));
    });
    const list = el("ol", { class: "scroll listing", tabindex: 0, "aria-label": "The story's text" }, items);
    const box = el("section", { class: "text" }, el("h2", {}, "The story's text"), list);
    if (ottla.index?.run) box.append(editor(trace, box, list, play));

    function mark(number) {
      for (const item of items) item.removeAttribute("aria-current");
      const item = items[number - 1];
      if (!item) return;
      item.setAttribute("aria-current", "step");
      // The text scrolls in its own box; the page stays where it is.
      requestAnimationFrame(() => { list.scrollTop = Math.max(item.offsetTop - list.clientHeight / 3, 0); });
    }
    return { box, mark };
  }

  /** The text as one that can be changed, and the button that runs it. */
  function editor(trace, box, list, play) {
    const area = el("textarea", { class: "code", spellcheck: "false", rows: 20, "aria-label": "The story's text, to change",
      onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(); } });
    const said = el("p", { class: "failed", role: "alert" });
    const runs = el("button", { type: "button", class: "main", onclick: () => run() }, "Run");
    const form = el("div", { class: "editor", hidden: true }, area, said,
      el("div", { class: "row" }, runs, el("button", { type: "button", onclick: () => open(false) }, "Discard"),
        el("small", {}, "Ctrl+Enter runs it, too. The file stays as it is.")));
    const opens = el("button", { type: "button", onclick: () => open(true) }, "Change this story");

    function open(isOpen) {
      form.hidden = !isOpen;
      list.hidden = opens.hidden = isOpen;
      said.textContent = "";
      if (isOpen) {
        area.value = trace.text;
        area.focus();
      } else opens.focus();
    }

    async function run() {
      said.textContent = "";
      runs.disabled = true;
      try {
        const answer = await fetch(ottla.index.run, { method: "POST", headers: { "Content-Type": "application/json" },
          body: JSON.stringify({ name: trace.name, text: area.value }) });
        const result = await answer.json();
        if (answer.ok) play({ planted: [], ...result, isChanged: true });
        else said.textContent = result.line ? `Line ${result.line}: ${result.message}` : result.message;
      } catch (error) {
        said.textContent = `It was not run: ${error.message}`;
      } finally {
        runs.disabled = false;
      }
    }
    return el("div", {}, opens, form);
  }

  ottla.text = { panel };
}
