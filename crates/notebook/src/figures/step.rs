//! One step of data parallelism on two devices.

use super::card::{Card, DEVICES, EMPTY, Pair, SOFT};

/// Where the devices begin; left of them are the names of the phases.
const LEFT: f64 = 112.0;
const TILE: Pair = (166.0, 32.0);
const RIGHT: f64 = LEFT + TILE.0 + 20.0;
const PITCH: f64 = 82.0;

pub fn svg() -> String {
    let mut card = Card::new();
    card.text((16.0, 30.0), "title", "One step of data parallelism");
    card.legend((296.0, 30.0), 2);
    let row = |i: usize| 50.0 + PITCH * i as f64;
    let whole = (RIGHT - LEFT + TILE.0, TILE.1);
    plain(&mut card, (LEFT, row(0)), whole, "a minibatch");
    both(&mut card, row(1), ["first half", "second half"]);
    both(&mut card, row(2), ["gradient 0", "gradient 1"]);
    for x in [LEFT, RIGHT] {
        card.sum((x, row(3)), TILE, "gradient 0 + 1");
        plain(&mut card, (x, row(4)), TILE, "same parameters");
    }
    let phases: [&[&str]; 4] = [
        &["split"],
        &["forward,", "backward"],
        &["all-reduce"],
        &["update"],
    ];
    for (i, words) in phases.into_iter().enumerate() {
        let (top, foot) = (row(i) + TILE.1 + 3.0, row(i + 1) - 3.0);
        let first = (top + foot) / 2.0 + 5.0 - 9.0 * (words.len() - 1) as f64;
        for (j, words) in words.iter().enumerate() {
            card.text((16.0, first + 18.0 * j as f64), "bold", words);
        }
        arrows(&mut card, (top, foot), i == 2);
    }
    let label = "One step of data parallelism on two devices: the minibatch is split; each device computes \
                 a gradient from its half; both get the sum of the gradients and take the same update";
    card.finish(row(4) + TILE.1 + 18.0, label)
}

fn both(card: &mut Card, y: f64, words: [&str; 2]) {
    for (device, x) in [LEFT, RIGHT].into_iter().enumerate() {
        card.device((x, y), TILE, device, words[device]);
    }
}

/// A box of no device.
fn plain(card: &mut Card, at: Pair, size: Pair, words: &str) {
    card.tile(at, size, EMPTY);
    card.frame(at, size, SOFT);
    card.text((at.0 + size.0 / 2.0, at.1 + 21.0), "middle", words);
}

/// From each device to itself, and to the other where they exchange something.
fn arrows(card: &mut Card, (top, foot): Pair, exchange: bool) {
    let middles = [LEFT + TILE.0 / 2.0, RIGHT + TILE.0 / 2.0];
    let aside = if exchange { 10.0 } else { 0.0 };
    for (device, x) in middles.into_iter().enumerate() {
        let outside = if device == 0 { -aside } else { aside };
        card.arrow(&[(x + outside, top), (x + outside, foot)], DEVICES[device]);
        if exchange {
            let other = middles[1 - device] + outside;
            card.arrow(&[(x - outside, top), (other, foot)], DEVICES[device]);
        }
    }
}
