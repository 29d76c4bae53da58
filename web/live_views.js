/**
 * The views of the live page. Each is {title, source, draw}: the words above it, the address of its snapshot, and the nodes
 * that show a snapshot. Links lead from one to the next; nothing in what is drawn listens, so that it can be drawn again.
 */
"use strict";
{
  const { el, number, visible, epoch, epochs, bar } = ottla.draw;
  const { size, duration, time, counted, badge, table, course, pages } = ottla.parts;

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
    ["Broker", (each) => `broker ${each.id}`, { head: true }],
    ["State", (each) => badge(each.state, each.state === "alive" ? "good" : "bad")],
    ["Leads", (each) => number(each.leaders), { kind: "number" }],
    ["Replicas", (each) => number(each.replicas), { kind: "number" }],
    ["Offline", (each) => each.offline_replicas ? badge(number(each.offline_replicas), "bad") : "0", { kind: "number" }],
    ["Rack", (each) => each.rack && visible(each.rack)],
    ["Address", (each) => each.address && visible(each.address)],
  ];
  const controllerColumns = [
    ["Node", (each) => `node ${each.id}`, { head: true }],
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

  const REPLICA_HEADS = ["Replica", "State", "Log", "Log start", "Tier end", "Local start", "High watermark", "Log end", "Local bytes"];
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
            .map((value, at) => el("td", { class: "number", "data-label": REPLICA_HEADS[at + 3] }, number(value))),
          el("td", { class: "number", "data-label": REPLICA_HEADS.at(-1) }, size(each.local_bytes))]);
  }

  /** One partition: the facts of its leader, and a row with a bar for each replica; bars of a partition have one scale. */
  function partition(each, name, isOfMany = true) {
    const known = each.replicas.filter((log) => log.log_end_offset != null);
    const scale = { from: Math.min(...known.map((log) => log.log_start_offset)), to: Math.max(...known.map((log) => log.log_end_offset)) };
    return el("section", { class: "partition", "data-key": each.partition },
      isOfMany && el("h2", {}, link("partition", { topic: name, partition: each.partition }, `Partition ${each.partition}`)),
      el("p", {}, badge(each.state, PARTITION_STATES[each.state] ?? "bad"), " ",
        each.leader == null ? "no leader" : `leader ${each.leader}`, " ", epoch(each.leader_epoch),
        ` ISR ${ids(each.isr)}`, each.elr.length > 0 && ` · ELR ${ids(each.elr)}`,
        each.last_known_elr.length > 0 && ` · last known leader ${ids(each.last_known_elr)}`),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Replicas of partition ${each.partition} of ${visible(name)}` },
        el("table", { class: "rows" },
          el("thead", {}, el("tr", {}, REPLICA_HEADS.map((head, at) => el("th", { scope: "col", class: at > 2 && "number" }, head)))),
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

  // One partition

  const segmentColumns = [
    ["From offset", (each) => number(each.base_offset), { kind: "number", head: true }],
    ["To", (each) => each.end_offset > each.base_offset ? number(each.end_offset - 1) : "empty", { kind: "number" }],
    ["Bytes", (each) => size(each.bytes), { kind: "number" }],
  ];
  const copyColumns = [
    ["From offset", (each) => number(each.start_offset), { kind: "number", head: true }],
    ["To", (each) => number(each.end_offset - 1), { kind: "number" }],
    ["State", (each) => badge(each.state.replace("_SEGMENT", "").replace("_", " ").toLowerCase(), each.state === "COPY_SEGMENT_FINISHED" ? "good" : "plain")],
    ["Bytes", (each) => size(each.bytes), { kind: "number" }],
    ["Newest record", (each) => time(each.max_timestamp_ms)],
    ["Epochs", (each) => epochs(each.epochs)],
    ["By broker", (each) => each.broker, { kind: "number" }],
    ["Object", (each) => each.object && el("code", {}, visible(each.object))],
  ];
  const latest = (shown, count, noun) => el("p", { class: "soft" },
    shown < count ? `The last ${number(shown)} of ${counted(count, noun)}.` : counted(count, noun));

  const partitionView = {
    within: "topics",
    title: ({ topic: name, partition: index }) => `${visible(name ?? "")}, partition ${visible(index ?? 0)}`,
    source: ({ topic: name, partition: index }) => ["partition", { topic: name, partition: index }],
    draw: (data) => [
      el("p", {}, link("records", { topic: data.topic, partition: data.partition }, "Records"), " · ",
        link("topic", { topic: data.topic }, "All partitions of the topic")),
      partition(data, data.topic, false),
      el("h2", {}, "Leader epochs"),
      data.log ? [el("p", {}, epochs(data.log.epochs)), latest(data.log.epochs.length, data.log.epoch_count, "epoch")]
        : el("p", { class: "soft" }, `Broker ${data.node} has no replica of this partition: the page of one that has shows segments, epochs and copies.`),
      data.log && [el("h2", {}, `Segments of broker ${data.node}`),
        table("Local segments", segmentColumns, data.log.segments, { key: (each) => each.base_offset }),
        latest(data.log.segments.length, data.log.segment_count, "segment"),
        el("p", { class: "soft" }, visible(data.log.directory), ` · flushed before ${number(data.log.recovery_point)} · last stable offset `,
          number(data.log.last_stable_offset), ` · ${counted(data.log.producers, "producer")}`)],
      data.tier && [el("h2", {}, "Copies in the remote tier"),
        data.tier.problem && el("div", { class: "note bad" }, el("p", {}, visible(data.tier.problem))),
        table("Copies", copyColumns, data.tier.copies, { key: (each) => each.id, empty: "Nothing is copied." }),
        data.tier.copies.length < data.tier.copy_count
          && el("p", { class: "soft" }, `The last ${data.tier.copies.length} of ${number(data.tier.copy_count)} copies.`)],
    ],
  };

  // Groups

  const GROUP_STATES = { Stable: "good", Empty: "plain", Dead: "plain" };
  const lag = (value) => value == null ? "not known" : number(value);
  const problems = (list) => list.length > 0 && el("div", { class: "note bad" }, list.map((each) => el("p", {}, visible(each))));
  const groupColumns = [
    ["Group", (each) => link("group", { group: each.group }, visible(each.group)), { head: true, kind: "wide" }],
    ["State", (each) => badge(each.state, GROUP_STATES[each.state] ?? "fair")],
    ["Members", (each) => number(each.members), { kind: "number" }],
    ["Lag", (each) => lag(each.lag), { kind: "number" }],
    ["Lag, last minutes", (each) => course(each.lags, "Lag")],
    ["Coordinator", (each) => `broker ${each.coordinator}`],
  ];

  const groups = {
    section: "Groups",
    title: () => "Consumer groups",
    source: ({ search, page }) => ["groups", { search, page }],
    controls: [{ name: "search", label: "Name contains", type: "search" }],
    draw: (data, parameters) => [
      problems(data.problems),
      table("Groups", groupColumns, data.groups, { key: (each) => each.group,
        empty: parameters.search ? "No group has such a name." : "There are no groups." }),
      pages(data, (page) => ottla.live.address("groups", { ...parameters, page }), "group"),
    ],
  };

  const memberColumns = [
    ["Member", (each) => visible(each.member), { head: true, kind: "wide" }],
    ["Client", (each) => visible(each.client)],
    ["Host", (each) => visible(each.host)],
    ["Partitions", (each) => number(each.partitions), { kind: "number" }],
  ];
  const progressColumns = [
    ["Topic", (each) => link("topic", { topic: each.topic }, visible(each.topic)), { head: true, kind: "wide" }],
    ["Partition", (each) => link("records", { topic: each.topic, partition: each.partition, offset: each.committed }, each.partition), { kind: "number" }],
    ["Committed", (each) => number(each.committed), { kind: "number" }],
    ["End", (each) => number(each.end), { kind: "number" }],
    ["Lag", (each) => each.is_committed_known && each.committed == null ? "nothing committed" : lag(each.lag), { kind: "number" }],
    ["Read by", (each) => each.member && visible(each.member), { kind: "wide" }],
  ];

  const group = {
    within: "groups",
    title: ({ group: name }) => visible(name ?? ""),
    source: ({ group: name }) => ["group", { group: name }],
    draw: (data) => [
      problems(data.problems),
      el("p", {}, badge(data.state, GROUP_STATES[data.state] ?? "fair"), ` ${data.type} · coordinator broker ${data.coordinator}`,
        data.assignor && ` · ${visible(data.assignor)}`),
      el("dl", { class: "facts" }, el("div", { class: "fact" }, el("dt", {}, "Lag"), el("dd", {}, lag(data.lag), course(data.lags, "Lag")))),
      el("h2", {}, "Members"), table("Members", memberColumns, data.clients, { key: (each) => each.member, empty: "The group has no members." }),
      el("h2", {}, "Partitions"),
      table("Partitions", progressColumns, data.partitions, { key: (each) => `${each.topic}-${each.partition}`, empty: "The group has committed no offsets." }),
      data.partitions.length < data.partition_count && latest(data.partitions.length, data.partition_count, "partition"),
    ],
  };

  Object.assign(ottla, { views: { overview, topics, topic, partition: partitionView, groups, group } });
}
