/**
 * What a step of a story has left, drawn by the kind of its stage: replicas with their logs and the remote tier, nodes of a
 * quorum, a partition as elections see it, or a consumer group.
 */
"use strict";
globalThis.ottla ??= {};
{
  const { el, visible, number, shortened, epoch, logs, offsets } = ottla.draw;

  /**
   * The picture of a step. `columns` keep a log's cells in their place from step to step; what is not as in `before`, the step
   * before, is new; what is not as in `against`, the same step of the other run, is marked.
   */
  function picture(step, { columns, before = null, against = null } = {}) {
    return [
      step.replicas && logs(step, { columns, before, against }),
      step.tier && tier(step.tier, against && (against.tier ?? {})),
      step.nodes && logs({ replicas: step.nodes }, { columns, before: before && { replicas: before.nodes ?? [] },
        against: against && { replicas: against.nodes ?? [] }, titles: node }),
      step.partition && partition(step.partition, against && (against.partition ?? {})),
      step.group && group(step.group, against && (against.group ?? {})),
      step.judgement && judgement(step.judgement, against && (against.judgement ?? {})),
    ].filter(Boolean);
  }

  /** The offsets of all steps from one start to the next, for each step: a story may begin anew. */
  function columnsOf(steps) {
    const parts = [];
    steps.forEach((step, at) => {
      if (at === 0 || /^(replicas|voters|group)\b/.test(step.command)) parts.push([]);
      parts.at(-1).push(step);
    });
    return parts.flatMap((part) => {
      const columns = offsets(part.map(({ replicas, nodes, tier }) => ({ replicas: replicas ?? nodes ?? [], tier })));
      return part.map(() => columns);
    });
  }

  /** Who takes part in a story's messages, in the order of its lanes. */
  function lanesOf(steps) {
    const known = steps.flatMap((step) => (step.replicas ?? step.nodes ?? []).map((each) => each.name));
    const others = steps.flatMap((step) => (step.messages ?? []).flatMap((each) => [each.from, each.to]));
    return [...new Set([...known, ...others])].filter((each) => each != null);
  }

  const differs = (one, other) => JSON.stringify(one ?? null) !== JSON.stringify(other ?? null);
  const mark = (isOther, ...children) => isOther ? el("span", { class: "differs" }, children) : children;

  /** A node of the quorum: its role in which epoch, its vote, and the voters that it knows. */
  function node({ role, epoch, leader, voted_for: voted, voters = [], is_cut_off: isCutOff }) {
    return [`${role}${role === "follower" ? ` of ${leader}` : ""}, e${epoch}`, voted != null && `voted for ${voted}`,
      voters.length > 0 && `voters ${voters.join(" ")}`, isCutOff && "cut off"];
  }

  function tier({ end_offset: end, objects = [], is_answering: isAnswering = true }, other) {
    const isOther = other && (other.end_offset !== end || other.objects?.length !== objects.length);
    return el("div", { class: "tier-facts" },
      el("p", {}, mark(isOther, `Remote tier: ${end === 0 ? "nothing is copied" : `copied up to offset ${end}`}, ${objects.length} objects`),
        !isAnswering && el("span", { class: "word lost" }, "the store does not answer")),
      objects.length > 0 && el("details", { class: "more" }, el("summary", {}, "Objects in the store"),
        el("ul", { class: "code" }, objects.map((each) => el("li", {}, shortened(each))))));
  }

  /** A partition as the controller has it: a row for each replica, with what it may be elected by. */
  function partition(now, other) {
    const { leader, isr = [], elr = [], last_known: lastKnown = [], local_logs: localLogs = {}, active } = now;
    const members = now.replicas ?? [...new Set([...isr, ...elr, ...lastKnown])].sort((one, two) => one - two);
    const of = (replica) => isr.includes(replica) ? "ISR" : elr.includes(replica) ? "ELR" : "neither";
    const otherOf = (replica) => (other?.isr ?? []).includes(replica) ? "ISR" : (other?.elr ?? []).includes(replica) ? "ELR" : "neither";
    const hasLogs = Object.keys(localLogs).length > 0;
    const headings = ["replica", "set", "role", ...(hasLogs ? ["local log start", "oldest local record", "local size"] : [])];
    const facts = [
      ["leader", leader ?? "none", differs(leader, other?.leader)],
      ["leader epoch", epoch(now.leader_epoch), differs(now.leader_epoch, other?.leader_epoch)],
      now.partition_epoch != null && ["partition epoch", now.partition_epoch, false],
      ["last known leader", lastKnown.join(" ") || "–", differs(lastKnown, other?.last_known)],
      now.recovery && ["recovery", now.recovery, differs(now.recovery, other?.recovery)],
    ].filter(Boolean);
    return el("div", { class: "partition" },
      el("dl", { class: "facts" }, facts.map(([name, value, isOther]) =>
        el("div", {}, el("dt", {}, name), el("dd", {}, mark(other && isOther, value))))),
      el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Replicas" }, el("table", { class: "members" },
        el("thead", {}, el("tr", {}, headings.map((each) => el("th", { scope: "col" }, each)))),
        el("tbody", {}, members.map((replica) => el("tr", { class: of(replica).toLowerCase() },
          el("th", { scope: "row" }, replica),
          el("td", {}, mark(other && of(replica) !== otherOf(replica), el("span", { class: `set ${of(replica).toLowerCase()}` }, of(replica)))),
          el("td", {}, replica === leader ? "\u2605 leader" : active && !active.includes(replica) ? "fenced" : ""),
          hasLogs && localLog(localLogs[replica]).map((each) => el("td", { class: "number" }, each))))))));
  }

  /** What the controller knows of a replica's local log: where it starts, how old its oldest record is, and its size. */
  function localLog(known) {
    if (!known) return ["unknown", "unknown", "unknown"];
    const { start_offset: start, oldest_age_ms: age, size_bytes: size } = known;
    return [number(start), age == null ? "–" : `${number(Math.floor(age / 60_000))} min old`, size > 0 ? `${number(size)} B` : "–"];
  }

  /** A consumer group: its state, and what each member has or waits for. */
  function group(now, other) {
    const others = new Map((other?.members ?? []).map((each) => [each.name, each]));
    return el("div", { class: "group" },
      el("dl", { class: "facts" },
        el("div", {}, el("dt", {}, "state"), el("dd", {}, mark(other && other.state !== now.state, el("b", {}, now.state)))),
        el("div", {}, el("dt", {}, "generation"), el("dd", {}, mark(other && other.generation !== now.generation, epochLike(now.generation))))),
      el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Members" }, el("table", { class: "members" },
        el("thead", {}, el("tr", {}, ["member", "id", "assigned", "waits for"].map((each) => el("th", { scope: "col" }, each)))),
        el("tbody", {}, (now.members ?? []).map((member) => el("tr", {},
          el("th", { scope: "row" }, visible(member.name), member.is_leader && " \u2605"),
          el("td", { class: "code" }, shortened(member.id ?? "", 60)),
          el("td", { class: "code" }, mark(other && differs(member.assigned, others.get(member.name)?.assigned),
            shortened([member.assigned ?? []].flat().join(" ") || "–", 120))),
          el("td", {}, member.waits ? `the answer to its ${member.waits}` : "–")))))));
  }

  const epochLike = (generation) => el("span", { class: "generation" }, number(generation));

  /** What the judge of the scenario tests says of the logs: records that are lost, the offset at which logs part. */
  function judgement({ lost = [], divergent_at: divergent = null, asks_nothing: silent = [] }, other) {
    const words = [
      lost.length > 0 && [`lost: ${lost.map(visible).join(" ")}`, differs(lost, other?.lost ?? [])],
      divergent !== null && [`the logs are divergent at ${divergent}`, differs(divergent, other?.divergent_at)],
      silent.length > 0 && [`asks for nothing: ${silent.map(visible).join(" ")}`, differs(silent, other?.asks_nothing ?? [])],
    ].filter(Boolean);
    return words.length > 0 && el("ul", { class: "judgement" }, words.map(([text, isOther]) => el("li", { class: other && isOther && "differs" }, text)));
  }

  ottla.stage = { picture, columnsOf, lanesOf };
}
