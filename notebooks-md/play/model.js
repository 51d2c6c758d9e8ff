// What a schedule does and costs: JavaScript for the functions of `Schedule` in crates/data-parallel-collective. A schedule is data,
// { members, chunks, rounds }, and a round is a list of sums, { by, from, to, chunk, in_pairs }. `cargo test` compares the times.
"use strict";

/** What the members hold before the first round and after each one: held[round][member][chunk] is a sum, with its `ranks`
 * and as it is `shown`, such as 0+1+(2+3). */
function held({ members, chunks, rounds }) {
  const own = (member) => Array.from({ length: chunks }, () => ({ ranks: [member], shown: `${member}` }));
  const add = (a, b) => ({
    // a longer list is wrong already, and must not grow without end
    ranks: [...a.ranks, ...b.ranks].slice(0, members + 1),
    shown: a.ranks.length > members ? a.shown : `${a.shown}+${b.ranks.length > 1 ? `(${b.shown})` : b.shown}`,
  });
  const all = [Array.from({ length: members }, (_, member) => own(member))];
  for (const round of rounds) {
    const before = all[all.length - 1];
    const after = before.map((chunks) => [...chunks]);
    for (const { from, to, chunk, in_pairs } of round) {
      const parts = from.map((member) => before[member][chunk]);
      const sum = in_pairs ? addInPairs(parts, add) : parts.reduce(add);
      for (const member of to) after[member][chunk] = sum;
    }
    all.push(after);
  }
  return all;
}

/** Adds neighbours, then their sums, until one is left. */
function addInPairs(parts, add) {
  if (parts.length === 1) return parts[0];
  const pairs = parts.filter((_, i) => i % 2 === 0).map((part, i) => [part, ...parts.slice(2 * i + 1, 2 * i + 2)]);
  return addInPairs(pairs.map((pair) => pair.reduce(add)), add);
}

/** The messages of a round, each with all chunks that one member reads of another, or writes to it. */
function messages(round) {
  const all = new Map();
  const add = (from, to, reads, chunk) => {
    if (from === to) return;
    const key = `${from} ${to} ${reads}`;
    if (!all.has(key)) all.set(key, { from, to, chunks: [] });
    all.get(key).chunks.push(chunk);
  };
  for (const { by, from, to, chunk } of round) {
    for (const member of from) add(member, by, true, chunk);
    for (const member of to) add(by, member, false, chunk);
  }
  return [...all.values()];
}

/** The bytes of a chunk; chunks begin at multiples of 16. */
function chunkBytes({ chunks }, chunk, bytes) {
  const bound = (chunk) =>
    chunk === chunks ? bytes : Math.floor(Math.floor((chunk * bytes) / chunks) / 16) * 16;
  return bound(chunk + 1) - bound(chunk);
}

/** The bytes of the largest chunk. */
function largestChunk(chunks, bytes) {
  return Math.max(...Array.from({ length: chunks }, (_, chunk) => chunkBytes({ chunks }, chunk, bytes)));
}

/** The seconds of a round: those of its busiest member. It sends one message after the other, and receives meanwhile. */
function roundTime(schedule, round, bytes, { latency, speed }) {
  const sends = new Array(schedule.members).fill(0);
  const receives = new Array(schedule.members).fill(0);
  for (const { from, to, chunks } of messages(round)) {
    const all = chunks.reduce((sum, chunk) => sum + chunkBytes(schedule, chunk, bytes), 0);
    const time = latency + all / speed;
    sends[from] += time;
    receives[to] += time;
  }
  return Math.max(0, ...sends, ...receives);
}

/** The seconds of all rounds. */
function time(schedule, bytes, link) {
  return schedule.rounds.reduce((sum, round) => sum + roundTime(schedule, round, bytes, link), 0);
}

/** How many messages the busiest members of the rounds send one after the other. */
function messageCount(schedule) {
  return time(schedule, 16 * schedule.chunks, { latency: 1, speed: Infinity });
}

