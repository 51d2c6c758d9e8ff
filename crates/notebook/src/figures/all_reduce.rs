//! The all-reduce algorithms step by step, drawn from the schedules that are carried out.

use super::card::{Card, DEVICES, EMPTY, FAINT, INK, LIT, MARK, Pair, SOFT, WIDTH};
use super::motion::Motion;
use collective::{Algorithm, Schedule, Sum};

/// Devices.
const K: usize = 4;
/// Where the devices begin; the rounds are named left of them.
const LEFT: f64 = 98.0;
const COLUMN: f64 = (WIDTH - 16.0 - LEFT) / K as f64;
/// A device's chunks side by side; in each a slot for the gradient of every device.
const BOX: Pair = (78.0, 30.0);
/// The chunk with a marked path, where there are several chunks.
const MARKED: usize = 0;

/// For each chunk of each device: the devices with gradients in its sum so far.
type Held = Vec<Vec<Vec<usize>>>;

/// A round in the picture.
struct Round<'a> {
    number: usize,
    sums: &'a [Sum],
    chunks: usize,
    /// The foot of the boxes before it, and the top of those after it.
    from_to: Pair,
}

pub fn svg(algorithm: Algorithm) -> String {
    let schedule = Schedule::new(algorithm, K);
    let stages = schedule.rounds.len();
    // the ring's path is hard to follow in a still picture
    let mut card = match algorithm {
        Algorithm::Ring => Card::moving(Motion {
            stages,
            stage: 1.5,
            rest: 1.0,
        }),
        _ => Card::new(),
    };
    let mut y = legend(&mut card, says(algorithm), schedule.chunks);
    let band = if stages > 4 { 33.0 } else { 52.0 };
    let mut held: Held = (0..K).map(|r| vec![vec![r]; schedule.chunks]).collect();
    state(&mut card, y, &held, &[]);
    for (number, sums) in schedule.rounds.iter().enumerate() {
        let from_to = (y + BOX.1, y + BOX.1 + band);
        let round = Round {
            number,
            sums,
            chunks: schedule.chunks,
            from_to,
        };
        round.draw(&mut card, busiest(&schedule, sums), &held);
        y = from_to.1;
        sum_up(&mut held, sums);
        state(&mut card, y, &held, sums);
    }
    let all: usize = schedule.rounds.iter().map(|r| busiest(&schedule, r)).sum();
    footer(&mut card, y + BOX.1, all);
    card.finish(y + BOX.1 + 53.0, &label(&schedule, all))
}

fn says(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Star => "Star: device 0 sums, the others copy the sum",
        Algorithm::Owner => "Owner: each device sums one chunk for all",
        Algorithm::Ring => "Ring: chunks go round to sum, then to copy",
        Algorithm::Tree => "Tree: pairs sum, then pairs of pairs, and back",
        Algorithm::Auto => unreachable!("auto is a choice among the four"),
    }
}

fn label(schedule: &Schedule, all: usize) -> String {
    let sums = schedule.rounds.iter().filter(|round| adds(round)).count();
    let copies = schedule.rounds.len() - sums;
    let many = |n: usize| {
        if n == 1 {
            "1 round".to_owned()
        } else {
            format!("{n} rounds")
        }
    };
    format!(
        "All-reduce among {K} devices, {}: {} of sums, {} of copies, {} bytes through the busiest link",
        schedule.algorithm,
        many(sums),
        many(copies),
        of_n(all)
    )
}

/// The words above the boxes; returns where the boxes begin.
fn legend(card: &mut Card, title: &str, chunks: usize) -> f64 {
    card.text((16.0, 30.0), "title", title);
    card.text((16.0, 53.0), "soft", "gradients of");
    for (device, color) in DEVICES.iter().enumerate() {
        let x = 118.0 + 40.0 * device as f64;
        card.tile((x, 42.0), (14.0, 12.0), color);
        card.text((x + 18.0, 53.0), "", &device.to_string());
    }
    card.frame((286.0, 41.0), (14.0, 14.0), INK);
    card.text((306.0, 53.0), "soft", "new in this round");
    let mut y = 77.0;
    if chunks > 1 {
        let words = format!("orange: the path of the first of {chunks} chunks");
        card.text((16.0, y - 3.0), "mark", &words);
        y += 19.0;
    }
    for device in 0..K {
        let (x, width) = bar(device, 0, 1);
        let words = format!("device {device}");
        card.text((x + width / 2.0, y), "middle soft", &words);
    }
    y + 8.0
}

