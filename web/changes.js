/**
 * What a step has changed, in words: the state of each replica, node, copy, partition and group before and after it. The drawing
 * shows the same; who does not see it, or does not know yet where to look, reads it here.
 */
"use strict";
globalThis.ottla ??= {};
{
  const { el, visible } = ottla.draw;

  /** The changes from one step to the next, as a list; null if there are none. */
  function list(before, now) {
    const [old, facts] = [factsOf(before), factsOf(now)];
    const found = [...records(before, now)];
    for (const [name, value] of facts) {
      const was = old.get(name);
      if (was === undefined && !name.startsWith("copy ")) continue; // a replica that the step has created
      if (was !== value) found.push(was === undefined ? `${name}: ${value}` : `${name}: ${was} \u2192 ${value}`);
    }
    for (const [name] of old) if (name.startsWith("copy ") && !facts.has(name)) found.push(`${name}: deleted`);
    return found.length > 0 ? el("ul", { class: "changes", "aria-label": "What this step has changed" },
      found.map((each) => el("li", {}, visible(each)))) : null;
  }

  /** Name -> value, as text, of all that a step has left but records. */
  function factsOf({ replicas = [], nodes = [], tier, partition, group }) {
    const facts = new Map();
    const add = (name, value) => value !== undefined && facts.set(name, said(value));
    for (const each of replicas) {
      add(each.name, role(each));
      if (each.state === "leader") add(`${each.name}'s ISR`, each.isr);
      add(`${each.name}'s high watermark`, each.high_watermark);
      add(`${each.name}'s log start`, each.log_start_offset);
      add(`${each.name}'s local log start`, each.local_log_start_offset);
      add(`${each.name}'s checkpoint`, each.epochs.map(([epoch, start]) => `e${epoch}@${start}`));
    }
    for (const each of nodes) {
      add(each.name, `${each.role}${each.role === "follower" ? ` of ${each.leader}` : ""}, e${each.epoch}`);
      add(`${each.name}'s vote`, each.voted_for);
      add(`${each.name}'s voters`, each.voters);
      add(`${each.name}'s high watermark`, each.high_watermark);
      add(`${each.name}'s log start`, each.log_start_offset);
    }
    for (const each of tier?.copies ?? []) add(`copy ${each.number} of ${each.start_offset} to ${each.end_offset - 1}`, each.state);
    if (partition) {
      for (const name of ["leader", "leader_epoch", "isr", "elr", "last_known", "recovery"]) {
        add({ isr: "ISR", elr: "ELR" }[name] ?? name.replace("_", " "), partition[name]);
      }
      for (const [broker, log] of Object.entries(partition.local_logs ?? {})) add(`local log start of ${broker}`, log.start_offset);
    }
    if (group) {
      add("group", group.state);
      add("generation", group.generation);
      for (const each of group.members) add(`${each.name} has`, each.assigned);
    }
    return facts;
  }

  function role({ state, leader_epoch: epoch, believes }) {
    if (state === "leader") return `leads in e${epoch}`;
    if (state === "follower") return believes?.leader ? `follows ${believes.leader} in e${believes.leader_epoch}` : "follower";
    return state === "unassigned" ? "no role yet" : state;
  }

  const said = (value) => value === null || value.length === 0 ? "none" : [value].flat().join(" ");

  /** Records that a log has and had not, and those that it had. */
  function* records(before, now) {
    const logs = (step) => step.replicas ?? step.nodes ?? [];
    const keys = (log) => new Map((log?.cells ?? []).map((cell) => [`${cell.offset} ${cell.epoch} ${cell.value}`, cell.value]));
    for (const log of logs(now)) {
      const [old, records] = [keys(logs(before).find((each) => each.name === log.name)), keys(log)];
      const without = (some, others) => [...some].filter(([key]) => !others.has(key)).map(([, value]) => value);
      const [more, less] = [without(records, old), without(old, records)];
      if (more.length > 0) yield `${log.name} has ${more.join(" ")} now`;
      if (less.length > 0) yield `${log.name} has ${less.join(" ")} no more`;
    }
  }

  ottla.changes = { list };
}
