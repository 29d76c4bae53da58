/**
 * The views of the live page. Each is {title, source, draw}: the words above it, the address of its snapshot, and the nodes
 * that show a snapshot. Links lead from one to the next; nothing in what is drawn listens, so that it can be drawn again.
 */
"use strict";
{
  const { el, number, visible, epoch, bar } = ottla.draw;
  const { size, duration, counted, badge, table, course, pages } = ottla.parts;

  const LEVELS = { healthy: "good", degraded: "fair", unavailable: "bad" };

  /** A link within the page: #/view?name=value&… */
  const link = (view, parameters, text) => el("a", { href: ottla.live.address(view, parameters) }, text);
  const ids = (list) => list.length ? list.join(", ") : "none";

  // Overview

  function health({ level, sentence, reasons }) {
    return el("section", { class: `health ${LEVELS[level]}`, "aria-label": "Health" },
      el("h2", {}, level[0].toUpperCase() + level.slice(1)),
      reasons.length === 0
        ? el("p", { class: "sentence" }, visible(sentence.replace(/^\w+: /, "")))
        : el("ul", { class: "reasons" }, reasons.map((each) => el("li", { class: LEVELS[each.level] }, visible(each.text)))));
  }

  function rates({ per_second: now, p99_ms: p99, bytes_in: bytesIn, bytes_out: bytesOut }) {
    const fact = (name, value, more) => el("div", { class: "fact" }, el("dt", {}, name), el("dd", {}, value, more && el("div", {}, more)));
    const ms = (value) => value == null ? "no requests" : `≤ ${value} ms`;
    return el("dl", { class: "facts" },
      fact("Records in", `${number(Math.round(now.messages_in))} /s`),
      fact("Bytes in", `${size(now.bytes_in)}/s`, course(bytesIn, "Bytes in per second")),
      fact("Bytes out", `${size(now.bytes_out)}/s`, course(bytesOut, "Bytes out per second")),
      fact("Produce, p99", ms(p99.produce)),
      fact("Fetch of consumers, p99", ms(p99.fetch_consumer)));
  }

  const brokerColumns = [
    ["Broker", (each) => each.id, { head: true }],
    ["State", (each) => badge(each.state, each.state === "alive" ? "good" : "bad")],
    ["Leads", (each) => number(each.leaders), { kind: "number" }],
    ["Replicas", (each) => number(each.replicas), { kind: "number" }],
    ["Offline", (each) => each.offline_replicas ? badge(number(each.offline_replicas), "bad") : "0", { kind: "number" }],
    ["Rack", (each) => each.rack && visible(each.rack)],
    ["Address", (each) => each.address && visible(each.address)],
  ];
  const controllerColumns = [
    ["Controller", (each) => each.id, { head: true }],
    ["Role", (each) => badge(each.role, each.role === "active" ? "good" : "plain")],
    ["Log end", (each) => number(each.log_end_offset), { kind: "number" }],
    ["Behind", (each) => number(each.lag), { kind: "number" }],
    ["Caught up", (each) => each.role === "active" ? "–" : each.caught_up_ms_ago == null ? "not known" : `${duration(each.caught_up_ms_ago)} ago`],
  ];

  const overview = {
    section: "Overview",
    title: () => "Cluster",
    source: () => "overview",
    draw: (data) => [
      health(data),
      el("p", { class: "soft" }, `${counted(data.totals.topics, "topic")}, ${counted(data.totals.partitions, "partition")} · cluster `,
        visible(data.cluster_id), ` · seen from broker ${data.node.id}, Ottla ${data.node.version}`),
      el("h2", {}, `Broker ${data.node.id} now`), rates(data.rates),
      el("h2", {}, "Brokers"), table("Brokers", brokerColumns, data.brokers, { key: (each) => each.id }),
      el("h2", {}, "Metadata quorum"),
      table("Metadata quorum", controllerColumns, data.controllers,
        { key: (each) => each.id, empty: "The controllers are not known: no controller answers." }),
    ],
  };

  // Topics

  const topicState = (each) => {
    const parts = [[each.leaderless, "without leader", "bad"], [each.under_min_isr, "under min ISR", "bad"],
      [each.under_replicated, "under-replicated", "fair"]];
    const found = parts.filter(([count]) => count).map(([count, text, kind]) => badge(`${count} ${text}`, kind));
    return found.length ? found : badge("in sync", "good");
  };
  const topicColumns = [
    ["Topic", (each) => link("topic", { topic: each.name }, visible(each.name)), { head: true, kind: "wide" }],
    ["State", topicState],
    ["Partitions", (each) => number(each.partitions), { kind: "number" }],
    ["Replicas", (each) => number(each.replication_factor), { kind: "number" }],
    ["Tier", (each) => each.tiered ? "both" : "local"],
    ["Records in /s, here", (each) => number(each.messages_in_per_second), { kind: "number" }],
  ];

  const topics = {
    section: "Topics",
    title: () => "Topics",
    source: ({ search, order, internal, page }) => ["topics", { search, order, internal, page }],
    controls: [
      { name: "search", label: "Name contains", type: "search" },
      { name: "order", label: "Order", options: { name: "by name", state: "worst first", partitions: "most partitions first" } },
      { name: "internal", label: "Internal topics", type: "checkbox" },
    ],
    draw: (data, parameters) => [
      table("Topics", topicColumns, data.topics, { key: (each) => each.name,
        empty: parameters.search ? "No topic has such a name." : "There are no topics yet." }),
      pages(data, (page) => ottla.live.address("topics", { ...parameters, page }), "topic"),
    ],
  };

  // One topic

  const PARTITION_STATES = { "in sync": "good", "under-replicated": "fair" };

  function replica(each, scale) {
    const role = each.leads ? "leader" : each.in_isr ? "in sync" : each.in_elr ? "in the ELR" : "not in sync";
    const why = each.problem ?? (each.log_end_offset == null ? each.offline ? "The replica is offline." : "Its log is not known." : null);
    return el("tr", { "data-key": each.broker, class: each.leads && "leads" },
      el("th", { scope: "row" }, `broker ${each.broker}`),
      el("td", {}, badge(role, each.leads || each.in_isr ? "good" : "bad"), each.moving && badge(`moving ${each.moving}`)),
      why
        ? el("td", { colspan: 7, class: "problem" }, visible(why))
        : [el("td", { class: "course" }, bar(each, scale)),
          ...[each.log_start_offset, each.tier_end_offset, each.local_log_start_offset, each.high_watermark, each.log_end_offset]
            .map((value) => el("td", { class: "number" }, number(value))),
          el("td", { class: "number" }, size(each.local_bytes))]);
  }

  /** One partition: the facts of its leader, and a row with a bar for each replica; bars of a partition have one scale. */
  function partition(each, name) {
    const known = each.replicas.filter((log) => log.log_end_offset != null);
    const scale = { from: Math.min(...known.map((log) => log.log_start_offset)), to: Math.max(...known.map((log) => log.log_end_offset)) };
    const heads = ["Replica", "State", "Log", "Log start", "Tier end", "Local start", "High watermark", "Log end", "Local bytes"];
    return el("section", { class: "partition", "data-key": each.partition },
      el("h2", {}, `Partition ${each.partition}`),
      el("p", {}, badge(each.state, PARTITION_STATES[each.state] ?? "bad"), " ",
        each.leader == null ? "no leader" : `leader ${each.leader}`, " ", epoch(each.leader_epoch),
        ` ISR ${ids(each.isr)}`, each.elr.length > 0 && ` · ELR ${ids(each.elr)}`,
        each.last_known_elr.length > 0 && ` · last known leader ${ids(each.last_known_elr)}`),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Replicas of partition ${each.partition} of ${visible(name)}` },
        el("table", { class: "rows" },
          el("thead", {}, el("tr", {}, heads.map((head, at) => el("th", { scope: "col", class: at > 2 && "number" }, head)))),
          el("tbody", {}, each.replicas.map((log) => replica(log, scale))))));
  }

  const topic = {
    within: "topics",
    title: ({ topic: name }) => visible(name ?? ""),
    source: ({ topic: name, page }) => ["topic", { topic: name, page }],
    draw: (data, parameters) => [
      el("p", { class: "soft" }, `id ${data.topic_id} · min.insync.replicas ${data.min_isr}`,
        Object.entries(data.configs).map(([key, value]) => el("span", { class: "config" }, ` · ${visible(key)}=${visible(value)}`))),
      data.partitions.map((each) => partition(each, data.name)),
      pages(data, (page) => ottla.live.address("topic", { ...parameters, page }), "partition"),
    ],
  };

  ottla.views = { overview, topics, topic };
}