/// The words below the boxes.
fn footer(card: &mut Card, y: f64, all: usize) {
    let words = "N: bytes of one gradient. Each round shows the bytes";
    card.text((16.0, y + 23.0), "soft", words);
    let words = format!("through its busiest link. All rounds: {}.", of_n(all));
    card.text((16.0, y + 41.0), "soft", &words);
}

/// Where a chunk of a device begins, and how wide it is.
fn bar(device: usize, chunk: usize, chunks: usize) -> Pair {
    let pitch = (BOX.0 + 2.0) / chunks as f64;
    let left = LEFT + COLUMN * device as f64 + (COLUMN - BOX.0) / 2.0;
    (left + pitch * chunk as f64, pitch - 2.0)
}

/// The chunks of all devices below `y`; those that are new in this round have a frame.
fn state(card: &mut Card, y: f64, held: &Held, round: &[Sum]) {
    for (device, chunks) in held.iter().enumerate() {
        for (chunk, parts) in chunks.iter().enumerate() {
            let (x, width) = bar(device, chunk, chunks.len());
            slots(card, (x, y), width, parts, Some(EMPTY));
            let new = |sum: &Sum| sum.chunk == chunk && sum.to.contains(&device);
            if round.iter().any(new) {
                let color = if is_marked(chunk, chunks.len()) {
                    MARK
                } else {
                    INK
                };
                card.frame((x - 1.0, y - 1.5), (width + 2.0, BOX.1 + 2.0), color);
            }
        }
    }
}

/// A chunk: the gradients that are in it, and what the slots of the others are filled with.
fn slots(card: &mut Card, (x, y): Pair, width: f64, parts: &[usize], others: Option<&str>) {
    let height = BOX.1 / K as f64;
    for (device, color) in DEVICES.iter().enumerate() {
        let fill = if parts.contains(&device) {
            Some(*color)
        } else {
            others
        };
        if let Some(fill) = fill {
            card.tile((x, y + height * device as f64), (width, height - 1.0), fill);
        }
    }
}

fn is_marked(chunk: usize, chunks: usize) -> bool {
    chunks > 1 && chunk == MARKED
}

impl Round<'_> {
    /// What it does, its arrows, and the chunks that move, so many quarters of all bytes through the busiest link.
    fn draw(&self, card: &mut Card, busiest: usize, held: &Held) {
        let (foot, top) = self.from_to;
        let size = (WIDTH - 16.0, top - foot + BOX.1);
        card.lit(self.number, |card| card.tile((8.0, foot + 3.0), size, LIT));
        let middle = (foot + top) / 2.0;
        let words = format!("round {}", self.number + 1);
        card.text((16.0, middle - 1.0), "bold", &words);
        let does = if adds(self.sums) { "sum" } else { "copy" };
        let words = format!("{does}, {}", of_n(busiest));
        card.text((16.0, middle + 17.0), "soft", &words);
        // the marked ones over the others
        let (marked, others): (Vec<&Sum>, Vec<&Sum>) = self
            .sums
            .iter()
            .partition(|sum| is_marked(sum.chunk, self.chunks));
        let color = if self.chunks > 1 { FAINT } else { SOFT };
        others.iter().for_each(|sum| self.arrows(card, sum, color));
        marked.iter().for_each(|sum| self.arrows(card, sum, MARK));
        self.sums.iter().for_each(|sum| self.carry(card, sum, held));
    }

    /// Arrows from the devices that are read to the device that adds or copies.
    fn arrows(&self, card: &mut Card, sum: &Sum, color: &str) {
        let (foot, top) = self.from_to;
        // a chunk that several devices read has as many arrows, side by side
        let same = |s: &&Sum| s.chunk == sum.chunk && s.from == sum.from;
        let readers: Vec<usize> = self.sums.iter().filter(same).map(|s| s.by).collect();
        let out = readers.iter().position(|by| *by == sum.by).unwrap_or(0);
        let at = |device: usize, (i, of): (usize, usize)| {
            let (x, width) = bar(device, sum.chunk, self.chunks);
            x + width * (i + 1) as f64 / (of + 1) as f64
        };
        for (i, from) in sum
            .from
            .iter()
            .enumerate()
            .filter(|(_, from)| **from != sum.by)
        {
            let start = at(*from, (out, readers.len()));
            let end = at(sum.by, (i, sum.from.len()));
            card.arrow(&[(start, foot + 3.0), (end, top - 3.0)], color);
        }
    }

    /// The chunks on their way, in a figure that moves.
    fn carry(&self, card: &mut Card, sum: &Sum, held: &Held) {
        let y = self.from_to.0 - BOX.1;
        for from in sum.from.iter().filter(|from| **from != sum.by) {
            let (x, width) = bar(*from, sum.chunk, self.chunks);
            let (to, _) = bar(sum.by, sum.chunk, self.chunks);
            let parts = &held[*from][sum.chunk];
            card.carried(self.number, (to - x, self.from_to.1 - y), |card| {
                slots(card, (x, y), width, parts, None);
            });
        }
    }
}

