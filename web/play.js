/**
 * The player: what the address asks for is shown.
 *
 *     #                              all stories
 *     #lineage/scenario_2/12         a story at a step; with /NAME behind it: with the planted bug NAME
 *     #hour, #hour/2, #hour/2/9      the guided hour: all lessons, what is said before one, a step of it
 *
 * A trace is a script that adds to `ottla.traces`, so that it can be loaded from a folder on a disk, too.
 */
"use strict";
{
  const { el, visible } = ottla.draw;
  const main = document.getElementById("main");
  /** The story that is open: the same page shows all of its steps. */
  let open = null;
  /** The address of the step that is shown, for as long as the browser does not have it. */
  let pending = null;
  /** Changed stories, as they were run: they have no address of their own. */
  const changed = new Map();

  function route() {
    const parts = decodeURIComponent(location.hash.slice(1)).split("/").filter(Boolean);
    if (parts.length === 0) return { page: "list" };
    if (parts[0] === "hour") {
      const [, lesson, step, planted = null] = parts;
      if (!lesson) return { page: "hour" };
      return { page: step ? "lesson" : "before", lesson: Number(lesson), step: Number(step), planted };
    }
    const [room, name, step = 1, planted = null] = parts;
    return { page: "story", name: `${room}/${name}`, step: Number(step), planted };
  }

  function address({ page, name, lesson, step, planted }) {
    return `#${page === "lesson" ? `hour/${lesson}` : name}/${step}${planted ? `/${planted}` : ""}`;
  }

  /**
   * Steps are addresses, and not each one is a place to come back to. Browsers refuse hundreds of changes within seconds, which
   * a slider makes: the last one counts.
   */
  function remember(address) {
    clearTimeout(pending);
    const here = location.hash;
    pending = setTimeout(() => location.hash === here && history.replaceState(null, "", address), 100);
  }

  async function show() {
    clearTimeout(pending);
    const asked = route();
    for (const link of document.querySelectorAll("[data-page]")) {
      const isHere = link.dataset.page === (asked.page === "list" || asked.page === "story" ? "list" : "hour");
      link.toggleAttribute("aria-current", isHere);
      if (isHere) link.setAttribute("aria-current", "page");
    }
    if (!ottla.index) {
      return failed("There are no traces beside this page: `ottla play --serve` and `ottla docs build DIR` write them.");
    }
    switch (asked.page) {
      case "list": return put(list(), "The KIPs' stories, played by Ottla");
      case "hour": return put(ottla.hour.overview(), "The guided hour");
      case "before":
        return ottla.hour.lessons()[asked.lesson - 1] ? put(ottla.hour.before(asked.lesson), "The guided hour") : missing();
      default: return story(asked);
    }
  }

  async function story(asked) {
    const lesson = asked.page === "lesson" ? ottla.hour.lessons()[asked.lesson - 1] : null;
    const name = lesson?.story ?? asked.name;
    const known = ottla.index.stories.find((each) => each.name === name);
    if (!known || (asked.page === "lesson" && !lesson)) return missing();
    const key = `${asked.page} ${asked.lesson ?? ""} ${name}`;
    if (open?.key !== key) {
      try {
        await load(name);
      } catch {
        return failed(`The trace of ${name} was not found: traces/${name}.js`);
      }
      if (location.hash && address(route()) !== address(asked)) return null;
      build(asked, key, changed.get(name) ?? ottla.traces[name], lesson);
    }
    const step = Math.min(Math.max(Math.trunc(asked.step) || 1, 1), open.page.last);
    open.page.show({ step, planted: open.trace.planted?.some((each) => each.name === asked.planted) ? asked.planted : null });
    return null;
  }

  function build(asked, key, trace, lesson) {
    const go = ({ step, planted }) => {
      remember(address({ ...open.asked, step, planted }));
      open.page.show({ step, planted });
    };
    const replay = (result) => {
      changed.set(trace.name, result);
      build(asked, key, result, lesson);
      go({ step: 1, planted: null });
    };
    const page = ottla.story.page(trace, {
      go, replay, heading: heading(trace, asked, lesson),
      ...(lesson && {
        last: Math.min(lesson.until ?? trace.steps.length, trace.steps.length),
        isAsked: (step) => (lesson.pauses ?? []).some((each) => each.step === step),
        aside: (step) => ottla.hour.aside(asked.lesson, step, () => go({ step: step + 1, planted: open.page.now.planted })),
        end: ottla.hour.end(asked.lesson),
      }),
    });
    open = { key, page, trace, go, asked: { page: asked.page, name: trace.name, lesson: asked.lesson } };
    main.replaceChildren(page.node);
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }

  function heading(trace, { lesson: number }, lesson) {
    const original = () => {
      changed.delete(trace.name);
      open = null;
      show();
    };
    return el("header", {},
      el("p", { class: "soft" }, ottla.story.kips(trace), lesson ? `The guided hour, ${number} of ${ottla.hour.lessons().length}` : el("code", {}, visible(trace.name))),
      el("h1", {}, visible(trace.title)),
      trace.isChanged && el("p", { class: "changed" }, "Your own version, as it was run. ",
        el("button", { type: "button", onclick: original }, "Back to the story")));
  }

  /** All stories, below the KIPs that they show. */
  function list() {
    const groups = new Map();
    for (const each of ottla.index.stories) {
      const kip = each.kips?.[0] ?? "Others";
      if (!groups.has(kip)) groups.set(kip, []);
      groups.get(kip).push(each);
    }
    const number = (kip) => Number(kip.match(/\d+/)?.[0] ?? Infinity);
    const sorted = [...groups].sort(([one], [other]) => number(one) - number(other));
    const words = ({ steps, planted }) => [`${steps} steps`, planted?.length > 0 && `${planted.length} ${planted.length > 1 ? "bugs" : "bug"}`];
    return el("article", {},
      el("h1", {}, "The KIPs' stories, played"),
      el("p", {}, "Each story is a test of Ottla: a text of commands and of what they must print. Here it is played step by step, forwards and ",
        "backwards: the replicas' logs, what they say to each other down to the bytes, and the rule of the KIP that each decision follows."),
      ottla.hour.lessons().length > 0 && el("p", { class: "invitation" }, el("a", { class: "button main", href: "#hour" }, "The guided hour"),
        el("span", {}, ` ${ottla.hour.lessons().length} stories in an order that teaches, with questions.`)),
      el("div", { class: "groups" }, sorted.map(([kip, stories]) => el("section", {}, el("h2", {}, visible(kip), el("small", {}, ottla.kips[kip] ?? "Kafka's rules without a KIP")),
        el("ul", {}, stories.map((each) => el("li", {}, el("a", { href: `#${each.name}` }, visible(titleWithout(kip, each.title))),
          el("small", {}, words(each).filter(Boolean).join(", ")))))))));
  }

  /** "KIP-101, scenario 2: words" below the heading KIP-101: "Scenario 2: words". */
  function titleWithout(kip, title) {
    const rest = /^[,:]/.test(title.slice(kip.length)) && title.startsWith(kip) ? title.slice(kip.length).replace(/^[,:]\s*/, "") : title;
    return /^[a-z]+ /.test(rest) ? rest.charAt(0).toUpperCase() + rest.slice(1) : rest;
  }

  /** Load a trace's script once. */
  function load(name) {
    if (ottla.traces[name]) return Promise.resolve();
    return new Promise((done, fail) => {
      document.head.append(el("script", { src: `traces/${name}.js`, onload: done, onerror: fail }));
    });
  }

  function put(node, title) {
    open = null;
    main.replaceChildren(node);
    document.title = title;
    window.scrollTo(0, 0);
  }

  const failed = (words) => put(el("p", { role: "alert" }, words), "Not found");
  const missing = () => failed("There is no such story or lesson. The list of all of them is behind “Stories”.");

  /** Arrow keys are steps, where they do not move something else. */
  function pressed(event) {
    if (!open || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const { target } = event;
    if (target.closest("input, textarea, select")) return;
    const scrolls = target.closest(".scroll");
    if (scrolls && scrolls.scrollWidth > scrolls.clientWidth) return;
    const { now, last } = open.page;
    const step = { ArrowRight: now.step + 1, ArrowLeft: now.step - 1 }[event.key];
    if (step === undefined || step < 1 || step > last) return;
    event.preventDefault();
    open.go({ step, planted: now.planted });
  }

  window.addEventListener("hashchange", show);
  document.addEventListener("keydown", pressed);
  show();
}
