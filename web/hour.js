/** The guided hour: stories in an order that teaches, with words before each, questions on the way, and the answers a step later. */
"use strict";
globalThis.ottla ??= {};
{
  const { el, visible } = ottla.draw;
  /** What was answered, as long as the page is open: "lesson/step" -> number of the answer. */
  const given = new Map();

  const lessons = () => ottla.index.hour ?? [];
  const storyOf = (lesson) => ottla.index.stories.find((each) => each.name === lesson.story);
  const titleOf = (lesson) => visible(storyOf(lesson)?.title ?? lesson.story);

  /** All lessons by chapter. */
  function overview() {
    const chapters = [];
    lessons().forEach((lesson, at) => {
      if (chapters.at(-1)?.title !== lesson.chapter) chapters.push({ title: lesson.chapter, items: [] });
      chapters.at(-1).items.push([lesson, at + 1]);
    });
    return el("article", { class: "hour" },
      el("h1", {}, "The guided hour"),
      el("p", {}, `How replicas of a partition stay equal, in ${lessons().length} stories. Each begins with a few sentences; on the way you are asked `,
        "what will happen, and the next step shows it. Nothing is animated by hand: every picture is what Ottla's own code did."),
      el("ol", { class: "chapters" }, chapters.map(({ title, items }) => el("li", {}, el("h2", {}, visible(title)),
        el("ul", {}, items.map(([lesson, number]) => el("li", {}, el("a", { href: `#hour/${number}` }, titleOf(lesson))))))))
      , lessons().length > 0 && el("p", {}, el("a", { class: "button main", href: "#hour/1" }, "Begin")));
  }

  /** What is said before a lesson. */
  function before(number) {
    const lesson = lessons()[number - 1];
    return el("article", { class: "hour" },
      el("p", { class: "soft" }, `The guided hour, ${number} of ${lessons().length}: ${visible(lesson.chapter ?? "")}`),
      el("h1", {}, titleOf(lesson)),
      el("div", { class: "before" }, lesson.before.map((each) => el("p", {}, visible(each)))),
      el("p", {}, el("a", { class: "button main", href: `#hour/${number}/1` }, "Begin")));
  }

  /** What the guide says beside a step: a question after it, or the answer to the one after the step before. */
  function aside(number, step, next) {
    const pauses = lessons()[number - 1].pauses ?? [];
    const asked = pauses.find((each) => each.step === step);
    const answered = pauses.find((each) => each.step === step - 1);
    return el("div", { class: "guide" }, answered && answer(answered, given.get(`${number}/${step - 1}`)),
      asked && question(asked, `${number}/${step}`, next));
  }

  function question(pause, key, next) {
    // The button is gone in the next step: its answer takes the focus.
    const see = () => {
      next();
      document.querySelector(".answer")?.focus();
    };
    const show = el("button", { type: "button", class: "main", disabled: !given.has(key), onclick: see }, "See what happens");
    const option = (text, at) => el("label", {}, el("input", { type: "radio", name: "answer", value: at, checked: given.get(key) === at,
      onchange: () => {
        given.set(key, at);
        show.disabled = false;
      } }), el("span", {}, visible(text)));
    return el("form", { class: "question", onsubmit: (event) => event.preventDefault() },
      el("fieldset", {}, el("legend", {}, visible(pause.question)), pause.answers.map(option)), show);
  }

  function answer(pause, chosen) {
    const isRight = chosen === pause.right;
    const head = chosen === undefined ? "The answer" : isRight ? "Yes" : "No";
    return el("div", { class: `answer ${chosen === undefined ? "" : isRight ? "right" : "wrong"}`, tabindex: -1 },
      el("p", { class: "soft" }, visible(pause.question)),
      chosen !== undefined && !isRight && el("p", {}, "You have said: ", visible(pause.answers[chosen])),
      el("p", {}, el("b", {}, `${head}: ${visible(pause.answers[pause.right])}`)),
      el("p", {}, visible(pause.because)));
  }

  /** What comes after the last step of a lesson. */
  function end(number) {
    const lesson = lessons()[number - 1];
    const isLast = number === lessons().length;
    return el("div", { class: "guide end" }, lesson.remember && el("p", {}, el("b", {}, "To remember: "), visible(lesson.remember)),
      el("p", {}, isLast ? el("a", { class: "button main", href: "#" }, "All other stories")
        : el("a", { class: "button main", href: `#hour/${number + 1}` }, `Next: ${titleOf(lessons()[number])}`)));
  }

  ottla.hour = { lessons, overview, before, aside, end };
}
