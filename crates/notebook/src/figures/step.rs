//! One step of data parallelism on two devices.

use super::card::{Card, DEVICES, EMPTY, Pair, SOFT};

/// Left of the devices is what happens.
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
    card.halves((LEFT, row(0)), whole, "a minibatch");
    both(&mut card, row(1), "half the examples");
    both(&mut card, row(2), "a gradient");
    for x in [LEFT, RIGHT] {
        card.halves((x, row(3)), TILE, "the sum of both");
        same(&mut card, (x, row(4)), "same parameters");
    }
    let happens = [
        ["split", "", ""],
        ["forward,", "backward", ""],
        ["all-reduce", "", ""],
        ["update", "", ""],
    ];
    for (i, words) in happens.into_iter().enumerate() {
        let (top, foot) = (row(i) + TILE.1 + 3.0, row(i + 1) - 3.0);
        let words: Vec<&str> = words
            .into_iter()
            .filter(|words| !words.is_empty())
            .collect();
        let first = (top + foot) / 2.0 + 5.0 - 9.0 * (words.len() - 1) as f64;
        for (j, words) in words.iter().enumerate() {
            card.text((16.0, first + 18.0 * j as f64), "bold", words);
        }
        arrows(&mut card, (top, foot), i == 2);
    }
    let label = "One step of data parallelism on two devices: the minibatch is split; each device computes \
                 a gradient from its half; both get the sum of the gradients and update the same parameters";
    card.finish(row(4) + TILE.1 + 18.0, label)
}

fn both(card: &mut Card, y: f64, words: &str) {
    for (device, x) in [LEFT, RIGHT].into_iter().enumerate() {
        card.device((x, y), TILE, device, words);
    }
}

fn same(card: &mut Card, at: Pair, words: &str) {
    card.tile(at, TILE, EMPTY);
    card.frame(at, TILE, SOFT);
    card.text((at.0 + TILE.0 / 2.0, at.1 + 21.0), "middle", words);
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