/** The bytes through the busiest member of a round, as a multiple of N. */
function roundShare(schedule, round) {
  const bytes = 16 * schedule.chunks; // whole chunks
  return roundTime(schedule, round, bytes, { latency: 0, speed: bytes });
}

/** The same of all rounds. */
const byteShare = (schedule) => schedule.rounds.reduce((sum, round) => sum + roundShare(schedule, round), 0);

/** What the all-reduce of a schedule costs: rounds, messages and bytes as above, and the seconds by bytes and link. */
function cost(schedule) {
  return {
    rounds: schedule.rounds.length,
    messages: Math.round(messageCount(schedule)),
    share: byteShare(schedule),
    time: (bytes, link) => time(schedule, bytes, link),
  };
}

/** The same of an algorithm for k members, 2 or more, without its schedule: with k = 1024 that has a million messages. The
 * busiest members send one message after the other, each as large as the largest chunk. */
function costOfMany(algorithm, k) {
  const levels = Math.ceil(Math.log2(k));
  const { rounds, messages, chunks } = {
    star: { rounds: 2, messages: 2 * (k - 1), chunks: 1 },
    owner: { rounds: 2, messages: 2 * (k - 1), chunks: k },
    ring: { rounds: 2 * (k - 1), messages: 2 * (k - 1), chunks: k },
    tree: { rounds: 2 * levels, messages: 2 * levels, chunks: 1 },
  }[algorithm];
  const time = (bytes, { latency, speed }) => messages * (latency + largestChunk(chunks, bytes) / speed);
  return { rounds, messages, share: messages / chunks, time };
}

/** What is wrong with data that should be a schedule, as a sentence, or null. */
function mistake(data) {
  const isCount = (x, least, most) => Number.isInteger(x) && x >= least && x <= most;
  if (!isCount(data?.members, 1, 16) || !isCount(data.chunks, 1, 64)) {
    return "It needs `members`, a number from 1 to 16, and `chunks`, from 1 to 64.";
  }
  if (!Array.isArray(data.rounds) || !data.rounds.every(Array.isArray)) {
    return "`rounds` has to be a list of rounds, and each round a list of sums.";
  }
  const isMember = (member) => isCount(member, 0, data.members - 1);
  for (const [number, round] of data.rounds.entries()) {
    for (const sum of round) {
      const lists = [sum?.from, sum?.to, [sum?.by]];
      if (!lists.every((list) => Array.isArray(list) && list.length > 0 && list.every(isMember))) {
        return `Round ${number + 1}: \`by\`, \`from\` and \`to\` have to name members, 0 to ${data.members - 1}.`;
      }
      if (!isCount(sum.chunk, 0, data.chunks - 1)) {
        return `Round ${number + 1}: there is no chunk ${sum.chunk}.`;
      }
    }
    for (const sum of round) {
      const { by, to, chunk } = sum;
      const uses = (other) => to.some((member) => [...other.from, ...other.to].includes(member));
      const other = round.find((other) => other !== sum && other.chunk === chunk && uses(other));
      if (other) return `Round ${number + 1}: member ${by} writes chunk ${chunk} while member ${other.by} uses it.`;
    }
  }
  return null;
}

/** Where the schedule is no all-reduce, as a sentence; or null. */
function notAnAllReduce(schedule) {
  const last = held(schedule).at(-1);
  for (const [member, chunks] of last.entries()) {
    for (const [chunk, { ranks, shown }] of chunks.entries()) {
      const right = last[0][chunk].shown;
      const once = new Set(ranks).size === schedule.members && ranks.length === schedule.members;
      if (!once) return `It is no all-reduce: member ${member} ends with ${shown} in chunk ${chunk}.`;
      if (shown !== right) return `Chunk ${chunk} is ${right} on member 0 and ${shown} on member ${member}: their bits may differ.`;
    }
  }
  return null;
}
