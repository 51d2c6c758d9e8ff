//! One step of data parallelism on two devices, as it moves: from left to right, again and again.

use super::card::{Card, DEVICES, EMPTY, INK, LIT, MARK, PALE, Pair, SOFT};
use super::motion::Motion;

const SIZE: Pair = (640.0, 232.0);
/// The columns: their names, and their middles. Each but the first is a stage.
const COLUMNS: [(&str, f64); 5] = [
    ("minibatch", 60.0),
    ("shard", 166.0),
    ("gradient", 290.0),
    ("all-reduce", 432.0),
    ("update", 570.0),
];
/// The tops of what the devices have, and of their frames.
const LANES: [f64; 2] = [46.0, 138.0];
const LANE: Pair = (512.0, 82.0);
const BOX: Pair = (96.0, 46.0);
/// A part that moves.
const CARRIED: Pair = (36.0, 26.0);
/// From a lane's top to that of its boxes.
const INSIDE: f64 = 27.0;
/// An example, and from one to the next.
const EXAMPLE: f64 = 20.0;
const NEXT: f64 = 26.0;

pub fn svg() -> String {
    let mut card = Card::moving(Motion {
        stages: COLUMNS.len() - 1,
        stage: 2.0,
        rest: 1.4,
    });
    for (column, (name, x)) in COLUMNS.into_iter().enumerate() {
        if let Some(stage) = column.checked_sub(1) {
            let width = 12.0 + 10.5 * name.len() as f64;
            let at = (x - width / 2.0, 10.0);
            card.lit(stage, |card| card.tile(at, (width, 28.0), LIT));
        }
        card.text((x, 30.0), "middle large bold", name);
    }
    for device in 0..LANES.len() {
        lane(&mut card, device);
        split(&mut card, device);
        gradient(&mut card, device);
        all_reduce(&mut card, device);
        update(&mut card, device);
    }
    let label = "A step of data parallelism on two devices, from left to right: the minibatch is split into two shards; \
                 each device computes the gradient of its shard; the all-reduce gives both devices the sum of the \
                 gradients; both take the same update";
    card.finish_wide(SIZE, label)
}

fn lane(card: &mut Card, device: usize) {
    let (x, y) = (SIZE.0 - 10.0 - LANE.0, LANES[device]);
    card.frame((x, y), LANE, DEVICES[device]);
    card.text((x + 8.0, y + 19.0), "", &format!("device {device}"));
}

/// The middle of a box.
fn middle(column: usize, device: usize) -> Pair {
    let (_, x) = COLUMNS[column];
    (x, LANES[device] + INSIDE + BOX.1 / 2.0)
}

/// The upper left corner of what has its middle there.
fn corner((x, y): Pair, (width, height): Pair) -> Pair {
    (x - width / 2.0, y - height / 2.0)
}

/// From one point to another.
fn way(from: Pair, to: Pair) -> Pair {
    (to.0 - from.0, to.1 - from.1)
}

/// From a box to a box of the next column.
fn arrow(card: &mut Card, from: Pair, to: Pair, color: &str) {
    let aside = BOX.0 / 2.0 + 2.0;
    card.arrow(&[(from.0 + aside, from.1), (to.0 - aside, to.1)], color);
}

fn words(card: &mut Card, (x, y): Pair, words: &str) {
    card.text((x, y + 6.0), "middle large halo", words);
}

fn split(card: &mut Card, device: usize) {
    let from = (COLUMNS[0].1, 104.0 + 56.0 * device as f64);
    let to = middle(1, device);
    examples(card, from, device);
    card.carried(0, way(from, to), |card| examples(card, from, device));
    card.shown(0, |card| examples(card, to, device));
}

/// The examples of a shard.
fn examples(card: &mut Card, middle: Pair, device: usize) {
    let (x, y) = corner(middle, (EXAMPLE + NEXT, EXAMPLE + NEXT));
    for i in 0..4 {
        let at = (x + NEXT * f64::from(i % 2), y + NEXT * f64::from(i / 2));
        card.tile(at, (EXAMPLE, EXAMPLE), PALE[device]);
        card.frame(at, (EXAMPLE, EXAMPLE), DEVICES[device]);
    }
}

fn gradient(card: &mut Card, device: usize) {
    let (from, to) = (middle(1, device), middle(2, device));
    card.carried(1, way(from, to), |card| {
        card.tile(corner(from, CARRIED), CARRIED, DEVICES[device]);
    });
    card.shown(1, |card| {
        let start = (from.0 - (BOX.0 - EXAMPLE - NEXT) / 2.0, from.1);
        arrow(card, start, to, SOFT);
        own(card, to, BOX, device);
    });
}

/// A device's own gradient.
fn own(card: &mut Card, middle: Pair, size: Pair, device: usize) {
    card.device(corner(middle, size), size, device, "");
    words(card, middle, ["g₀", "g₁"][device]);
}

fn all_reduce(card: &mut Card, device: usize) {
    let to = middle(3, device);
    card.shown(2, |card| {
        for from in 0..LANES.len() {
            let color = if from == device { SOFT } else { MARK };
            arrow(card, middle(2, from), to, color);
        }
        card.sum(corner(to, BOX), BOX, "");
        words(card, to, "g₀ + g₁");
    });
    let from = middle(2, device);
    for to in 0..LANES.len() {
        card.carried(2, way(from, middle(3, to)), |card| {
            own(card, from, CARRIED, device);
        });
    }
}

fn update(card: &mut Card, device: usize) {
    let (from, to) = (middle(3, device), middle(4, device));
    card.carried(3, way(from, to), |card| {
        card.sum(corner(from, CARRIED), CARRIED, "");
    });
    card.shown(3, |card| {
        arrow(card, from, to, SOFT);
        card.tile(corner(to, BOX), BOX, EMPTY);
        card.frame(corner(to, BOX), BOX, INK);
        words(card, to, "same w");
    });
}
