// What a schedule does and costs: JavaScript for the functions of `Schedule` in crates/collective. A schedule is data,
// { members, chunks, rounds }, and a round is a list of sums, { by, from, to, chunk }. `cargo test` compares the times.
"use strict";

/** What the members hold before the first round and after each one: held[round][member][chunk] is a list of members. */
function held({ members, chunks, rounds }) {
  const own = (member) => Array.from({ length: chunks }, () => [member]);
  const all = [Array.from({ length: members }, (_, member) => own(member))];
  for (const round of rounds) {
    const before = all[all.length - 1];
    const after = before.map((chunks) => [...chunks]);
    for (const { from, to, chunk } of round) {
      const sum = from.flatMap((member) => before[member][chunk]);
      for (const member of to) after[member][chunk] = sum;
    }
    all.push(after);
  }
  return all;
}

/** The messages of a round, each with all chunks that one member reads of another, or writes to it. */
function messages(round) {
  const all = new Map();
  const add = (from, to, reads, chunk) => {
    const key = `${from} ${to} ${reads}`;
    if (!all.has(key)) all.set(key, { from, to, chunks: [] });
    if (from !== to) all.get(key).chunks.push(chunk);
  };
  for (const { by, from, to, chunk } of round) {
    for (const member of from) add(member, by, true, chunk);
    for (const member of to) add(by, member, false, chunk);
  }
  return [...all.values()].filter(({ chunks }) => chunks.length > 0);
}

/** The bytes of a chunk; chunks begin at multiples of 16. */
function chunkBytes({ chunks }, chunk, bytes) {
  const bound = (chunk) =>
    chunk === chunks ? bytes : Math.floor(Math.floor((chunk * bytes) / chunks) / 16) * 16;
  return bound(chunk + 1) - bound(chunk);
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

/** The bytes through the busiest members of the rounds, as a multiple of N. */
function byteShare(schedule) {
  const bytes = 16 * schedule.chunks; // whole chunks
  return time(schedule, bytes, { latency: 0, speed: bytes });
}

/** What is wrong with data that should be a schedule, as a sentence, or null. */
function mistake(data) {
  const isCount = (x, end) => Number.isInteger(x) && x >= 0 && x < end;
  if (!isCount(data?.members - 1, 64) || !isCount(data.chunks - 1, 64)) {
    return "It needs `members` and `chunks`, each a number from 1 to 64.";
  }
  if (!Array.isArray(data.rounds) || !data.rounds.every(Array.isArray)) {
    return "`rounds` has to be a list of rounds, and each round a list of sums.";
  }
  for (const [number, round] of data.rounds.entries()) {
    for (const sum of round) {
      const lists = [sum?.from, sum?.to, [sum?.by]];
      const isMember = (member) => isCount(member, data.members);
      if (!lists.every((list) => Array.isArray(list) && list.length > 0 && list.every(isMember))) {
        return `Round ${number + 1}: \`by\`, \`from\` and \`to\` have to name members, 0 to ${data.members - 1}.`;
      }
      if (!isCount(sum.chunk, data.chunks)) {
        return `Round ${number + 1}: there is no chunk ${sum.chunk}.`;
      }
    }
  }
  return null;
}

/** Whether every member ends with the values of every member once: a sentence that says where not, or null. */
function notAnAllReduce(schedule) {
  for (const [member, chunks] of held(schedule).at(-1).entries()) {
    for (const [chunk, sum] of chunks.entries()) {
      const once = new Set(sum).size === schedule.members && sum.length === schedule.members;
      if (!once) return `It is no all-reduce: member ${member} ends with ${sum.join("+")} in chunk ${chunk}.`;
    }
  }
  return null;
}