fn sum_up(held: &mut Held, round: &[Sum]) {
    let before = held.clone();
    for sum in round {
        let parts = sum.from.iter().flat_map(|r| before[*r][sum.chunk].clone());
        let parts: Vec<usize> = parts.collect();
        for rank in &sum.to {
            held[*rank][sum.chunk] = parts.clone();
        }
    }
}

fn adds(round: &[Sum]) -> bool {
    round.iter().any(|sum| sum.from.len() > 1)
}

/// The most that goes into a device, or out of it, in a round: in quarters of all bytes.
fn busiest(schedule: &Schedule, round: &[Sum]) -> usize {
    let mut flows = [[0; 2]; K];
    for sum in round {
        let reads = sum.from.iter().map(|from| (*from, sum.by));
        let writes = sum.to.iter().map(|to| (sum.by, *to));
        for (from, to) in reads.chain(writes).filter(|(from, to)| from != to) {
            flows[from][0] += 4 / schedule.chunks;
            flows[to][1] += 4 / schedule.chunks;
        }
    }
    flows.into_iter().flatten().max().unwrap_or(0)
}

fn of_n(quarters: usize) -> String {
    let part = ["", "¼", "½", "¾"][quarters % 4];
    match quarters / 4 {
        0 => format!("{part} N"),
        1 if part.is_empty() => "N".to_owned(),
        whole => format!("{whole}{part} N"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collective::cost::Link;

    #[test]
    fn the_bytes_are_those_of_the_cost_model() {
        let link = Link {
            latency: Default::default(),
            bytes_per_second: 4.0,
        };
        for algorithm in Algorithm::ALL {
            let schedule = Schedule::new(algorithm, K);
            let all: usize = schedule.rounds.iter().map(|r| busiest(&schedule, r)).sum();
            let quarters = link.time(algorithm, K, 16).as_secs_f64();
            assert_eq!(all as f64, quarters, "{algorithm}");
        }
    }

    #[test]
    fn every_device_ends_with_every_gradient() {
        for algorithm in Algorithm::ALL {
            let schedule = Schedule::new(algorithm, K);
            let mut held: Held = (0..K).map(|r| vec![vec![r]; schedule.chunks]).collect();
            schedule
                .rounds
                .iter()
                .for_each(|round| sum_up(&mut held, round));
            assert!(held.iter().flatten().all(|parts| parts.len() == K));
        }
    }

    #[test]
    fn quarters_are_read_as_people_write_them() {
        let read = ["¼ N", "¾ N", "N", "1½ N", "6 N"];
        assert_eq!([1, 3, 4, 6, 24].map(of_n), read);
    }
}
