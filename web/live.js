/**
 * The live page: the address after # names a view and its parameters, and a stream of events brings its snapshots.
 *
 *     connecting --the first snapshot--> live --the node ends the stream, the network fails--> disconnected --> connecting
 *
 * While the page is not visible no stream is open: a node whose page nobody sees does nothing for it.
 */
"use strict";
{
  const { el, visible } = ottla.draw;
  const { morph, time } = ottla.parts;
  const RETRY_MS = 3000;
  const TYPING_MS = 250;

  const part = (id) => document.getElementById(id);
  let stream = null;
  let retry = null;
  let shown = null;

  const encoded = (parameters) => new URLSearchParams(
    Object.entries(parameters).filter(([, value]) => value != null && value !== "" && value !== false)).toString();
  const address = (view, parameters = {}) => `#/${view}${encoded(parameters) && `?${encoded(parameters)}`}`;

  /** The view and the parameters that the address names. */
  function place() {
    const [name, text] = location.hash.replace(/^#\/?/, "").split("?");
    const view = Object.hasOwn(ottla.views, name) ? name : "overview";
    return { view, parameters: Object.fromEntries(new URLSearchParams(text ?? "")) };
  }

  function sourceOf({ view, parameters }) {
    const [name, query] = [ottla.views[view].source(parameters)].flat();
    return `view/${name}${encoded(query ?? {}) && `?${encoded(query)}`}`;
  }

  function say(kind, text) {
    const connection = part("connection");
    connection.className = kind;
    if (connection.textContent !== text) connection.textContent = text;
  }

  /** Show nodes in the place of those that are there, keeping what has not changed. */
  function show(nodes) {
    const content = part("content");
    content.setAttribute("aria-busy", "false");
    const next = content.cloneNode(false);
    next.append(...[nodes].flat(Infinity).filter((each) => each != null && each !== false));
    morph(content, next);
  }

  const problem = (sentence) => el("div", { class: "note bad", role: "alert" }, el("p", {}, visible(sentence)));

  function receive(here, data) {
    if (shown !== here) return;
    try {
      show(ottla.views[here.view].draw(data, here.parameters));
    } catch (error) {
      show(problem(`This view could not be drawn: ${error.message}`));
      throw error;
    }
  }

  function connect() {
    disconnect();
    if (document.hidden) return;
    const here = shown;
    const source = sourceOf(here);
    if (ottla.views[here.view].isAsked) {
      ask(here, source);
      return;
    }
    stream = new EventSource(source);
    stream.onmessage = ({ data }) => {
      say("live", "Live");
      receive(here, JSON.parse(data));
    };
    stream.addEventListener("problem", ({ data }) => {
      say("live", "Live");
      if (shown === here) show(problem(JSON.parse(data).error));
    });
    stream.onerror = () => {
      // The numbers stay, as those of the past; the browser tries again by itself unless the node has refused.
      if (stream.readyState === EventSource.CLOSED) ask(here, source, "Not live");
      else say("gone", `Disconnected since ${time(Date.now()).slice(11, 19)} UTC, trying again`);
    };
  }

  /** One snapshot instead of a stream: of a view that is not watched, or while the node refuses streams. */
  async function ask(here, source, word = "As of") {
    disconnect();
    try {
      const response = await fetch(source, { headers: { Accept: "application/json" } });
      const data = await response.json();
      say(word === "As of" ? "live" : "gone", `${word} ${time(Date.now()).slice(11, 19)} UTC`);
      if (response.ok) receive(here, data);
      else if (shown === here) show(problem(data.error));
    } catch {
      say("gone", "Disconnected, trying again");
      if (shown === here) retry = setTimeout(connect, RETRY_MS);
      return;
    }
    if (word !== "As of" && shown === here) retry = setTimeout(connect, RETRY_MS);
  }

  function disconnect() {
    clearTimeout(retry);
    stream?.close();
    stream = null;
  }

  // Controls: forms above a view, whose values are in the address

  function control({ name, label, type = "text", options, hint }, value, change) {
    const id = `control-${name}`;
    const field = options
      ? el("select", { id, name, onchange: change }, Object.entries(options).map(([key, text]) => el("option", { value: key, selected: key === value }, text)))
      : type === "checkbox"
        ? el("input", { id, name, type, value: "1", checked: value === "1", onchange: change })
        : el("input", { id, name, type, value: value ?? "", placeholder: hint, autocomplete: "off", spellcheck: "false", oninput: change });
    return el("div", { class: `control ${type}` }, el("label", { for: id }, label), field);
  }

  function controls({ view, parameters }) {
    const { controls: wanted = [], submit } = ottla.views[view];
    if (wanted.length === 0) return [];
    let typing = null;
    const go = (form) => {
      const values = Object.fromEntries(new FormData(form));
      const kept = Object.fromEntries(Object.entries(parameters).filter(([name]) => name !== "page" && !wanted.some((each) => each.name === name)));
      const next = address(view, { ...kept, ...values });
      if (next !== location.hash) history.replaceState(null, "", next);
      open();
    };
    const change = submit ? null : ({ currentTarget }) => {
      clearTimeout(typing);
      typing = setTimeout(() => go(currentTarget.form), TYPING_MS);
    };
    return el("form", { role: "search", onsubmit: (event) => { event.preventDefault(); go(event.currentTarget); } },
      wanted.map((each) => control(each, parameters[each.name], change)), submit && el("button", { class: "main" }, submit));
  }

  /** Show what the address names. */
  function open() {
    const here = place();
    const { title, within } = ottla.views[here.view];
    const isOther = shown?.view !== here.view || shown.parameters.topic !== here.parameters.topic;
    shown = here;
    if (isOther) {
      part("title").textContent = title(here.parameters);
      document.title = `${title(here.parameters)} – Ottla`;
      part("controls").replaceChildren(...[controls(here)].flat());
      part("content").setAttribute("aria-busy", "true");
      part("content").replaceChildren(el("p", { class: "soft" }, "Loading …"));
      part("sections").replaceChildren(...Object.entries(ottla.views).filter(([, each]) => each.section).map(([name, each]) =>
        el("a", { href: address(name), "aria-current": name === here.view || name === within ? "page" : null }, each.section)));
    }
    connect();
  }

  ottla.live = { address };
  addEventListener("hashchange", () => {
    const before = shown?.view;
    open();
    if (before !== shown.view) part("view").focus({ preventScroll: true });
    scrollTo(0, 0);
  });
  document.addEventListener("visibilitychange", () => document.hidden ? disconnect() : connect());
  open();
}
