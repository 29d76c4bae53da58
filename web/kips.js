/** What the KIPs are about that the stories show; docs/kips/README.md has the same words (tests/unit/test_web.py). */
"use strict";
globalThis.ottla ??= {};
{
  ottla.kips = {
    "KIP-101": "truncate by leader epoch, not by high watermark",
    "KIP-134": "wait for more members before the first rebalance",
    "KIP-183": "an API for preferred leaders",
    "KIP-207": "no latest offset before the leader knows it",
    "KIP-279": "after two fast leader changes",
    "KIP-320": "clients and followers send the leader epoch that they know",
    "KIP-345": "static members",
    "KIP-389": "a bound on members",
    "KIP-392": "consumers fetch from the nearest replica",
    "KIP-394": "a member is given its id before it joins",
    "KIP-405": "tiered storage",
    "KIP-460": "elections of leaders that lack records",
    "KIP-497": "the controller changes the ISR",
    "KIP-595": "a log that elects its own leader",
    "KIP-630": "snapshots of the metadata log",
    "KIP-704": "the leader recovery state",
    "KIP-814": "a static leader that skips the assignment",
    "KIP-841": "fenced brokers are in no ISR",
    "KIP-853": "voters that change",
    "KIP-858": "log directories in the metadata",
    "KIP-903": "a broker that lost its disk is not in sync",
    "KIP-966": "eligible leader replicas",
    "KIP-996": "pre-votes",
    "KIP-1023": "an empty follower starts after the tiered records",
    "KIP-1241": "copies that wait for their use",
    "KIP-1303": "elections prefer replicas with older local records",
  };
}
