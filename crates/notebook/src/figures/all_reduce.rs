//! The all-reduce algorithms step by step, drawn from the schedules that are carried out.

use super::card::{Card, DEVICES, EMPTY, FAINT, INK, Pair, SOFT, WIDTH};
use collective::{Algorithm, Schedule, Sum};

/// Devices.
const K: usize = 4;
/// Where the devices begin; left of them is what a round does.
const LEFT: f64 = 98.0;
const COLUMN: f64 = (WIDTH - 16.0 - LEFT) / K as f64;
/// What a device holds: its chunks side by side, in each a slot for the gradient of every device.
const BOX: Pair = (78.0, 40.0);
const BAND: f64 = 58.0;

/// Whose gradients each chunk of each device is the sum of so far.
type Held = Vec<Vec<Vec<usize>>>;

pub fn svg(algorithm: Algorithm) -> String {
    let schedule = Schedule::new(algorithm, K);
    let mut card = Card::new();
    legend(&mut card, says(algorithm));
    let mut held: Held = (0..K).map(|r| vec![vec![r]; schedule.chunks]).collect();
    let mut y = 92.0;
    state(&mut card, y, &held, &[]);
    for (i, round) in schedule.rounds.iter().enumerate() {
        let middle = y + BOX.1 + BAND / 2.0;
        card.text((16.0, middle - 10.0), "bold", &format!("round {}", i + 1));
        card.text(
            (16.0, middle + 8.0),
            "",
            if adds(round) { "sum" } else { "copy" },
        );
        let bytes = of_n(busiest(&schedule, round));
        card.text((16.0, middle + 26.0), "soft", &bytes);
        arrows(&mut card, y + BOX.1, schedule.chunks, round);
        y += BOX.1 + BAND;
        sum_up(&mut held, round);
        state(&mut card, y, &held, round);
    }
    y += BOX.1 + 28.0;
    let all: usize = schedule
        .rounds
        .iter()
        .map(|round| busiest(&schedule, round))
        .sum();
    card.text(
        (16.0, y),
        "soft",
        "N: the bytes of a gradient; at the left, how many go",
    );
    let words = format!("through the busiest link, in all {}", of_n(all));
    y += 20.0;
    card.text((16.0, y), "soft", &words);
    card.finish(y + 16.0, &label(&schedule, all))
}

fn says(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Star => "Star: one sums all, the others copy the sum",
        Algorithm::Owner => "Owner: each sums its own chunk for all",
        Algorithm::Ring => "Ring: chunks go round, once to sum, once to copy",
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

fn legend(card: &mut Card, title: &str) {
    card.text((16.0, 30.0), "title", title);
    card.text((16.0, 56.0), "soft", "holds the gradients of");
    for (device, color) in DEVICES.iter().enumerate() {
        let x = 196.0 + 44.0 * device as f64;
        card.tile((x, 45.0), (14.0, 12.0), color);
        card.text((x + 19.0, 56.0), "", &device.to_string());
    }
    for device in 0..K {
        let (x, width) = bar(device, 0, 1);
        card.text(
            (x + width / 2.0, 83.0),
            "middle soft",
            &format!("device {device}"),
        );
    }
}

/// Where a chunk of a device begins, and how wide it is.
fn bar(device: usize, chunk: usize, chunks: usize) -> Pair {
    let pitch = (BOX.0 + 2.0) / chunks as f64;
    let left = LEFT + COLUMN * device as f64 + (COLUMN - BOX.0) / 2.0;
    (left + pitch * chunk as f64, pitch - 2.0)
}

/// What all hold; what came in this round has a frame.
fn state(card: &mut Card, y: f64, held: &Held, round: &[Sum]) {
    for (device, chunks) in held.iter().enumerate() {
        for (chunk, parts) in chunks.iter().enumerate() {
            let (x, width) = bar(device, chunk, chunks.len());
            let slot = BOX.1 / K as f64;
            for (part, color) in DEVICES.iter().enumerate() {
                let color = if parts.contains(&part) { color } else { EMPTY };
                card.tile((x, y + slot * part as f64), (width, slot - 1.0), color);
            }
            if round
                .iter()
                .any(|sum| sum.chunk == chunk && sum.to.contains(&device))
            {
                card.frame((x - 1.0, y - 1.5), (width + 2.0, BOX.1 + 2.0), INK);
            }
        }
    }
}

/// Who hands what to whom, from `y` down to the next state.
fn arrows(card: &mut Card, y: f64, chunks: usize, round: &[Sum]) {
    let at = |device: usize, chunk: usize, (i, of): (usize, usize)| {
        let (x, width) = bar(device, chunk, chunks);
        x + width * (i + 1) as f64 / (of + 1) as f64
    };
    for sum in round {
        // those who read the same device at the same time
        let readers: Vec<usize> = round
            .iter()
            .filter(|s| s.chunk == sum.chunk && s.from == sum.from)
            .map(|s| s.by)
            .collect();
        let out = readers.iter().position(|by| *by == sum.by).unwrap_or(0);
        for (i, from) in sum.from.iter().enumerate() {
            let start = at(*from, sum.chunk, (out, readers.len()));
            let end = at(sum.by, sum.chunk, (i, sum.from.len()));
            let points = [(start, y + 4.0), (end, y + BAND - 4.0)];
            card.arrow(&points, if *from == sum.by { FAINT } else { SOFT });
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

/// What goes into a device or out of it in a round, at most, in quarters of all bytes.
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
